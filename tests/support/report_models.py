"""Pages for tests: a small one in which everything occurs once, and what a reader of HTML sees of one."""

from __future__ import annotations

from html.parser import HTMLParser

from sickbay.report import (
    Alert,
    Balance,
    Bar,
    Device,
    Drift,
    Episode,
    Evidence,
    LedgerNode,
    Mark,
    Node,
    Parked,
    Phase,
    Policy,
    Position,
    Refused,
    Report,
    Verdict,
)

#: 2026-07-01T00:00:00Z.
START_MS = 1_782_864_000_000
HOUR = 3_600_000
#: Elements that have no end tag.
VOID = {"meta", "link", "input", "wbr", "br", "img"}


def at(hours: float) -> int:
    return START_MS + int(hours * HOUR)


def mark(number: int, kind: str, hours: float, **changes) -> Mark:
    """A decision on gpu-0 of node-a, with one fact."""
    values = {
        "at_ms": at(hours),
        "kind": kind,
        "node": "node-a",
        "about": "dra:gpu.example.com/node-a/gpu-0",
        "reason": f"because of fact {number}",
        "event_id": f"event-{number}",
        "partition": 3,
        "offset": 100 + number,
        "clause": "quarantine.min_hold_ms",
        "policy": "73c557ae2cb82f74",
        "evidence": (fact(number, hours),),
    }
    return Mark(**(values | changes))


def fact(number: int, hours: float, said: str = "ml/train says Unhealthy") -> Evidence:
    return Evidence("device_health_observed", at(hours), said, f"fact-{number}", 3, 90 + number)


def full(word: str = "plain") -> Report:
    """A page of ten hours in which everything occurs once; ``word`` stands in every text of the cluster."""
    device_id = f"dra:gpu.example.com/node-a/{word}"
    node = f"node-a{word}"
    device = Device(
        device_id,
        f"gpu.example.com{word}",
        (
            Phase("quarantined", f"unhealthy{word}", at(2), at(5), "episode-1"),
            Phase("observing", "", at(5), None, "episode-1"),
        ),
        (Bar("episode", "episode-1", at(2), None),),
        (Bar("move of", f"ml/{word}", at(2), at(3)),),
        (
            mark(
                1,
                "quarantine_opened",
                2,
                about=device_id,
                node=node,
                reason=word,
                before="in_service",
                after="quarantined",
            ),
            mark(
                2,
                "observation_started",
                5,
                about=device_id,
                node=node,
                evidence=(fact(2, 5, word),),
                evidence_left=3,
            ),
        ),
    )
    opened = mark(3, "node_incident_opened", 6, about=f"plugin_down {word}", node=node, told_by=fact(9, 6))
    return Report(
        title=f"Incident {word}",
        from_ms=at(0),
        until_ms=at(10),
        source=f"replay:{word}",
        created_by="sickbay 0",
        policies=(Policy("73c557ae2cb82f74", f"v1{word}", at(0)),),
        positions=(Position(3, 120, at(10), "ab" * 32),),
        nodes=(
            Node(node, (device,), (f"dra:gpu.example.com/node-a/quiet{word}",), (Bar("plugin_down", word, at(6), at(7)),), (opened,)),
            Node(f"node-b{word}", (), tuple(f"dra:gpu.example.com/node-b/gpu-{n}" for n in range(8))),
        ),
        breakers=(Bar(f"driver:{word}", "4 of 9 turned, the limit is 3", at(7), None),),
        marks=(mark(4, "breaker_opened", 7, about=f"driver:{word}", node=""),),
        gaps=(Bar(f"pods{word}", "", at(8), at(9)),),
        episodes=(
            Episode(
                "episode-1", node, device_id, "observing", "unhealthy", word, at(2), None, "", 1, "observation_only", "[]", 2, 3
            ),
        ),
        alerts=(Alert("flapping", device_id, node, at(3), None, word),),
        parked=(Parked(f"{word}.jsonl:17", word, 12),),
        ledger=(
            LedgerNode(
                node,
                (Balance("recorded", f"memory{word}", "64Gi", "16Gi", "8Gi", "1Gi", "0", "25Gi", "39Gi", 390),),
                (Bar("slice_stale", f"gpu.example.com/{word}", at(4), at(6)),),
                (Verdict("hold", f"slice_stale {word}", at(4)), Verdict("open", "", at(6))),
                (Drift(f"ml/{word}", "mapping_changed", False, "cpu 1", "cpu 2", "cpu 2", word, at(5), None),),
                (Refused("recorded", f"claim/{word}", f"uid-{word}", "cpu 1", at(5), None, f"ml/{word}"),),
                (mark(5, "verdict_changed", 4, about="", node=node, reason=f"hold: {word}", told_by=fact(8, 4)),),
            ),
        ),
        counts=(("events in the log", 120), ("devices", 10)),
        narrowed_to=word,
        notes=(f"Showing part of {word}.",),
    )  # fmt: skip


class Seen(HTMLParser):
    """What a reader of HTML makes of a page: its elements, their attributes, and the text outside of style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} names an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(f"/{tag}")

    def handle_data(self, data):
        if not self._open or self._open[-1] not in {"style", "script"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        """Attributes of the elements of a tag that have the wanted ones; ``class_`` is one class among others."""
        name = wanted.pop("class_", None)
        return [
            attributes
            for found, attributes in self.elements
            if found == tag
            and all(attributes.get(key) == value for key, value in wanted.items())
            and (name is None or name in (attributes.get("class") or "").split())
        ]
