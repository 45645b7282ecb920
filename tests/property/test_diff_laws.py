"""Laws of the mirror: repeats, orders and relists change nothing, and nothing it is fed can stop it."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.diff import Mirror
from ingest.frames import Frame, FrameType
from ingest.observe import (
    claim_fingerprint,
    node_fingerprint,
    observe_claim,
    observe_node,
    observe_pod,
    observe_slice,
    pod_fingerprint,
    slice_fingerprint,
)
from sickbay.codec import encode_payload, fact_id
from sickbay.errors import ObjectError
from sickbay.facts import (
    ClaimGone,
    ClaimObserved,
    DeviceHealthObserved,
    DevicePublished,
    DeviceWithdrawn,
    Fact,
    NodeGone,
    NodeObserved,
    PodGone,
    PodObserved,
    PoolObserved,
    ResyncCompleted,
)
from sickbay.policy import ReadingPolicy

SAMPLES = Path(__file__).parents[1] / "samples"
RESOURCE = {
    "Pod": "pods", "ResourceSlice": "resourceslices", "ResourceClaim": "resourceclaims", "Node": "nodes",
    "Lease": "leases",
}  # fmt: skip
NODES = ("n1", "n2")
Event = tuple[str, FrameType, dict[str, Any]]


def feed(mirror: Mirror, events: list[Event], start_ms: int = 0) -> list[Fact]:
    """Apply events one second apart and return all facts but the completions of LISTs."""
    facts: list[Fact] = []
    for index, (resource, kind, obj) in enumerate(events):
        facts += mirror.apply(
            Frame(
                at_ms=start_ms + index * 1_000, resource=resource, type=kind, object=obj, place=f"law:{index}"
            )
        )
    return [fact for fact in facts if not isinstance(fact, ResyncCompleted)]


def mirror() -> Mirror:
    return Mirror(ReadingPolicy(), 2)


def meta(name: str, rv: int, uid: str = "") -> dict[str, Any]:
    return {"name": name, "namespace": "ml", "uid": uid or f"u-{name}", "resourceVersion": str(rv)}


@st.composite
def pod_versions(draw: st.DrawFn, name: str) -> list[Event]:
    """The life of one Pod: some versions, perhaps a terminal one, perhaps its deletion."""
    node = draw(st.sampled_from(NODES))
    claim = draw(st.sampled_from(["c0", "c1"]))
    # No two versions of one resource share a number.
    rv = 2 * draw(st.integers(1, 5)) + (name == "p1")
    events: list[Event] = []
    count = draw(st.integers(1, 5))
    for index in range(count):
        reports = draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["claim:gpu", "nvidia.com/gpu"]),
                    st.sampled_from(["x=d0", "drv/n1/d1", "common"]),
                    st.sampled_from(["Healthy", "Unhealthy", "Unknown", "odd", None]),
                ),
                max_size=3,
            )
        )
        terminal = index == count - 1 and draw(st.booleans())
        obj = {
            "metadata": meta(name, rv),
            "spec": {
                "nodeName": node,
                "containers": [{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": str(rv)}}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            },
            "status": {
                "phase": "Failed" if terminal else "Running",
                "containerStatuses": [
                    {
                        "name": "a",
                        "allocatedResourcesStatus": [
                            {"name": n, "resources": [{"resourceID": i, "health": h}]} for n, i, h in reports
                        ],
                    }
                ],
            },
        }
        events.append(("pods", "MODIFIED", obj))
        rv += 2 * draw(st.integers(1, 5))
    if draw(st.booleans()):
        last = copy.deepcopy(events[-1][2])
        last["metadata"]["resourceVersion"] = str(rv)
        events.append(("pods", "DELETED", last))
    return events


@st.composite
def claim_versions(draw: st.DrawFn, name: str) -> list[Event]:
    """A claim that is allocated once, perhaps after a version without allocation."""
    devices = draw(st.lists(st.sampled_from(["d0", "d1", "d2"]), min_size=1, max_size=3, unique=True))
    node = draw(st.sampled_from(["", "n1"]))
    allocation: dict[str, Any] = {
        "devices": {
            "results": [{"request": "r", "driver": "drv", "pool": "n1", "device": d} for d in devices]
        }
    }
    if node:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [term]}
    users = draw(st.lists(st.sampled_from(["u-p0", "u-p1"]), max_size=2, unique=True))
    selector = {"cel": {"expression": draw(st.sampled_from(['device.attributes["drv"].numa == 0', "true"]))}}
    constraint = {"matchAttribute": draw(st.sampled_from(["drv/numa", "drv/root"])), "requests": ["r"]}
    spec = {"devices": {"requests": [{"name": "r", "selectors": [selector]}], "constraints": [constraint]}}
    status = {
        "allocation": allocation,
        "reservedFor": [{"resource": "pods", "name": u, "uid": u} for u in users],
    }
    events: list[Event] = []
    if draw(st.booleans()):
        events.append(("resourceclaims", "ADDED", {"metadata": meta(name, 3), "spec": spec, "status": {}}))
    events.append(("resourceclaims", "MODIFIED", {"metadata": meta(name, 4), "spec": spec, "status": status}))
    return events


@st.composite
def slice_versions(draw: st.DrawFn) -> list[Event]:
    """Slices of pool n1, one generation after another, each of one or two slices."""
    events: list[Event] = []
    rv = 1
    for generation in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 2))
        for index in range(count):
            devices = draw(st.lists(st.sampled_from(["d0", "d1", "d2"]), max_size=3, unique=True))
            spec = {
                "driver": "drv", "nodeName": "n1", "devices": [{"name": d} for d in devices],
                "pool": {"name": "n1", "generation": generation, "resourceSliceCount": count},
            }  # fmt: skip
            name = f"s{generation}-{index}"
            events.append(("resourceslices", "ADDED", {"metadata": meta(name, rv), "spec": spec}))
            rv += 1
    return events


@st.composite
def histories(draw: st.DrawFn) -> list[list[Event]]:
    """One list of events for each object watch that is ordered in itself."""
    node = {"metadata": meta("n1", 1), "status": {"capacity": {"cpu": "8"}}}
    return [
        draw(pod_versions("p0")), draw(pod_versions("p1")), draw(claim_versions("c0")), draw(claim_versions("c1")),
        draw(slice_versions()), [("nodes", "ADDED", node)],
    ]  # fmt: skip


@st.composite
def interleavings(draw: st.DrawFn, histories_: list[list[Event]]) -> list[Event]:
    """Any order of all events that keeps each history's own."""
    order = draw(st.permutations([index for index, events in enumerate(histories_) for _ in events]))
    left = [list(events) for events in histories_]
    return [left[index].pop(0) for index in order]


def final(facts: list[Fact]) -> dict[str, bytes]:
    """What a consumer ends up with: the newest fact of each subject on each node, gone subjects left out.

    A word that its Pod ended, and a word that never found its device, are over.
    """
    newest: dict[tuple[str, str], Fact] = {}
    ended: set[str] = set()
    for fact in facts:
        if isinstance(fact, PodGone):
            ended.add(fact.pod_uid)
        source = fact.pod_uid if isinstance(fact, DeviceHealthObserved) else ""
        if isinstance(fact, DevicePublished | DeviceWithdrawn):
            source = "slice"
        key = (fact.node, f"{fact.subject} {source}")
        before = newest.get(key)
        if before is None or (fact.epoch, fact.rv) >= (before.epoch, before.rv):
            newest[key] = fact
    kept = {}
    for (node, subject), fact in newest.items():
        if isinstance(fact, PodGone | ClaimGone | NodeGone | DeviceWithdrawn):
            continue
        if isinstance(fact, DeviceHealthObserved) and (not fact.live or fact.pod_uid in ended):
            continue
        assert isinstance(
            fact,
            PodObserved
            | ClaimObserved
            | NodeObserved
            | PoolObserved
            | DevicePublished
            | DeviceHealthObserved,
        )
        kept[f"{node} {subject}"] = encode_payload(_timeless(fact))
    return kept


def _timeless(fact: Fact) -> Fact:
    """Leave out when it was seen, and under which version a pool or device of a pool was told."""
    raw = json.loads(encode_payload(fact))
    raw["observed_at_ms"] = 0
    if isinstance(fact, PoolObserved | DevicePublished):
        raw.update(rv=0, pool_generation=0, slice_uid="", slices_present=0)
    return msgspec.convert(
        {key: value for key, value in raw.items() if key in type(fact).__struct_fields__}, type(fact)
    )


def silence_free(told: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """Leave out how silence was told, and so the version under which a word came back after one."""
    contents = {key: json.loads(value) for key, value in told.items()}
    return {
        key: content | {"rv": 0} if "absence" in content else content
        for key, content in contents.items()
        if content.get("absence", "") == ""
    }


@st.composite
def versions_of_one(draw: st.DrawFn) -> list[Event]:
    """Versions of one object whose content comes and goes: the same content may return under a newer version."""
    kind = draw(st.sampled_from(["pod", "node", "claim", "slice"]))
    events: list[Event] = []
    for index, choice in enumerate(draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))):
        metadata = meta("o", 10 + index)
        if kind == "pod":
            health = ["Healthy", "Unhealthy", "Unknown"][choice]
            resources = [{"resourceID": "x", "health": health}] if draw(st.integers(0, 4)) else []
            reported = [{"name": "nvidia.com/gpu", "resources": resources}]
            spec = {"nodeName": "n1", "containers": [{"name": "a"}], "priority": choice}
            status = {
                "phase": "Running",
                "containerStatuses": [{"name": "a", "allocatedResourcesStatus": reported}],
            }
            events.append(("pods", "MODIFIED", {"metadata": metadata, "spec": spec, "status": status}))
        elif kind == "node":
            events.append(
                ("nodes", "MODIFIED", {"metadata": metadata, "status": {"allocatable": {"a/b": str(choice)}}})
            )
        elif kind == "claim":
            result = {"request": "r", "driver": "drv", "pool": "n1", "device": f"d{choice}"}
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
            events.append(
                ("resourceclaims", "MODIFIED", {"metadata": metadata, "status": {"allocation": allocation}})
            )
        else:
            taints = [{"key": "drv/xid", "value": str(choice), "effect": "NoSchedule"}] if choice else []
            spec = {
                "driver": "drv", "nodeName": "n1", "devices": [{"name": "d0", "taints": taints}],
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            }  # fmt: skip
            events.append(("resourceslices", "MODIFIED", {"metadata": metadata, "spec": spec}))
    return events


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_newest_fact_is_what_the_newest_version_says_in_any_order(data: st.DataObject) -> None:
    """A version that arrives late never stands as the newest, though equal content is not told twice."""
    events = data.draw(versions_of_one())
    shuffled = data.draw(st.permutations(events))

    assert _settled(final(feed(mirror(), events))) == _settled(final(feed(mirror(), shuffled)))


def _settled(told: dict[str, bytes]) -> dict[str, Any]:
    """Leave out the version that told it, and the details of a word that vanished."""
    contents = {key: json.loads(value) | {"rv": 0} for key, value in told.items()}
    return {key: "silent" if c.get("absence") == "report_vanished" else c for key, c in contents.items()}


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_same_frames_again_emit_nothing(data: st.DataObject) -> None:
    """A second pass over everything that was seen, in the same order, says nothing new."""
    events = data.draw(interleavings(data.draw(histories())))
    world = mirror()
    feed(world, events)
    assert [] == feed(world, events, start_ms=len(events) * 1_000)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_interleaving_ends_alike(data: st.DataObject) -> None:
    """Watches of different resources race; what a consumer ends up with does not depend on who wins (W20)."""
    events = data.draw(histories())
    in_order = [event for history in events for event in history]
    mixed = data.draw(interleavings(events))
    assert silence_free(final(feed(mirror(), in_order))) == silence_free(final(feed(mirror(), mixed)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_event_ids_are_never_used_for_two_contents(data: st.DataObject) -> None:
    """Whatever the order, two facts of one mirror with one id do not exist."""
    facts = feed(mirror(), data.draw(interleavings(data.draw(histories()))))
    assert len(facts) == len({fact_id(fact) for fact in facts})


def _shuffled(value: Any, draw: st.DrawFn, path: tuple[str, ...] = ()) -> Any:
    """Shuffle every list whose order means nothing; that of init containers and of values that are ordered means something."""
    if isinstance(value, dict):
        return {key: _shuffled(item, draw, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        items = [_shuffled(item, draw, path) for item in value]
        ordered = path[-1] in {"initContainers", "ints", "strings", "versions", "bools", "validValues"}
        return items if ordered else draw(st.permutations(items))
    return value


OBJECTS = [
    item
    for path in sorted(SAMPLES.glob("*/*.json"))
    for raw in [json.loads(path.read_text())]
    for item in (raw["items"] if raw["kind"] == "List" else [raw])
    if "resourceVersion" in item["metadata"]
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_order_of_lists_means_nothing(data: st.DataObject) -> None:
    """A newer version of a sample with every list shuffled says nothing."""
    obj = data.draw(st.sampled_from(OBJECTS))
    resource = RESOURCE[obj["kind"]]
    turned = data.draw(st.composite(lambda draw: _shuffled(obj, draw))())
    turned["metadata"] = {**turned["metadata"], "resourceVersion": "99999999"}
    world = mirror()
    feed(world, [(resource, "ADDED", obj)])
    assert [] == feed(world, [(resource, "MODIFIED", turned)], start_ms=1_000)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_shuffled_relist_emits_nothing(data: st.DataObject) -> None:
    """A LIST of the same objects in another order is the same LIST."""
    chosen = data.draw(st.lists(st.sampled_from([o for o in OBJECTS if o["kind"] == "Pod"]), max_size=12))
    pods = list({item["metadata"]["uid"]: item for item in chosen}.values())
    names = {(item["metadata"]["namespace"], item["metadata"]["name"]): item for item in pods}
    items = list(names.values())
    world = mirror()
    first: Event = ("pods", "LIST", {"metadata": {"resourceVersion": "10000"}, "items": items})
    again: Event = (
        "pods", "LIST", {"metadata": {"resourceVersion": "10001"}, "items": data.draw(st.permutations(items))},
    )  # fmt: skip
    feed(world, [first])
    assert [] == feed(world, [again], start_ms=1_000)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_relist_ends_where_the_watch_ends(data: st.DataObject) -> None:
    """Seeing only a first and a last LIST gives what seeing every event gives."""
    events = data.draw(pod_versions("p0")) + data.draw(pod_versions("p1"))
    watched = final(feed(mirror(), events))
    last = {obj["metadata"]["uid"]: obj for _, kind, obj in events if kind != "DELETED"}
    for _, kind, obj in events:
        if kind == "DELETED":
            last.pop(obj["metadata"]["uid"])
    listed: list[Event] = [
        ("pods", "LIST", {"metadata": {"resourceVersion": "1"}, "items": [events[0][2]]}),
        ("pods", "LIST", {"metadata": {"resourceVersion": "1000"}, "items": list(last.values())}),
    ]
    told = final(feed(mirror(), listed))
    assert _last_words(watched) == _last_words(told)


def _last_words(told: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out versions: a watch tells a word at the version that said it first, a LIST at the last."""
    reduced = {}
    for key, value in told.items():
        raw = json.loads(value)
        if raw.get("absence"):
            continue
        raw.update(rv=0)
        reduced[key] = json.dumps(raw, sort_keys=True).encode()
    return reduced


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=5), st.just([]), st.just({}), st.just([7]),
    st.just({"x": {"y": []}}), st.floats(allow_nan=False, allow_infinity=False), st.just("\ud800"), st.just([[]]),
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _places(item, (*path, index))
    return found


def _spoilt(obj: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    """Put junk at one to three places of an object."""
    spoilt = copy.deepcopy(obj)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(spoilt)
        if not places:
            break
        *steps, last = draw(st.sampled_from(places))
        target: Any = spoilt
        for step in steps:
            target = target[step]
        target[last] = copy.deepcopy(draw(JUNK))
    return spoilt


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_nothing_stops_the_mirror(data: st.DataObject) -> None:
    """Junk anywhere in an object is refused or parked; whatever is emitted can be encoded, and the next frame is read."""
    obj = data.draw(st.sampled_from(OBJECTS))
    resource = RESOURCE[obj["kind"]]
    spoilt = data.draw(st.composite(lambda draw: _spoilt(obj, draw))())
    kind = data.draw(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]))
    world = mirror()
    facts = feed(world, [(resource, kind, spoilt)])
    facts += feed(
        world, [(resource, "LIST", {"metadata": {"resourceVersion": "99999999"}, "items": [spoilt, obj]})]
    )
    for fact in facts:
        encode_payload(fact)
        fact_id(fact)
    for parked in world.drain_parked():
        assert parked.reason.encode()
        assert parked.raw.isascii()


READERS = {
    "Pod": (pod_fingerprint, observe_pod),
    "ResourceSlice": (slice_fingerprint, observe_slice),
    "ResourceClaim": (claim_fingerprint, observe_claim),
    "Node": (node_fingerprint, observe_node),
}


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_equal_fingerprints_mean_equal_observations(data: st.DataObject) -> None:
    """The cheap way past an update never skips something that is read."""
    obj = data.draw(st.sampled_from([item for item in OBJECTS if item["kind"] in READERS]))
    fingerprint, observe = READERS[obj["kind"]]
    spoilt = data.draw(st.composite(lambda draw: _spoilt(obj, draw))())
    spoilt["metadata"] = {
        **(spoilt["metadata"] if isinstance(spoilt.get("metadata"), dict) else {}),
        **{
            key: obj["metadata"][key]
            for key in ("name", "namespace", "uid", "resourceVersion")
            if key in obj["metadata"]
        },
    }
    try:
        seen = observe(spoilt)
        if fingerprint(spoilt) == fingerprint(obj):
            assert observe(obj) == seen
    except (ObjectError, UnicodeEncodeError):
        return
