"""What a Pod asks of its node: Kubernetes' ``PodRequests``, in parts that can be booked one by one.

The sum is computed here and nowhere else, so that the ledger and the scheduler cannot differ by a rule. It must not look
at claims, slices or policy: what a claim adds to a Pod comes in as a number. The rules, and where each is from
(``k8s.io/component-helpers`` ``resource/helpers.go``):

* **Init peak** (v0.36, v0.37; KEP-753): ``max(containers + sidecars, peak)``. The peak is the most that one init container
  asks together with the sidecars before it. A sidecar of its own adds nothing to the peak: those started so far are part
  of the sum.
* **In-place resize, v0.36** (``determineContainerReqs``): each container counts with the largest of what it asks, what is
  actuated and what is allocated, without what it asks when the resize is ``Infeasible``. A container whose status shows no
  resources, and an init container that is no sidecar, counts with what it asks. A ``Deferred`` resize is as any other.
* **In-place resize, v0.37** (``AggregateContainerRequests``; kubernetes/kubernetes#140046): a resize is atomic, so the three
  words are summed first, each with its own init peak, and the largest sum counts, without what is asked when the resize
  is ``Infeasible``. A container that shows nothing actuated counts there with what is allocated, and one that shows
  nothing allocated with what it asks, or with nothing when ``Infeasible``. All init containers alike.
* **DRA amounts** (KEP-5517): v0.36 adds them to the larger of all. v0.37 adds them to what is asked and to what is
  allocated, and not to what is actuated, which has them already. Both add them whatever container uses the claim, without
  an init peak (kubernetes/kubernetes#140812).
* **Pod-level requests** (``applyPodLevelResources``, both; KEP-2837) replace cpu, memory and hugepages, DRA amounts included.
  While a Pod-level resize is under way the largest of what is asked (not when ``Infeasible``), actuated and allocated counts;
  the last two are reported with the overhead in them, which is taken out first (kubernetes/kubernetes#139627).
* **Overhead** comes last, once (both).
* **Rounding** (``framework.Resource``): the sum, once for each Pod.

Which of the two applies is read from the Pod: v0.36 where it has entries of the 1.36 shape only, or none. They differ only
while a resize is under way; of several containers that are resized at once v0.36 never counts less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sickbay.facts import Container, PodObserved
from streams.ledger.amounts import Exact, Nanos, ceiling, counts, nano_of, replaced_by_pod_level

_INFEASIBLE: Final = "Infeasible"
_NOTHING: Final[Mapping[str, int]] = {}


class PodAmounts(NamedTuple):
    """What a Pod asks for, by resource of the ledger, in nano-units and not rounded.

    The mappings are the caller's to read, not to change.
    """

    #: Without DRA amounts and without overhead; a Pod-level request stands for its resource.
    own: Nanos
    #: Lower bound of ``own`` and DRA amounts together; empty where the Pod's entries have the 1.36 shape, or it has none.
    floor: Nanos
    #: ``spec.overhead``.
    overhead: Nanos
    #: Resources that a Pod-level request stands for: DRA amounts are inside it and are not added.
    covered: frozenset[str]


def pod_amounts(pod: PodObserved) -> PodAmounts:
    """Return what a Pod asks for. Raises QuantityError for a text that is no quantity, which no fact of ``ingest`` has."""
    infeasible = pod.resize == _INFEASIBLE
    floor: Nanos = {}
    if _has_later_shape(pod):
        own, floor = _largest_sum(pod.containers, infeasible=infeasible)
    else:
        own = _sum_of_largest(pod.containers, infeasible=infeasible)
    covered: frozenset[str] = frozenset()
    if pod.pod_level_requests:
        replaced = _pod_level(pod, pod.pod_level_requests, infeasible=infeasible)
        own.update(replaced)
        floor = {resource: amount for resource, amount in floor.items() if resource not in replaced}
        covered = frozenset(replaced)
    return PodAmounts(own, floor, _nanos(pod.overhead) if pod.overhead else {}, covered)


def _pod_level(pod: PodObserved, requests: Mapping[str, str], *, infeasible: bool) -> Nanos:
    asked = {r: nano for r, nano in _nanos(requests).items() if replaced_by_pod_level(r)}
    reported = [_nanos(said) for said in (pod.pod_level_actuated, pod.pod_level_allocated) if said]
    if not reported:
        return asked
    overhead = _nanos(pod.overhead)
    replaced: Nanos = {}
    for resource, nano in asked.items():
        words = [max(said[resource] - overhead.get(resource, 0), 0) for said in reported if resource in said]
        if not (infeasible and words):
            words.append(nano)
        replaced[resource] = max(words)
    return replaced


def total_nano(amounts: PodAmounts, resource: str, dra: Exact) -> int:
    """Return what a Pod takes of a resource, in nano-units, rounded up once to what the scheduler counts in.

    ``dra`` is what its claims add, in nano-units, as exact as it is known.
    """
    own = amounts.own.get(resource, 0)
    sum_of_both = own if resource in amounts.covered else own + dra
    at_least = amounts.floor.get(resource)
    if at_least is not None and at_least > sum_of_both:
        sum_of_both = at_least
    return ceiling(resource, sum_of_both + amounts.overhead.get(resource, 0))


def pod_requests(pod: PodObserved) -> Nanos:
    """Return what the scheduler counts for a Pod with the entries of its own status, by resource, in nano-units, rounded.

    An entry counts its mapping and ``per_pod`` once, and ``per_container`` for each container that it names. Entries count
    as they stand there, whether their claim is known or not.
    """
    amounts = pod_amounts(pod)
    recorded = _recorded(pod)
    resources = {**amounts.own, **amounts.floor, **recorded, **amounts.overhead}
    return {resource: total_nano(amounts, resource, recorded.get(resource, 0)) for resource in resources}


def _has_later_shape(pod: PodObserved) -> bool:
    """Whether a scheduler after 1.36 wrote an entry; a shape that is not known is a later one."""
    return any(entry.shape != "1.36" for entry in pod.node_allocatable or ())


def _sum_of_largest(containers: tuple[Container, ...], *, infeasible: bool) -> Nanos:
    return _footprint((container, _largest(container, infeasible=infeasible)) for container in containers)


def _largest(container: Container, *, infeasible: bool) -> Mapping[str, int]:
    requests, actuated, allocated = container.requests, container.actuated, container.allocated
    if actuated is None or (container.init and not container.restartable):
        return _nanos(requests)
    # No resize under way, nearly always; facts hold canonical texts.
    if requests == actuated and (allocated is None or allocated == actuated):
        return _nanos(requests)
    largest = _nanos(actuated)
    if allocated:
        _raise(largest, _nanos(allocated))
    if not infeasible:
        _raise(largest, _nanos(requests))
    return largest


def _largest_sum(containers: tuple[Container, ...], *, infeasible: bool) -> tuple[Nanos, Nanos]:
    """Return the larger of what is asked and allocated, and what is actuated."""
    asked: list[tuple[Container, Mapping[str, int]]] = []
    allocated: list[tuple[Container, Mapping[str, int]]] = []
    actuated: list[tuple[Container, Mapping[str, int]]] = []
    for container in containers:
        requests = _nanos(container.requests)
        asked.append((container, requests))
        otherwise = _NOTHING if infeasible else requests
        of_allocated = otherwise if container.allocated is None else _nanos(container.allocated)
        allocated.append((container, of_allocated))
        of_actuated = of_allocated if container.actuated is None else _nanos(container.actuated)
        actuated.append((container, of_actuated))
    own = _footprint(allocated)
    if not infeasible:
        _raise(own, _footprint(asked))
    return own, _footprint(actuated)


def _footprint(containers: Iterable[tuple[Container, Mapping[str, int]]]) -> Nanos:
    """Return the larger of the sum of containers and sidecars, and the init peak. Init containers come in their order."""
    total: Nanos = {}
    sidecars: Nanos = {}
    peak: Nanos = {}
    for container, amounts in containers:
        if container.init and not container.restartable:
            during = dict(sidecars)
            _add(during, amounts)
            _raise(peak, during)
            continue
        _add(total, amounts)
        if container.init:
            _add(sidecars, amounts)
    _raise(total, peak)
    return total


def _recorded(pod: PodObserved) -> Nanos:
    """Return what the entries of the Pod's status add up to."""
    total: Nanos = {}
    for entry in pod.node_allocatable or ():
        _add(total, _nanos(entry.mapping))
        _add(total, _nanos(entry.per_pod))
        users = len(set(entry.containers))
        _add(total, {resource: users * amount for resource, amount in _nanos(entry.per_container).items()})
    return total


def _nanos(texts: Mapping[str, str]) -> Nanos:
    return {resource: nano_of(text) for resource, text in texts.items() if counts(resource)}


def _add(total: Nanos, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount


def _raise(total: Nanos, amounts: Mapping[str, int]) -> None:
    """Raise each amount to the larger one; one that is not there takes no part, so a negative one stays seen."""
    for resource, amount in amounts.items():
        if resource not in total or amount > total[resource]:
            total[resource] = amount
