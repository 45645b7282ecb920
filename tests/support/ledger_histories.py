"""Generated histories of one node for the ledger: few names, so that they collide; few amounts, so that they agree by chance."""

from __future__ import annotations

import ledger_facts as f
from hypothesis import strategies as st

from sickbay.facts import Selected, Together
from sickbay.policy import policy_from_yaml

DAY_MS = 86_400_000
SPAN_MS = 200_000
START_MS = 1_000_000


def _policy(emulate, hold_on_drift):
    return policy_from_yaml(
        f"""
version: {emulate}-{hold_on_drift}
ledger:
  emulate: "{emulate}"
  hold_on_drift: {hold_on_drift}
  slice_stale_ms: 20000
  rebuild_settle_ms: 12000
  recheck_ms: 8000
  drift_grace_ms: 5000
""",
        place="ledger histories",
    )


EXACT, OLD, NEW = _policy("exact", "unexplained"), _policy("1.36", "any"), _policy("1.37", "never")
policies = st.sampled_from([EXACT, OLD, NEW])

_cpu = st.sampled_from(["1", "2", "4", "500m", "100m", "1"])
_memory = st.sampled_from(["1Gi", "2Gi", "1Gi"])
_odd = st.sampled_from(["1500u", "3n", "-1", "1e19"])
_pods = st.sampled_from(["a", "b", "c"])
#: Name and uid; the last one takes the name of the first.
_claims = st.sampled_from([("c0", "cu-0"), ("c1", "cu-1"), ("c2", "cu-2"), ("c0", "cu-3")])
_names = st.sampled_from(["c0", "c1", "c2"])
_devices = st.sampled_from([(f.CPU, "d0"), (f.CPU, "d1"), (f.GPU, "d0"), (f.GPU, "g1"), (f.GPU, "g2")])
_drivers = st.sampled_from([f.CPU, f.GPU])
COUNTERS = (("set", "memory", "40Gi"), ("set", "slots", "8"))


@st.composite
def amounts(draw, *, odd=False):
    """Node resource to amount."""
    found = {}
    if draw(st.booleans()):
        found["cpu"] = draw(_cpu)
    if draw(st.booleans()):
        found["memory"] = draw(_memory)
    if draw(st.integers(0, 9)) == 0:
        found[draw(st.sampled_from(["ephemeral-storage", "hugepages-2Mi", "example.com/nic"]))] = "1Gi"
    if odd and draw(st.integers(0, 11)) == 0:
        found["cpu"] = draw(_odd)
    return found


_maybe = st.one_of(st.none(), st.none(), amounts())


@st.composite
def containers(draw, refers):
    """Containers of a Pod: one or two that run, perhaps a sidecar and an init container before them."""
    made = []
    for name in draw(
        st.sampled_from([("main",), ("main",), ("main", "side"), ("init", "main"), ("init", "car", "main")])
    ):
        init = name in ("init", "car")
        made.append(
            f.container(
                name, draw(amounts(odd=True)), *(c for c in refers if draw(st.booleans())),
                init=init, restartable=name == "car",
                allocated=None if name == "init" else draw(_maybe),
                actuated=None if name == "init" else draw(_maybe),
            )
        )  # fmt: skip
    return made


@st.composite
def status(draw, refers):
    """The node-allocatable part of a Pod's status."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([None, None, ()]))
    entries = []
    for name in [*refers, *draw(st.lists(_names, max_size=1))]:
        shape = draw(st.sampled_from(["1.36"] * 4 + ["1.37"] * 4 + ["unknown"]))
        more = {}
        if shape != "1.36" and draw(st.booleans()):
            more = {"per_pod": draw(amounts()), "per_container": draw(amounts())}
        if shape == "unknown":
            more["unknown_fields"] = ("status.later",)
        entries.append(
            f.entry(
                name, draw(amounts()), shape=shape,
                containers=draw(st.sampled_from([("main",), ("main",), (), ("main", "side")])), **more,
            )
        )  # fmt: skip
    if draw(st.integers(0, 11)) == 0:
        entries.append(f.entry("<extended-resources>", {"cpu": "1"}, shape="1.37"))
    return tuple(entries)


@st.composite
def pods(draw, at_ms, rv):
    refers = sorted(set(draw(st.lists(_names, max_size=2))))
    return f.pod(
        at_ms, rv, draw(_pods), *draw(containers(refers)), claims=refers,
        phase=draw(st.sampled_from(["Running"] * 6 + ["Pending", "Unknown", "Succeeded", "Failed"])),
        node=draw(st.sampled_from([f.NODE] * 9 + [""])),
        deletion_requested_at_ms=draw(st.sampled_from([None, None, None, at_ms])),
        overhead=draw(st.sampled_from([{}, {}, {"cpu": "250m"}, {"memory": "1Mi"}])),
        pod_level_requests=draw(st.sampled_from([None, None, None, {"cpu": "8"}, {"memory": "4Gi", "ephemeral-storage": "1Gi"}])),
        resize=draw(st.sampled_from(["", "", "", "Infeasible", "Deferred"])),
        extended_claim=draw(st.sampled_from([None, None, None, "c2"])),
        node_allocatable=draw(status(refers)),
    )  # fmt: skip


@st.composite
def results(draw):
    driver, device = draw(_devices)
    shared = driver == f.CPU and draw(st.integers(0, 5)) > 0
    consumed = draw(
        st.sampled_from([
            {f.CORES: "1"}, {f.CORES: "2"}, {f.CORES: "2", f"{f.CPU}/memory": "1Gi"}, {f"{f.CPU}/memory": "1Gi"}, {},
            {f.CORES: "1500u"}, None,
        ])
    )  # fmt: skip
    return f.result(
        driver, device, consumed if shared else None,
        share=draw(st.sampled_from(["s0", "s1"])) if shared else "",
        request=draw(st.sampled_from(["r", "q"])), admin=draw(st.integers(0, 7)) == 0,
    )  # fmt: skip


_together = st.sampled_from([
    (), (), (), (Together(attribute="resource.kubernetes.io/numaNode"),),
    (Together(attribute="resource.kubernetes.io/numaNode", requests=("r",)),),
    (Together(attribute=f"{f.GPU}/model"),),
])  # fmt: skip
_selected = st.sampled_from([
    (), (), (), (Selected(request="r", attribute="resource.kubernetes.io/numaNode", value=0),),
    (Selected(request="r", attribute=f"{f.GPU}/slot", value=1),),
])  # fmt: skip


@st.composite
def claims(draw, at_ms, rv, before):
    """A claim; often with the allocation that it had already, as another version of it."""
    name, uid = draw(_claims)
    if uid in before and draw(st.booleans()):
        held = before[uid]
    else:
        held = tuple(draw(st.lists(results(), max_size=3)))
    before[uid] = held
    extended = name == "c2" and draw(st.booleans())
    return f.claim(
        at_ms, rv, name, *held, uid=uid, pods=() if extended else draw(st.lists(_pods, max_size=2, unique=True)),
        group=draw(st.sampled_from([None] * 7 + ["workers"])),
        owner=draw(st.sampled_from(["", "", "Pod/uid-a", "Pod/uid-b", "Job/j"])),
        extended_resource=extended,
        spans_nodes=draw(st.booleans()),
        together=draw(_together), selected=draw(_selected),
    )  # fmt: skip


_OLD_MAPPINGS = [
    {"cpu": {"capacityKey": f.CORES}}, {"cpu": {"capacityKey": f.CORES, "allocationMultiplier": "2"}},
    {"cpu": {"capacityKey": f.CORES, "capacityKeySpelling": "cores", "allocationMultiplier": "500m"}}, {"cpu": {"allocationMultiplier": "1"}},
    {"cpu": {"allocationMultiplier": "500m"}, "memory": {"allocationMultiplier": "1Gi"}}, {"cpu": {}},
    {"memory": {"capacityKey": f"{f.CPU}/memory"}, "ephemeral-storage": {"allocationMultiplier": "1Gi"}},
    {"cpu": {"capacityKey": f.CORES, "allocationMultiplier": "1u"}},
]  # fmt: skip
_NEW_MAPPINGS = [
    {"cpu": {"capacityKey": f.CORES, "capacityMultiplier": "1"}},
    {"cpu": {"capacityKey": f.CORES, "capacityMultiplier": "500m", "perPod": "100m"}},
    {"cpu": {"deviceMultiplier": "2"}, "memory": {"perPod": "1Gi", "perContainer": "1Gi"}},
    {"memory": {"perPod": "1Gi"}}, {"cpu": {"perContainer": "500m"}}, {"memory": {"deviceMultiplier": "1Gi"}},
    {"cpu": {"deviceMultiplier": "1"}, "ephemeral-storage": {"deviceMultiplier": "1Gi"}},
]  # fmt: skip


@st.composite
def devices(draw, at_ms, rv):
    driver, device = draw(_devices)
    shape = draw(st.sampled_from([None] + ["1.36"] * 6 + ["1.37"] * 6 + ["unknown"]))
    mapping = {}
    if shape is not None:
        mapping = draw(st.sampled_from(_OLD_MAPPINGS if shape == "1.36" else _NEW_MAPPINGS))
    if shape == "unknown":
        mapping = draw(st.sampled_from([{}, mapping]))
    shared = driver == f.CPU and draw(st.integers(0, 7)) > 0
    return f.published(
        at_ms, rv, driver, device, shape=shape, node_allocatable=mapping, allow_multiple=shared,
        numa=draw(st.sampled_from([(), (0,), (1,), (0,), (0, 1), (6, 4, 5)])),
        capacity={f.CORES: "4", f"{f.CPU}/memory": "8Gi"} if driver == f.CPU else {f"{f.GPU}/memory": "40Gi"},
        consumes_counters=(("set", "slots", "4"),) if device in ("d1", "g1") else (),
    )  # fmt: skip


@st.composite
def pools(draw, at_ms, rv, before):
    """A state of a pool; a generation that counted counts until another does or its slices are gone."""
    driver = draw(_drivers)
    counters = draw(st.sampled_from([(), COUNTERS, COUNTERS]))
    kind = draw(st.sampled_from(["good", "good", "good", "partial", "invalid", "gone", "gone"]))
    newest = draw(st.integers(1, 4))
    effective = newest if kind == "good" else None if kind == "gone" else before.get(driver)
    before[driver] = effective
    return f.pool(
        at_ms, rv, driver, effective=effective, newest=None if kind == "gone" else newest,
        complete=kind not in ("partial", "gone"), invalid="device d0 twice" if kind == "invalid" else "",
        counters=() if kind == "gone" else counters,
    )  # fmt: skip


@st.composite
def gates(draw, at_ms, index):
    closed = draw(st.booleans())
    scope = draw(st.sampled_from(["node", "cluster", f"driver:{f.CPU}"]))
    version = "0000000000000000" if not closed and scope == "node" and draw(st.booleans()) else ""
    return f.gate(at_ms, closed=closed, scope=scope, request=f"gate-{index:03}", version=version)


_KINDS = (
    ["pod"] * 7 + ["claim"] * 7 + ["device"] * 6 + ["pool"] * 3 + ["pod-gone", "claim-gone", "withdrawn", "withdrawn"]
    + ["node", "node", "replaced", "node-gone", "lapsed", "resumed", "gap", "gate", "gate", "tick", "tick"]
)  # fmt: skip


@st.composite
def beginnings(draw):
    """A node at work: two Pods with a claim each, whose amounts the scheduler wrote down as the devices say, or nearly so."""
    cores, factor = draw(st.sampled_from(["1", "2"])), draw(st.sampled_from([1, 1, 2]))
    old = draw(st.booleans())
    member, shape = ("allocationMultiplier", "1.36") if old else ("capacityMultiplier", "1.37")
    mapping = {"cpu": {"capacityKey": f.CORES, member: str(factor)}}
    extra = {} if old else {"memory": {"perPod": "1Gi", "perContainer": "1Gi"}}
    told = draw(st.sampled_from([str(int(cores) * factor)] * 3 + ["1"]))
    more = {} if old else {"per_pod": {"memory": "1Gi"}, "per_container": {"memory": "1Gi"}}
    held = (f.result(f.CPU, "d0", {f.CORES: cores}, share="s0"),)
    facts = [
        f.node(START_MS, 1, cpu="24", memory="64Gi"),
        f.pool(START_MS, 2, f.CPU),
        f.pool(START_MS, 3, f.GPU, counters=COUNTERS),
        f.published(
            START_MS, 4, f.CPU, "d0", shape=shape, node_allocatable={**mapping, **extra}, allow_multiple=True,
            numa=(0,), capacity={f.CORES: "4"},
        ),
        f.published(START_MS, 5, f.GPU, "d0", shape="1.36", node_allocatable={"cpu": {"allocationMultiplier": "1"}}),
        f.published(
            START_MS, 6, f.GPU, "g1", shape=shape, numa=(1,), consumes_counters=(("set", "slots", "4"),),
            node_allocatable={"memory": {"allocationMultiplier" if old else "deviceMultiplier": "1Gi"}},
        ),
        f.claim(START_MS, 7, "c0", *held, uid="cu-0", pods=draw(st.sampled_from([("a",), ("a",), ("a", "b"), ("b",)]))),
        f.claim(START_MS, 8, "c1", f.result(f.GPU, "g1"), uid="cu-1", pods=("b",)),
        f.pod(
            START_MS, 9, "a", claims=("c0",),
            node_allocatable=draw(st.sampled_from([(f.entry("c0", {"cpu": told}, shape=shape, **more),)] * 3 + [None])),
        ),
        f.pod(START_MS, 9, "b", claims=("c1",), node_allocatable=(f.entry("c1", {"memory": "1Gi"}, shape=shape),)),
    ]  # fmt: skip
    return facts, {f.CPU: 1, f.GPU: 1, "cu-0": held, "cu-1": (f.result(f.GPU, "g1"),)}


@st.composite
def histories(draw, *, size=None, max_size=25):
    """A list of facts in order of event time; versions of each object rise with it, as an API server gives them.

    With a ``size`` it has so many facts after its beginning.
    """
    size = draw(st.integers(1, max_size)) if size is None else size
    at_ms, (facts, before) = START_MS, draw(st.one_of(beginnings(), beginnings(), st.just(([], {}))))
    facts, before = list(facts), dict(before)
    for index in range(size):
        at_ms = min(
            at_ms + draw(st.one_of(st.integers(0, 3_000), st.integers(0, 20_000))), START_MS + SPAN_MS
        )
        facts.append(draw(_fact(draw(st.sampled_from(_KINDS)), at_ms, 10 + index, index, before)))
    return facts


@st.composite
def _fact(draw, kind, at_ms, rv, index, before):
    match kind:
        case "pod":
            return draw(pods(at_ms, rv))
        case "claim":
            return draw(claims(at_ms, rv, before))
        case "device":
            return draw(devices(at_ms, rv))
        case "pool":
            return draw(pools(at_ms, rv, before))
        case "pod-gone":
            return f.pod_gone(at_ms, rv, draw(_pods))
        case "claim-gone":
            name, uid = draw(_claims)
            before.pop(uid, None)
            return f.claim_gone(at_ms, rv, name, uid=uid)
        case "withdrawn":
            return f.withdrawn(at_ms, rv, *draw(_devices))
        case "node":
            labels = draw(
                st.sampled_from([{}, {"sickbay.dev/rollout": "canary"}, {"sickbay.dev/rollout": "no"}])
            )
            return f.node(
                at_ms,
                rv,
                labels=labels,
                cpu=draw(st.sampled_from(["24", "8", "0"])),
                memory="64Gi",
                hugepages_2Mi="1Gi",
            )
        case "replaced":
            return f.node(at_ms, rv, uid=f"node-uid-{index}", cpu="16")
        case "node-gone":
            return f.node_gone(at_ms, rv)
        case "lapsed":
            return f.lapsed(at_ms, rv)
        case "resumed":
            return f.resumed(at_ms, rv)
        case "gap":
            return f.gap(at_ms, watched=draw(st.sampled_from(["pods", "resourceslices"])))
        case "gate":
            return draw(gates(at_ms, index))
        case _:
            return f.tick(at_ms)


def end_of(facts):
    """A tick past every deadline of a history."""
    return f.tick(max(x.observed_at_ms for x in facts) + 3 * DAY_MS)
