"""A Pod that counts, as the ledger looks at it: what it asks for, and which claims it and its containers speak of."""

from __future__ import annotations

from typing import Final

from sickbay.facts import ClaimObserved, NodeAllocatableEntry, PodObserved
from streams.ledger.requests import PodAmounts, pod_amounts

#: What the ledger reads of a Pod, beside its identity and whether it counts.
_READ: Final = (
    "containers", "claims", "extended_claim", "overhead", "pod_level_requests", "pod_level_actuated",
    "pod_level_allocated", "node_allocatable", "resize", "refused",
)  # fmt: skip


class Pod:
    """A Pod that counts."""

    __slots__ = ("amounts", "at_ms", "fact", "names", "references", "uid")

    def __init__(self, fact: PodObserved) -> None:
        self.fact = fact
        self.uid = fact.pod_uid
        self.at_ms = fact.observed_at_ms
        self.amounts: PodAmounts = pod_amounts(fact)
        local = {claim.name: claim.claim for claim in fact.claims if claim.claim}
        #: Claim object name to the containers that refer to it.
        self.references: dict[str, list[str]] = {name: [] for name in local.values()}
        for container in fact.containers:
            for reference in container.claims:
                name = local.get(reference.name)
                if name is not None and container.name not in self.references[name]:
                    self.references[name].append(container.name)
        #: Names of every claim that the Pod speaks of.
        self.names = {*self.references, *(entry.claim for entry in fact.node_allocatable or ())}
        if fact.extended_claim:
            self.names.add(fact.extended_claim)

    def asks_the_same(self, fact: PodObserved) -> bool:
        """Whether a newer version of the Pod differs in nothing that the ledger reads."""
        return all(getattr(self.fact, name) == getattr(fact, name) for name in _READ)

    def renew(self, fact: PodObserved) -> None:
        """Take over a newer version that asks the same."""
        self.fact, self.at_ms = fact, fact.observed_at_ms


def status_entries(pod: Pod, name: str) -> list[NodeAllocatableEntry]:
    """Return the entries of a Pod's status for the claim of this name."""
    return [entry for entry in pod.fact.node_allocatable or () if entry.claim == name]


def containers_of(claim: ClaimObserved, pod: Pod) -> int:
    """Return how many containers of a Pod refer to a claim; of a scheduler-made claim only its status entry says."""
    named = pod.references.get(claim.claim)
    if named is None:
        named = [c for e in status_entries(pod, claim.claim) for c in e.containers]
    return len(set(named))


def is_unclear(entry: NodeAllocatableEntry) -> bool:
    """Whether a status entry was not understood whole."""
    return entry.shape == "unknown" or bool(entry.unknown_fields)
