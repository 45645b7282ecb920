"""A deliberately naive ledger: it keeps the facts it was given and works everything out anew at every question.

It follows docs/ledger.md word by word and shares no arithmetic with ``streams.ledger``, so that a slip on one side shows as a
difference. It must stay slow and plain: no state between questions, no shortcut that the rules do not state.

``Oracle`` gives the books; ``ledger_findings`` adds drift, holds and alerts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

from ledger_arithmetic import (
    TERMINAL,
    UNKNOWN,
    actuated_floor,
    add,
    added,
    allocation,
    kept,
    larger,
    legal,
    members_of,
    nano,
    numa_of,
    number,
    own_requests,
    read,
    source_of,
    up,
    version_of,
    whole_requests,
)

from sickbay import facts as f


@dataclass
class Line:
    """One entry as the rules give it. ``amounts`` and ``covered``: (resource, bucket) to units."""

    book: str
    key: str
    account: str
    amounts: dict = field(default_factory=dict)
    covered: dict = field(default_factory=dict)
    #: Whose it is, for the rounding and for what is refused.
    pod_uid: str = ""
    claim_uid: str = ""
    device_id: str = ""
    #: What it adds before anything is rounded to what a quantity can say.
    exact: dict = field(default_factory=dict)

    @property
    def shown(self):
        return (self.account, _shown(self.amounts), _shown(self.covered))


def _shown(amounts):
    return tuple(sorted((res, bucket, amount) for (res, bucket), amount in amounts.items() if amount))


class Oracle:
    """Everything that was said, and nothing else."""

    def __init__(self, policy):
        self.policy = policy
        self.given = []

    def give(self, *facts):
        self.given += facts
        return self

    @property
    def now_ms(self):
        return max((fact.observed_at_ms for fact in self.given), default=0)

    def histories(self):
        """Source to ``[(time, fact)]`` in order of versions; nothing became true later than a newer version of it."""
        versions = defaultdict(dict)
        for fact in self.given:
            source = source_of(fact)
            if source is not None:
                versions[source].setdefault(version_of(fact), fact)
        told = {}
        for source, by_version in versions.items():
            newest_first, at_ms = [], None
            for _, fact in sorted(by_version.items(), reverse=True):
                at_ms = fact.observed_at_ms if at_ms is None else min(at_ms, fact.observed_at_ms)
                newest_first.append((at_ms, fact))
            told[source] = newest_first[::-1]
        return told

    def world(self, at_ms=None):
        """What was so at a time, by default now; Pods and claims are always those of now."""
        at_ms = self.now_ms if at_ms is None else at_ms
        then = {
            source: log if source[0] in ("pod", "claim") else [(t, x) for t, x in log if t <= at_ms]
            for source, log in self.histories().items()
        }
        return World(self.policy, {source: log for source, log in then.items() if log}, at_ms)


class World:
    """The newest version of every object, the histories, and the books that follow."""

    def __init__(self, policy, told, now_ms):
        self.policy, self.told, self.now_ms = policy, told, now_ms
        self.rules = policy.ledger.emulate
        newest = {source: log[-1][1] for source, log in told.items()}
        self.node = newest.get(("node",))
        self.pods = {
            s[1]: x
            for s, x in newest.items()
            if s[0] == "pod" and isinstance(x, f.PodObserved) and x.phase not in TERMINAL and x.node
        }
        self.claims = {
            s[1]: x for s, x in newest.items() if s[0] == "claim" and isinstance(x, f.ClaimObserved)
        }
        self.devices = {
            s[1]: x for s, x in newest.items() if s[0] == "device" and isinstance(x, f.DevicePublished)
        }
        self.pools = {s[1:]: x for s, x in newest.items() if s[0] == "pool"}
        self.lines, self.refused, self.conflicts = [], [], set()
        self._books()

    # -- who has which claim

    def holds(self, claim):
        """The results that count: admin access never does."""
        return [r for r in claim.results if not r.admin_access]

    def consumers(self, claim):
        return {c.uid for c in claim.consumers if c.resource == "pods" and not c.api_group}

    def has(self, claim, pod):
        """Whether the claim says that it is the Pod's."""
        return pod.pod_uid in self.consumers(claim) or claim.owner == f"Pod/{pod.pod_uid}"

    def belongs(self, claim, pod):
        if claim.namespace != pod.namespace:
            return False
        if self.has(claim, pod) or (claim.extended_resource and pod.extended_claim == claim.claim):
            return True
        names = (
            {c.claim for c in pod.claims}
            | {e.claim for e in pod.node_allocatable or ()}
            | {pod.extended_claim}
        )
        return not self.consumers(claim) and claim.claim in names

    def pods_of(self, claim):
        """The counting Pods that a claim belongs to, smallest uid first."""
        return [pod for uid, pod in sorted(self.pods.items()) if self.belongs(claim, pod)]

    def claim_named(self, pod, name):
        """The claim that a Pod's status means by a name, or ``None``.

        A Pod that has a claim of this name means its own and no other's; one that has none can only mean the one there is.
        """
        named = [c for c in self.claims.values() if c.claim == name and c.namespace == pod.namespace]
        own = name in {c.claim for c in pod.claims} or name == pod.extended_claim
        found = (
            [c for c in named if self.has(c, pod)]
            or [c for c in named if not self.consumers(c)]
            or ([] if own else named)
        )
        return max(found, key=lambda c: (c.epoch, c.rv, c.claim_uid), default=None)

    def speakers(self, claim):
        """The counting Pods whose status speaks of a claim: those that it belongs to first, each by uid."""
        return [
            pod
            for _, pod in sorted(
                self.pods.items(), key=lambda item: (not self.belongs(claim, item[1]), item[0])
            )
            if any(c is claim for _, c, _ in self.recorded_entries(pod))
        ]

    def last(self, device_id):
        """A device as it is published, or was before it was withdrawn."""
        for _, fact in reversed(self.told.get(("device", device_id), [])):
            if isinstance(fact, f.DevicePublished):
                return fact
        return None

    def last_of(self, result):
        """The device of a result, whoever else has it."""
        return self.last(result.device_id)

    def allocated_ms(self, claim):
        """When the allocation that a claim has was seen first."""
        since_ms = None
        for at_ms, fact in reversed(self.told["claim", claim.claim_uid]):
            if not isinstance(fact, f.ClaimObserved) or allocation(fact) != allocation(claim):
                break
            since_ms = at_ms
        return since_ms

    def preallocated(self, claim, pod):
        """Whether the oldest version that had this allocation did not know the Pod yet.

        Of an allocation for a group of Pods, which it does not name, nobody can tell; it counts.
        """
        oldest = claim
        for _, fact in reversed(self.told[("claim", claim.claim_uid)]):
            if not isinstance(fact, f.ClaimObserved) or allocation(fact) != allocation(claim):
                break
            oldest = fact
        known = self.consumers(oldest)
        return pod.pod_uid not in known and len(known) == len(oldest.consumers)

    def asked(self, pod):
        """What a Pod asks for by itself, overhead included; what is out of range is refused."""
        return {r: a for r, a in add(own_requests(pod), read(pod.overhead)).items() if legal(a)}

    def amounts(self, texts):
        """Legal amounts of the resources that count."""
        read = {resource: number(text) for resource, text in texts.items() if kept(resource)}
        return {resource: amount for resource, amount in read.items() if legal(amount)}

    # -- what a device adds

    def result_amounts(self, device, result, rules=None):
        """Node resource to units that one result adds; ``None`` where that is not known."""
        return added(device, result, rules or self.rules)

    def references(self, pod, claim):
        """Names of the containers that refer to a claim."""
        local = {c.name for c in pod.claims if c.claim == claim.claim}
        if not local:
            return {
                name for e in pod.node_allocatable or () if e.claim == claim.claim for name in e.containers
            }
        return {c.name for c in pod.containers if local & {r.name for r in c.claims}}

    # -- the books

    def post(self, line):
        line.amounts = {k: nano(a) for k, a in line.amounts.items() if a}
        line.covered = {k: nano(a) for k, a in line.covered.items() if a}
        if line.amounts or line.covered:
            self.lines.append(line)

    def contribute(self, book, key, account, pod, amounts, *, among=None, **whose):
        """Post what a claim adds for a Pod; a Pod-level request, its own or of another Pod of the claim, contains it."""
        level = {r for p in among or [pod] for r in whole_requests(p)}
        inside = {k: a for k, a in amounts.items() if k[0] in level}
        outside = {k: a for k, a in amounts.items() if k not in inside}
        self.post(
            Line(book, key, account, dict(outside), inside, pod_uid=pod.pod_uid, exact=outside, **whose)
        )

    def _books(self):
        self._common()
        self._recorded()
        self._derived()
        self._device_books()
        for pod in self.pods.values():
            for book in ("recorded", "derived"):
                self._adjust(book, pod)

    def _common(self):
        if isinstance(self.node, f.NodeObserved):
            have = {(r, UNKNOWN): a for r, a in self.amounts(self.node.allocatable).items()}
            self.post(Line("common", f"node/{self.node.node_uid}", "supply", have))
        for uid, pod in self.pods.items():
            own = {(r, UNKNOWN): a for r, a in self.asked(pod).items()}
            self.post(Line("common", f"pod/{uid}", "pods", own, pod_uid=uid))

    def recorded_entries(self, pod):
        """``(claim key part, claim or None, entry)`` of a Pod's status, in order."""
        named = []
        for entry in pod.node_allocatable or ():
            claim = self.claim_named(pod, entry.claim)
            part = f"?/{pod.namespace}/{entry.claim}/{pod.pod_uid}" if claim is None else claim.claim_uid
            named.append((part, claim, entry))
        return named

    def _recorded(self):
        for claim in self.claims.values():
            told = [
                (p, c, e) for p in self.speakers(claim) for _, c, e in self.recorded_entries(p) if c is claim
            ]
            self._record(claim.claim_uid, claim, told)
        for _, pod in sorted(self.pods.items()):
            unknown = {}
            for part, claim, entry in self.recorded_entries(pod):
                if claim is None:
                    unknown.setdefault(part, []).append((pod, None, entry))
            for part, told in unknown.items():
                self._record(part, None, told)

    def _record(self, part, claim, told):
        """Post what status entries say of one claim: each contribution once, what repeats it is refused."""
        uid, borne, seen = claim.claim_uid if claim else "", False, []
        among = [pod for pod, _, _ in told] if claim is None else self.covering(claim)
        for pod, _, entry in told:
            seen.append(pod.pod_uid)
            place = seen.count(pod.pod_uid)
            contender = pod.pod_uid if place == 1 else f"{pod.pod_uid}#{place}"
            amounts = {(r, UNKNOWN): a for r, a in self.amounts(entry.mapping).items() if a}
            extra = self.amounts(entry.per_pod)
            for _ in set(entry.containers):
                add(extra, self.amounts(entry.per_container))
            key = f"overhead/{part}" if claim is None else f"overhead/{part}/{pod.pod_uid}"
            extra = {(r, UNKNOWN): a for r, a in extra.items() if a}
            if (entry.mapping if claim else amounts) and (borne or (claim is None and place > 1)):
                self.refused.append(("recorded", f"claim/{part}", contender))
            elif amounts:
                self.contribute(
                    "recorded", f"claim/{part}", "claims", pod, amounts, among=among, claim_uid=uid
                )
            borne = (
                borne or bool(entry.mapping) or (place == 1 and not entry.per_pod and not entry.per_container)
            )
            if extra and place > 1:
                self.refused.append(("recorded", key, contender))
            elif extra:
                self.contribute("recorded", key, "overhead", pod, extra, claim_uid=uid)

    def exclusive(self, result):
        """Whether one claim alone may hold a device: as it is published, or as the allocation looks."""
        device = self.last(result.device_id)
        return not result.share_id if device is None else not device.allow_multiple

    def loser(self, claim, result):
        """Whether another claim has a device that cannot be shared: one that a Pod uses, else one with a smaller uid."""
        holders = [
            (not self.pods_of(c), c.claim_uid)
            for c in self.claims.values()
            if any(r.device_id == result.device_id for r in self.holds(c))
        ]
        return self.exclusive(result) and min(holders)[1] != claim.claim_uid

    def covering(self, claim):
        """The Pods whose Pod-level requests contain what a claim adds, in both books."""
        return [*self.pods_of(claim), *self.speakers(claim)]

    def counted_pods(self, claim, rules=None):
        pods = self.pods_of(claim)
        if (rules or self.rules) == "1.36":
            pods = [pod for pod in pods if not self.preallocated(claim, pod)]
        return pods

    def counted_results(self, claim):
        """``(result, device, refused)`` of a claim; a share that is listed twice counts once."""
        seen = set()
        for result in self.holds(claim):
            share = result.device_id, result.share_id
            yield result, self.last(result.device_id), self.loser(claim, result) or share in seen
            seen.add(share)

    def _derived(self):
        for claim in self.claims.values():
            pods = self.counted_pods(claim)
            if not pods:
                continue
            results = list(self.counted_results(claim))
            for result, device, refused in results:
                amounts = added(device, result, self.rules) or {}
                amounts = {(r, numa_of(device)): a for r, a in amounts.items() if a and legal(a)}
                key = f"claim/{claim.claim_uid}/{result.device_id}/{result.share_id}"
                if refused and amounts:
                    self.refused.append(("derived", key, claim.claim_uid))
                elif amounts:
                    self.contribute(
                        "derived", key, "claims", pods[0], amounts, among=self.covering(claim), claim_uid=claim.claim_uid,
                        device_id=result.device_id,
                    )  # fmt: skip
            for pod in pods:
                extra = {}
                for _, device, refused in results:
                    for (r, a), times in () if refused else self.overheads(device, pod, claim):
                        add(extra, {(r, numa_of(device)): a * times})
                self.contribute(
                    "derived", f"overhead/{claim.claim_uid}/{pod.pod_uid}", "overhead", pod, extra,
                    claim_uid=claim.claim_uid,
                )  # fmt: skip

    def overheads(self, device, pod, claim, rules=None):
        """``((resource, amount), times)`` for what a device costs a Pod and its containers."""
        for resource, members in members_of(device, rules or self.rules).items():
            if not kept(resource) or (rules or self.rules) == "1.36":
                continue
            for member, times in (("perPod", 1), ("perContainer", len(self.references(pod, claim)))):
                if member in members and legal(number(members[member])):
                    yield (resource, number(members[member])), times

    def _device_books(self):
        for device_id, device in self.devices.items():
            prefix, bucket = f"{device.driver}/{device.pool}:", numa_of(device)
            have = {(f"{prefix}{name}", bucket): number(text) for name, text in device.capacity.items()}
            have[f"{prefix}devices", bucket] = Fraction(1)
            self.post(Line("devices", f"device/{device_id}", "supply", have, device_id=device_id))
        for (driver, pool), fact in self.pools.items():
            have = {}
            for group, counter, text in fact.counters:
                add(have, {(f"{driver}/{pool}:{group}/{counter}", UNKNOWN): number(text)})
            self.post(Line("counters", f"counters/{driver}/{pool}", "supply", have))
        held = defaultdict(list)
        for uid, claim in sorted(self.claims.items()):
            for result in self.holds(claim):
                held[result.device_id].append((uid, result))
        for device_id, holders in held.items():
            self._use(device_id, holders)

    def _use(self, device_id, holders):
        device = self.last(device_id)
        if any(self.exclusive(r) for _, r in holders):
            holders = sorted(holders, key=lambda held: not self.pods_of(self.claims[held[0]]))
        first = holders[0][1]
        prefix, bucket = f"{first.driver}/{first.pool}:", numa_of(device)
        alone = [(uid, r) for uid, r in holders if self.exclusive(r)]
        whole = {(f"{prefix}devices", bucket): Fraction(1)}
        if alone and device is not None:
            add(whole, {(f"{prefix}{name}", bucket): number(text) for name, text in device.capacity.items()})
        self.post(Line("devices", f"use/{device_id}", "claims", whole, device_id=device_id))
        for uid in sorted({uid for uid, _ in alone} - {holders[0][0]}):
            self.refused.append(("devices", f"use/{device_id}", uid))
        if len({uid for uid, _ in alone}) > 1:
            self.conflicts.add(device_id)
        for uid, result in holders:
            if not self.exclusive(result):
                said = (result.consumed or {}).items()
                consumed = {(f"{prefix}{name}", bucket): number(text) for name, text in said}
                key = f"use/{device_id}/{uid}/{result.share_id}"
                self.post(Line("devices", key, "claims", consumed, claim_uid=uid, device_id=device_id))
        if device is not None:
            cost = {}
            for group, counter, text in device.consumes_counters:
                add(cost, {(f"{prefix}{group}/{counter}", bucket): number(text)})
            self.post(Line("counters", f"use/{device_id}", "claims", cost, device_id=device_id))

    def _adjust(self, book, pod):
        """What rounding once for each Pod adds, and the floor under a sum."""
        asked, overhead = self.asked(pod), read(pod.overhead)
        claims, shown = {}, {r: nano(a) for r, a in asked.items()}
        for line in self.lines:
            if line.book == book and line.pod_uid == pod.pod_uid:
                for (resource, _), amount in line.exact.items():
                    add(claims, {resource: amount})
                for (resource, _), amount in line.amounts.items():
                    add(shown, {resource: amount})
        total = add(dict(asked), claims)
        refused = {*own_requests(pod), *overhead} - {*asked}
        larger(total, {r: a + overhead.get(r, 0) for r, a in actuated_floor(pod).items() if r not in refused})
        rest = {(r, UNKNOWN): up(r, a) - shown.get(r, Fraction(0)) for r, a in total.items() if legal(a)}
        self.post(Line(book, f"adjustment/{pod.pod_uid}", "adjustment", rest, pod_uid=pod.pod_uid))

    def entries(self):
        return {(line.book, line.key): line for line in self.lines}
