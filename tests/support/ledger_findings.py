"""What the naive ledger makes of its books: drift with its cause, holds, alerts, the class of the node.

Like ``ledger_oracle`` it follows docs/ledger.md and works everything out anew; it must not import ``streams.ledger``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ledger_arithmetic import (
    UNKNOWN,
    add,
    added,
    legal,
    members_of,
    nano,
    numa_of,
    number,
    whole_requests,
)
from ledger_conditions import conditions, fell_at, had_mapping

from sickbay import facts as f


@dataclass(frozen=True)
class Found:
    """One difference between the books."""

    about: str
    cause: str
    recorded: tuple
    derived: tuple
    exact: tuple
    predicted: bool


@dataclass
class Comparison:
    """The two books, and what is truly used, of one claim or of what it costs one Pod."""

    about: str
    #: ``None`` for the claim's mapping.
    pod: f.PodObserved | None
    #: Those that the claim belongs to.
    pods: list
    recorded: dict
    derived: dict
    exact: dict


def shown(amounts):
    return tuple(sorted((r, nano(a)) for r, a in amounts.items() if a))


def by_resource(line):
    """What a line adds or covers, by resource."""
    total = {}
    for (resource, _), amount in itertools.chain(line.amounts.items(), line.covered.items()):
        add(total, {resource: amount})
    return total


class Findings:
    """Drift, holds and alerts of one moment."""

    def __init__(self, oracle, told=frozenset(), *, now_ms=None):
        #: What differences were told of before: one that was told stands for as long as there is any.
        self.before = told
        self.oracle, self.world = oracle, oracle.world()
        self.policy, self.now_ms = oracle.policy, oracle.now_ms if now_ms is None else now_ms
        self.told = self.world.told

    # -- drift

    def drifts(self):
        """Every difference that lasts, or was told and still is, by what it is about; of several claims of a name, the first."""
        differences = []
        for claim in sorted(self.world.claims.values(), key=lambda c: c.claim_uid):
            differences += self.of_claim(claim)
        for _, pod in sorted(self.world.pods.items()):
            differences += self.of_unknown_claims(pod)
        found = {}
        for drift, since_ms in differences:
            if self.now_ms >= since_ms + self.policy.ledger.drift_grace_ms:
                found.setdefault(drift.about, drift)
        for drift, _ in differences:
            if drift.about in self.before:
                found.setdefault(drift.about, drift)
        return found

    def since(self, claim, pods):
        """When the newest of the things that a difference rests on became true."""
        sources = [("pod", pod.pod_uid) for pod in pods]
        if claim is not None:
            sources.append(("claim", claim.claim_uid))
            sources += [("device", r.device_id) for r in self.world.holds(claim)]
        return max(self.told[s][-1][0] for s in sources if s in self.told)

    def of_unknown_claims(self, pod):
        """What the status of a Pod says of claims that are not known, since they went or the Pod says so."""
        world = self.world
        for part, name in {p: e.claim for p, c, e in world.recorded_entries(pod) if c is None}.items():
            said = sum_of(world.lines, "recorded", f"claim/{part}", f"overhead/{part}")
            gone = [
                log[-1][0]
                for log in self.told.values()
                if isinstance(log[-1][1], f.ClaimGone)
                and (log[-1][1].namespace, log[-1][1].claim) == (pod.namespace, name)
            ]
            gone += [
                claim.observed_at_ms
                for claim in world.claims.values()
                if (claim.namespace, claim.claim) == (pod.namespace, name)
            ]
            if said:
                about = f"{pod.namespace}/{name}@{pod.pod_uid}"
                yield (
                    Found(about, "claim_unknown", shown(said), (), (), False),
                    max([self.since(None, [pod]), *gone]),
                )

    def of_claim(self, claim):
        """The differences of one claim, each with the time since when it may be told."""
        world, lines = self.world, self.world.lines
        mine, speakers = world.pods_of(claim), world.speakers(claim)
        since_ms = self.since(claim, [*mine, *speakers])
        key, name = f"claim/{claim.claim_uid}", f"{claim.namespace}/{claim.claim}"
        mapping = Comparison(
            name, None, mine, sum_of(lines, "recorded", key), sum_of(lines, "derived", key),
            self.reading(claim, None, "exact") if mine else {},
        )  # fmt: skip
        found = [self.compare(claim, mapping)]
        for pod in sorted({p.pod_uid: p for p in [*mine, *speakers]}.values(), key=lambda p: p.pod_uid):
            key = f"overhead/{claim.claim_uid}/{pod.pod_uid}"
            overhead = Comparison(
                f"{name}@{pod.pod_uid}", pod, [pod] if pod in mine else [],
                sum_of(lines, "recorded", key), sum_of(lines, "derived", key),
                self.reading(claim, pod, "exact") if pod in mine else {},
            )  # fmt: skip
            found.append(self.compare(claim, overhead))
        return [(drift, since_ms) for drift in found if drift is not None]

    def compare(self, claim, seen):
        recorded, derived, exact = shown(seen.recorded), shown(seen.derived), shown(seen.exact)
        predicted = recorded == derived
        if predicted and recorded == exact:
            return None
        cause = self.cause(claim, seen, predicted=predicted)
        return Found(seen.about, cause, recorded, derived, exact, predicted)

    def reading(self, claim, pod, rules, device_of=None):
        """What the claim adds, or costs one Pod, under some rules and by some publications of its devices."""
        total = {}
        for result, device, refused in self.world.counted_results(claim):
            chosen = device if device_of is None else device_of(result)
            if chosen is None or (refused and not self.stands_alone(claim, result, device_of)):
                continue
            if pod is None:
                add(total, {r: a for r, a in (added(chosen, result, rules) or {}).items() if legal(a)})
            else:
                for (resource, amount), times in self.world.overheads(chosen, pod, claim, rules):
                    add(total, {resource: amount * times})
        return total

    def stands_alone(self, claim, result, device_of):
        """Whether the reading is one without other claims, and the result is refused for their sake and not as a repeat."""
        first = next(
            r
            for r in self.world.holds(claim)
            if (r.device_id, r.share_id) == (result.device_id, result.share_id)
        )
        return device_of == self.world.last_of and self.world.loser(claim, result) and result is first

    def cause(self, claim, seen, *, predicted):
        """The first cause of the table that fits."""
        world, held, rules = self.world, self.world.holds(claim), self.world.rules
        recorded = shown(seen.recorded)
        devices = [world.last(r.device_id) for r in held]
        said = [e for p in world.speakers(claim) for _, c, e in world.recorded_entries(p) if c is claim]
        if (
            any(e.shape == "unknown" or e.unknown_fields for e in said)
            or any(d is not None and d.node_allocatable_shape == "unknown" for d in devices)
            or any(added(d, r, "exact") is None for r, d in zip(held, devices, strict=True))
        ):
            return "shape_unknown"
        foreign = {d.node_allocatable_shape for d in devices if d is not None} - {None, "unknown", rules}
        read_as_is = shown(self.reading(claim, seen.pod, "exact")) == recorded
        if rules != "exact" and foreign and (predicted or read_as_is):
            return "not_emulated"
        if not recorded and seen.pods:
            if all(world.preallocated(claim, p) for p in seen.pods):
                return "allocated_before_counting"
            if self.misspelt(claim) and not shown(self.reading(claim, seen.pod, "1.36")):
                return "key_spelling"
            if not any(
                e.mapping or e.per_pod or e.per_container or e.shape == "unknown" or e.unknown_fields
                for p in seen.pods
                for e in p.node_allocatable or ()
            ):
                return "not_counted"
        alone = shown(self.reading(claim, seen.pod, rules, world.last_of)) == recorded
        if alone and any(world.loser(claim, r) for r in held):
            return "device_conflict"
        if any(r.device_id not in world.devices for r in held):
            return "slice_missing"
        if recorded and self.unmapped(claim, devices):
            return "mapping_missing"
        if not predicted and shown(self.reading(claim, seen.pod, rules)) != recorded:
            moments = {t for d in devices for t, _ in self.told["device", d.device_id]}
            if any(shown(self.reading(claim, seen.pod, rules, self.at(t))) == recorded for t in moments):
                return "mapping_changed"
        if recorded and any(
            shown(self.reading(claim, seen.pod, "exact", o)) == recorded for o in self.namesakes(held)
        ):
            return "driver_ignored"
        if self.misspelt(claim) and shown(self.reading(claim, seen.pod, "1.36")) == recorded:
            return "key_spelling"
        return "not_counted" if predicted else "unexplained"

    def misspelt(self, claim):
        """Whether a device of the claim names its own capacity otherwise than it publishes it."""
        return any(
            "capacityKeySpelling" in members
            for r in self.world.holds(claim)
            for members in members_of(self.world.last(r.device_id), "exact").values()
        )

    def unmapped(self, claim, devices):
        """Whether devices have no mapping that one of them had since the allocation, or none of them has any."""
        bare = [d for d in devices if d.node_allocatable_shape is None]
        since_ms = self.world.allocated_ms(claim)
        return any(had_mapping(self.told["device", d.device_id], since_ms) for d in bare) or (
            bare and len(bare) == len(devices)
        )

    def at(self, moment):
        """How devices were published at a time."""

        def choose(result):
            log = [x for t, x in self.told.get(("device", result.device_id), []) if t <= moment]
            return next((x for x in reversed(log) if isinstance(x, f.DevicePublished)), None)

        return choose

    def namesakes(self, held):
        """Readings in which results mean the device of the same pool and name that another driver has: one, some or all."""
        published = [self.world.last(rest[0]) for kind, *rest in self.told if kind == "device"]
        meant = [
            [self.world.last(r.device_id)]
            + [
                d
                for d in published
                if d is not None and (d.pool, d.device) == (r.pool, r.device) and d.driver != r.driver
            ]
            for r in held
        ]
        for chosen in itertools.product(*meant):
            if any(d is not None and d.driver != r.driver for r, d in zip(held, chosen, strict=True)):
                yield lambda r, c=chosen: next(d for h, d in zip(held, c, strict=True) if h is r)

    # -- alerts

    def alerts(self):
        """``(kind, about)`` of everything that should be raised."""
        raised = {("device_conflict", device_id) for device_id in self.world.conflicts}
        for claim in self.world.claims.values():
            raised |= {(kind, f"{claim.namespace}/{claim.claim}") for kind in self.placement(claim)}
        return raised | self.duplicates()

    def placement(self, claim):
        """``numa_spanned`` and ``numa_missed`` of a claim."""
        names, held = self.policy.reading.numa_attributes, self.world.holds(claim)
        for asked in claim.together:
            sits = self.buckets(r for r in held if not asked.requests or r.request in asked.requests)
            if asked.attribute not in names:
                continue
            if len({*sits} - {UNKNOWN}) > 1:
                yield "numa_spanned"
            elif len(sits) > 1 and UNKNOWN in sits:
                yield "numa_missed"
        for asked in claim.selected:
            if asked.attribute in names and {*self.buckets(r for r in held if r.request == asked.request)} - {
                str(asked.value)
            }:
                yield "numa_missed"

    def buckets(self, results):
        """Where the devices are that this node ever published."""
        devices = [self.world.last(r.device_id) for r in results]
        return [numa_of(d) for d in devices if d is not None]

    def duplicates(self):
        """Claims whose amount a container that refers to them asks for by itself once more."""
        raised = set()
        for claim in self.world.claims.values():
            total = self.reading(claim, None, self.world.rules)
            for pod in self.world.counted_pods(claim):
                refer = (
                    self.world.references(pod, claim) if claim.claim in {c.claim for c in pod.claims} else ()
                )
                asked = [
                    (r, number(t))
                    for c in pod.containers
                    if c.name in refer
                    for r, t in c.requests.items()
                    if r not in whole_requests(pod)
                ]
                if any(total.get(r) == a != 0 for r, a in asked):
                    raised.add(("probable_duplicate", f"{claim.namespace}/{claim.claim}@{pod.pod_uid}"))
        return raised

    # -- holds

    def holds(self):
        """``(reason, scope)`` of everything that makes new claims wait."""
        found = set(conditions(self.world, self.policy))
        for driver, pool in self.world.pools:
            if self.rebuilding(driver, pool):
                found.add(("driver_rebuilding", f"{driver}/{pool}"))
        for (kind, *_), log in self.told.items():
            _, fact = log[-1]
            if (kind == "lease" and isinstance(fact, f.NodeLeaseLapsed) and not self.is_newer(fact)) or (
                kind == "node" and isinstance(fact, f.NodeGone)
            ):
                found.add(("slice_stale", ""))
            elif kind == "gap" and self.now_ms < fact.to_ms + self.policy.ledger.recheck_ms:
                found.add(("watch_gap", fact.watched))
            elif kind == "gate":
                # a request to open that names a ledger names one that never was, in these histories
                request = [x for _, x in log if x.closed or not x.ledger_version][-1:]
                driver = fact.scope.removeprefix("driver:")
                if request and request[0].closed and (driver == fact.scope or driver in self.drivers):
                    found.add(("claims_gate_closed", fact.scope))
        want = self.policy.ledger.hold_on_drift
        for drift in self.drifts().values():
            if want == "any" or (want == "unexplained" and drift.cause == "unexplained"):
                found.add(("drift", drift.about))
        return found

    def is_newer(self, lapse):
        """Whether the machine that is here came after the lapse of a Lease: its predecessor's."""
        log = self.told.get(("node",), [])
        if not log or not isinstance(log[-1][1], f.NodeObserved):
            return False
        same = itertools.takewhile(
            lambda item: isinstance(item[1], f.NodeObserved) and item[1].node_uid == log[-1][1].node_uid,
            reversed(log),
        )
        return lapse.observed_at_ms < min(t for t, _ in same)

    def rebuilding(self, driver, pool):
        """Whether a pool is gone since a short time, or is back and all was not yet well for long enough."""
        log, windows = self.told["pool", driver, pool], self.policy.ledger
        states = [(t, x.newest_generation is not None, x.effective_generation is not None) for t, x in log]
        at_ms, present, _ = states[-1]
        if not present:
            return any(e for _, _, e in states[:-1]) and self.now_ms < at_ms + windows.slice_stale_ms
        backs = [t for (_, before, _), (t, now, _) in itertools.pairwise(states) if now and not before]
        if not backs:
            return False
        settle, well_ms = windows.rebuild_settle_ms, None
        for at_ms in sorted(
            {t for s, log in self.told.items() if s[0] != "pod" for t, _ in log if t >= backs[-1]}
        ):
            if well_ms is not None and at_ms >= well_ms + settle:
                return False
            wrong = conditions(self.oracle.world(at_ms), self.policy, pool=(driver, pool))
            if wrong - {("generation_back", f"{driver}/{pool}")}:
                well_ms = None
            elif well_ms is None or fell_at(log, at_ms):
                well_ms = at_ms
        return well_ms is None or self.now_ms < well_ms + settle

    @property
    def node_class(self):
        label = self.policy.ledger.canary_label
        node = self.world.node
        canary = (
            isinstance(node, f.NodeObserved) and node.labels.get(label) in self.policy.ledger.canary_values
        )
        return "canary" if canary else "stable"

    @property
    def drivers(self):
        return tuple(
            sorted({driver for (driver, _), x in self.world.pools.items() if x.newest_generation is not None})
        )

    @property
    def known(self):
        """Whether there is a node to judge."""
        return bool(self.world.pools) or ("node",) in self.told


def sum_of(lines, book, *keys):
    """By resource, what the lines under some keys, or under those that begin with them, add or cover."""
    total = {}
    for line in lines:
        if line.book == book and any(line.key == key or line.key.startswith(f"{key}/") for key in keys):
            add(total, by_resource(line))
    return total
