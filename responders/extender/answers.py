"""The answer to the scheduler: which of its nodes a Pod may go to, and of each other one a sentence that a user can act on.

The wire format is that of ``k8s.io/kube-scheduler/extender/v1`` (``ExtenderArgs``, ``ExtenderFilterResult``), whose fields have the
names of their Go fields; a reader of Go takes them in any case, and so does this one.

A sentence must be alike on nodes that are alike: the scheduler counts equal ones together (``FitError``), and a Pod's condition
holds them all. So it names no node and no device.

Every node that is removed is told as unresolvable. Preemption cannot help: the scheduler looks for victims by its own filters
(``preemption.go``, ``SelectVictimsOnNode``), which such a node passes already, so it would find none and call that an error.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from responders.extender.asking import Asked, read_pod
from responders.extender.holdings import Holdings, Standing
from sickbay.errors import InputError
from sickbay.policy import Effect

Reason: TypeAlias = Literal["unfit_devices", "hold", "exact_amount", "stale"]
REASONS: Final[tuple[Reason, ...]] = ("unfit_devices", "hold", "exact_amount", "stale")

STALE: Final = "sickbay: its view is stale and respond.extender.when_stale is closed"

_encode: Final = msgspec.json.Encoder().encode
_NO_NODES: Final[Mapping[str, str]] = {}


class Arguments(NamedTuple):
    """What the scheduler asks."""

    pod: Asked
    names: Sequence[str]
    #: Name to the whole Node as it came, where the scheduler sent Nodes and not names.
    nodes: Mapping[str, msgspec.Raw] | None = None


class Answer(NamedTuple):
    """What is answered."""

    passed: Sequence[str]
    #: Node to sentence.
    removed: Mapping[str, str] = _NO_NODES
    #: ``(reason, mode)`` to how many nodes: removed for it (enforce), or passed although it stands (observe).
    counts: Mapping[tuple[Reason, Effect], int] = {}
    #: A node for each of these, for the log.
    examples: Mapping[tuple[Reason, Effect], str] = {}


class _NodeMetadata(msgspec.Struct):
    name: str


class _Node(msgspec.Struct):
    metadata: _NodeMetadata


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_arguments: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_names: Final = msgspec.json.Decoder(list[str] | None).decode
_node_list: Final = msgspec.json.Decoder(_NodeList | None).decode
_node: Final = msgspec.json.Decoder(_Node).decode


def read_arguments(body: bytes) -> Arguments:
    """Read ``ExtenderArgs``. Raises InputError for what is none."""
    try:
        parts = {name.lower(): value for name, value in _arguments(body).items()}
        if "pod" not in parts:
            raise InputError("not ExtenderArgs: there is no Pod")
        pod = read_pod(parts["pod"])
        names = _names(parts["nodenames"]) if "nodenames" in parts else None
        if names is not None:
            return Arguments(pod, names)
        found = _node_list(parts["nodes"]) if "nodes" in parts else None
        if found is None:
            raise InputError("not ExtenderArgs: there are neither NodeNames nor Nodes")
        nodes = {_node(each).metadata.name: each for each in found.items or ()}
        return Arguments(pod, tuple(nodes), nodes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not ExtenderArgs: {error}") from error


def write_answer(asked: Arguments, answer: Answer) -> bytes:
    """Return ``ExtenderFilterResult``, with names or with whole Nodes, as it was asked."""
    result: dict[str, Any] = {
        "FailedNodes": _NO_NODES,
        "FailedAndUnresolvableNodes": answer.removed,
        "Error": "",
    }
    if asked.nodes is None:
        result["NodeNames"] = answer.passed
    else:
        # the scheduler goes on with these objects, so they are given back whole
        result["Nodes"] = {"metadata": {}, "items": [asked.nodes[name] for name in answer.passed]}
    return _encode(result)


class Judge:
    """Answers by what is known and by policy (``respond.extender``)."""

    def __init__(self, holdings: Holdings, *, closed: bool) -> None:
        self._holdings, self._closed = holdings, closed

    def answer(self, asked: Arguments, now_ms: int, *, stale: bool, caught_up: bool = True) -> Answer:
        """Return which nodes a Pod may go to. ``stale``: what is known is too old, or not read whole (not ``caught_up``).

        A Pod that asks for nothing of ours passes everywhere, whatever is known.
        """
        pod, known = asked.pod, self._holdings.resources
        # before everything was read nobody knows whose devices custody has: any of a plugin's may be ours
        ours = {r: n for r, n in pod.extended.items() if r in known or not caught_up}
        if not ours and not pod.has_claims:
            return Answer(asked.names)
        if stale:
            return self._stale(asked, ours)
        passed: list[str] = []
        removed: dict[str, str] = {}
        counts: dict[tuple[Reason, Effect], int] = {}
        examples: dict[tuple[Reason, Effect], str] = {}
        standing = self._holdings.standing
        for name in asked.names:
            found = _objections(pod, ours, standing(name, now_ms))
            enforced = ""
            for reason, mode, sentence in found:
                if mode == "off":
                    continue
                counts[reason, mode] = counts.get((reason, mode), 0) + 1
                examples.setdefault((reason, mode), name)
                if mode == "enforce" and not enforced:
                    enforced = sentence
            if enforced:
                removed[name] = enforced
            else:
                passed.append(name)
        return Answer(passed, removed, counts, examples)

    def _stale(self, asked: Arguments, ours: Mapping[str, int]) -> Answer:
        if not self._closed or not (ours or asked.pod.has_claims):
            return Answer(asked.names)
        passed: list[str] = []
        removed: dict[str, str] = {}
        counts: dict[tuple[Reason, Effect], int] = {}
        examples: dict[tuple[Reason, Effect], str] = {}
        for name in asked.names:
            mode = self._holdings.strictest(name, tuple(ours), claims=asked.pod.has_claims)
            if mode != "off":
                counts["stale", mode] = counts.get(("stale", mode), 0) + 1
                examples.setdefault(("stale", mode), name)
            if mode == "enforce":
                removed[name] = STALE
            else:
                passed.append(name)
        return Answer(passed, removed, counts, examples)


def _objections(
    pod: Asked, ours: Mapping[str, int], standing: Standing
) -> Sequence[tuple[Reason, Effect, str]]:
    """Return every reason against a node."""
    found: list[tuple[Reason, Effect, str]] = []
    if standing.short:
        for resource, number in ours.items():
            short = standing.short.get(resource)
            if short is not None and short.devices.free < number:
                sentence = f"sickbay: fewer than {number} fit {resource} are free ({short.words})"
                found.append(("unfit_devices", short.mode, sentence))
    if not (standing.holds or standing.free_nano):
        return found
    # what no plugin gives here can only come through a claim that the scheduler makes (KEP-5004)
    if not pod.has_claims and standing.gives.issuperset(ours):
        return found
    for mode, reasons in standing.holds.items():
        found.append(
            ("hold", mode, f"sickbay: new claims wait, the node's ledger is on hold ({', '.join(reasons)})")
        )
    for resource, free in standing.free_nano.items():
        if free < pod.own_nano.get(resource, 0):
            sentence = (
                f"sickbay: less {resource} is free than asked for, counted with the claims that are used"
            )
            found.append(("exact_amount", standing.claims_mode, sentence))
    return found
