"""What kubectl leaves behind: lists, single objects and watch streams."""

from __future__ import annotations

import copy
import json
import tracemalloc

import pytest

from ingest.recording import open_recording

JULY_MS = 1_782_864_000_000  # 2026-07-01T00:00:00Z


def unexpected(parked):
    pytest.fail(f"parked: {parked}")


def entity(kind, name, version="v1", at=None, **metadata):
    """An object as the API server has it; ``at`` is the second of its newest write."""
    fields = {"name": name, "uid": f"uid-{name}", "resourceVersion": "9000", **metadata}
    if at is not None:
        fields["managedFields"] = [
            {"manager": "kubectl", "operation": "Update", "time": "2026-06-01T00:00:00Z"},
            {
                "manager": "kubelet",
                "operation": "Update",
                "time": f"2026-07-01T00:00:{at:02d}Z",
                "subresource": "status",
            },
            {"manager": "old", "operation": "Update"},
        ]
    return {"apiVersion": version, "kind": kind, "metadata": fields, "spec": {}}


def pod(name, at=None, **metadata):
    return {
        **entity("Pod", name, "v1", at, **metadata),
        "spec": {
            "nodeName": "node-g1",
            "containers": [{"name": "main", "args": ['a "quoted" {brace', "[\\", "\\\\"]}],
        },
        "status": {"phase": "Running", "message": "Überhitzung 🔥 }]{["},
    }


def resource_slice(name, at=None):
    return entity("ResourceSlice", name, "resource.k8s.io/v1", at)


def node(name, at=None):
    return entity("Node", name, "v1", at)


def listed(*items, kind="List", version="v1", **metadata):
    return {
        "apiVersion": version,
        "items": list(items),
        "kind": kind,
        "metadata": {"resourceVersion": "", **metadata},
    }


def pretty(document):
    return json.dumps(document, indent=4, ensure_ascii=False).encode() + b"\n"


def compact(document):
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def read(path, content, **options):
    path.write_bytes(content)
    parked = []
    with open_recording(path, on_parked=parked.append, **options) as recording:
        frames = list(recording)
    return frames, parked


def brief(frames):
    """``(second of July, type, resource, names)`` of each frame."""
    return [
        (
            (frame.at_ms - JULY_MS) / 1000,
            frame.type,
            frame.resource,
            [item["metadata"]["name"] for item in frame.object.get("items", [frame.object])],
        )
        for frame in frames
    ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kubectl.json"


# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [pretty, compact])
def test_a_list_becomes_one_list_frame_for_each_resource(path, write):
    """Mixed kinds are told apart by kind and API group; all frames have the newest write of the whole list."""
    document = listed(
        pod("a", 3), node("n", 7), pod("b", 5), resource_slice("s", 1), entity("ConfigMap", "c", "v1", 59),
        entity("Node", "longhorn", "longhorn.io/v1beta2", 59),
        entity("Lease", "l", "coordination.k8s.io/v1"),
        entity("ResourceClaim", "rc", "resource.k8s.io/v1beta1"),
    )  # fmt: skip
    path.write_bytes(write(document))
    with open_recording(path, on_parked=unexpected) as recording:
        frames = list(recording)
    assert [
        (7, "LIST", "pods", ["a", "b"]),
        (7, "LIST", "resourceslices", ["s"]),
        (7, "LIST", "resourceclaims", ["rc"]),
        (7, "LIST", "nodes", ["n"]),
        (7, "LIST", "leases", ["l"]),
    ] == brief(frames)
    assert {
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"resourceVersion": ""},
        "items": [pod("a", 3), pod("b", 5)],
    } == (frames[0].object)
    assert [f"{path}:1"] * 5 == [frame.place for frame in frames]
    assert {"kind ConfigMap": 1, "kind Node": 1} == dict(recording.ignored)


def test_items_of_a_typed_list_take_its_kind(path):
    """``kubectl get --raw`` gives items without kind, in one line, with the kind in front."""
    bare = copy.deepcopy(resource_slice("s", 4))
    del bare["kind"], bare["apiVersion"]
    document = {
        "kind": "ResourceSliceList",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"resourceVersion": "77"},
    }
    frames, parked = read(path, compact({**document, "items": [bare, bare]})[:-1])
    assert [(4, "LIST", "resourceslices", ["s", "s"])] == brief(frames)
    assert [resource_slice("s", 4)] * 2 == frames[0].object["items"]
    assert "77" == frames[0].object["metadata"]["resourceVersion"]
    assert [] == parked


def test_an_empty_typed_list_is_a_list_and_an_empty_list_of_anything_is_nothing(path):
    """Only the first says that there are none of its kind."""
    empty = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
    path.write_bytes(pretty(empty) + pretty(listed()))
    with open_recording(path, on_parked=unexpected) as recording:
        assert [("LIST", "pods", [])] == [entry[1:] for entry in brief(recording)]
    assert {"empty List": 1} == dict(recording.ignored)


def test_a_list_without_write_times_has_the_newest_creation(path):
    """kubectl leaves managedFields out unless asked; without any time the stated step counts."""
    old, new = (
        pod("a", creationTimestamp="2026-07-01T00:00:02Z"),
        pod("b", creationTimestamp="2026-07-01T00:00:05Z"),
    )
    frames, _ = read(path, pretty(listed(old, new)))
    assert JULY_MS + 5000 == frames[0].at_ms
    frames, _ = read(path, pretty(listed(pod("a"))) + pretty(listed(pod("b"))), step_ms=250)
    assert [250, 500] == [frame.at_ms for frame in frames]


def test_a_list_that_lost_an_item_is_no_list(path):
    """A broken item is parked alone at its line. What is left would look like a deletion, so it comes as ADDED."""
    content = pretty(listed(pod("a", 1), pod("b", 2), pod("c", 3), node("n", 4)))
    broken = content.replace(b'"uid-b"', b'"uid-\xff"')
    frames, parked = read(path, broken)
    assert [
        (4, "ADDED", "pods", ["a"]), (4, "ADDED", "pods", ["c"]), (4, "ADDED", "nodes", ["n"]),
    ] == brief(frames)  # fmt: skip
    line = broken[: broken.index(b"uid-\xff")].count(b"\n") + 1
    assert 1 == len(parked)
    assert line - 20 < int(parked[0].place.rsplit(":", 1)[1]) <= line
    assert "Invalid UTF-8" in parked[0].reason
    assert parked[0].raw.startswith("{\\n")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("7", "no Kubernetes object"),
        ('"text"', "no Kubernetes object"),
        ("[1]", "an item that is no JSON object"),
        ("{}", "has no kind"),
        ('{"kind": 5}', "has no kind"),
        ('{"kind": "Pod", "n": NaN}', "not readable as JSON"),
        ('{"kind": "Pod" "n": 1}', "not readable as JSON"),
        ('{"kind": "Pod"]', "not readable as JSON"),
        ('{"kind": "Pod", "deep": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [11, 256 * 1024])
def test_whatever_an_item_is_the_others_are_read(path, item, reason, chunk_bytes):
    """Not an object, without a kind, not JSON, too deep: parked alone."""
    content = pretty(listed(pod("a", 1), {"HERE": 1}, pod("c", 3)))
    head, tail = content.split(pretty({"HERE": 1})[:-1].replace(b"\n", b"\n        "))
    frames, parked = read(path, head + item.encode() + tail, chunk_bytes=chunk_bytes)
    assert [(3, "ADDED", "pods", ["a"]), (3, "ADDED", "pods", ["c"])] == brief(frames)
    assert 1 == len(parked)
    assert reason in parked[0].reason


def test_a_page_of_a_longer_list_is_no_list(path):
    """``metadata.continue`` says that there is more: what is on other pages is not deleted."""
    frames, parked = read(path, compact(listed(pod("a", 1), kind="PodList", **{"continue": "token"})))
    assert ([(1, "ADDED", "pods", ["a"])], []) == (brief(frames), parked)


def test_an_item_over_the_limit_is_parked_alone(path):
    """The limit is for each item and not for the list; the list may be any size."""
    limit = len(pretty(pod("a", 1)).replace(b"\n", b"\n        "))
    big = {**pod("big", 2), "annotations": "x" * limit}
    content = pretty(listed(*[pod(f"p{number}", 1) for number in range(30)], big, pod("z", 3)))
    assert len(content) > 20 * limit
    frames, parked = read(path, content, max_line_bytes=limit + 20)
    assert [f"p{number}" for number in range(30)] + ["z"] == [entry[3][0] for entry in brief(frames)]
    assert ["longer than the limit"] == [one.reason[:21] for one in parked]
    assert '"name": "big"' in parked[0].raw


@pytest.mark.parametrize("write", [pretty, compact])
def test_a_list_cut_short_gives_the_items_before_and_one_parked(path, write):
    """At every byte: what was complete comes as ADDED, for the rest is not known to be gone."""
    content = write(listed(pod("a", 1), node("n", 2), pod("b", 3))).rstrip()
    names = ["a", "n", "b"]
    seen = set()
    for size in range(2, len(content), 7):
        frames, parked = read(path, content[:size])
        assert 1 == len(parked), size
        assert "ends inside this document" in parked[0].reason
        assert {"ADDED"} >= {frame.type for frame in frames}
        found = {entry[3][0] for entry in brief(frames)}
        assert set(names[: len(found)]) == found
        seen.add(len(found))
    assert {0, 1, 2, 3} == seen


def test_a_cut_typed_list_still_knows_its_kind(path):
    """The head that was read says what the items are."""
    bare = copy.deepcopy(pod("a", 1))
    del bare["kind"], bare["apiVersion"]
    content = compact({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [bare, bare]})
    frames, parked = read(path, content[:-40])
    assert [(1, "ADDED", "pods", ["a"])] == brief(frames)
    assert pod("a", 1) == frames[0].object
    assert 1 == len(parked)


def test_items_without_kind_in_a_list_without_kind_are_parked(path):
    """Nothing says what they are."""
    frames, parked = read(path, compact({"items": [{"metadata": {"name": "a"}}]}))
    assert ([], 1) == (frames, len(parked))
    assert "has no kind" in parked[0].reason


def test_a_list_that_names_its_items_twice_loses_none(path):
    """JSON leaves open what that means; dropping the first half in silence would be the worst answer."""
    content = pretty(listed(pod("a", 1)))[:-2] + b"," + pretty(listed(pod("b", 2)))[1:]
    frames, parked = read(path, content)
    assert ([(2, "LIST", "pods", ["a", "b"])], []) == (brief(frames), parked)


def test_a_list_is_read_item_by_item(path):
    """A list of 48 MiB in one line, with a limit of 1 MiB, never has its text in memory as a whole."""
    filler = entity("ConfigMap", "c")
    filler["data"] = {"text": "x" * 100_000}
    count = (48 << 20) // 100_000
    path.write_bytes(compact(listed(*[filler] * count, pod("a", 1))))
    with open_recording(path, on_parked=unexpected, max_line_bytes=1 << 20) as recording:
        tracemalloc.start()
        try:
            frames = list(recording)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [(1, "LIST", "pods", ["a"])] == brief(frames)
    assert count == recording.ignored["kind ConfigMap"]
    assert peak_bytes < 6 << 20


# --- single objects ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [pretty, compact])
def test_single_objects_are_added(path, write):
    """One object says nothing about others, so it is no list; ``kubectl get -w`` and ``jq -c`` print them in a row."""
    frames, parked = read(
        path, write(pod("a", 1)) + write(node("n", 2)) + write(entity("Event", "e")) + write(pod("b", 3))
    )
    assert [(1, "ADDED", "pods", ["a"]), (2, "ADDED", "nodes", ["n"]), (3, "ADDED", "pods", ["b"])] == brief(
        frames
    )
    assert [] == parked


# --- watch streams ----------------------------------------------------------------------------------------------------


def watched(type_, item):
    return {"type": type_, "object": item}


STREAM = [
    watched("ADDED", pod("a", 1)),
    watched("ADDED", pod("b", 0)),
    watched("MODIFIED", pod("a", 5)),
    watched("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}),
    watched("DELETED", pod("b", 4)),
    watched("ERROR", {"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": 410}),
]
EXPECTED = [
    (1, "ADDED", "pods"),
    (1, "ADDED", "pods"),
    (5, "MODIFIED", "pods"),
    (6, "BOOKMARK", "pods"),
    (6, "DELETED", "pods"),
    (7, "ERROR", "pods"),
]


@pytest.mark.parametrize("chunk_bytes", [5, 256 * 1024])
@pytest.mark.parametrize(
    "form", ["pretty", "compact", "one line", "no newline at the end", "unindented", "windows"]
)
def test_a_watch_stream_gives_its_events(path, form, chunk_bytes):
    """Documents follow each other however they are printed; the first ADDED are no list, and time never goes back."""
    documents = [pretty(event) for event in STREAM]
    content = b"".join(documents)
    if form == "compact":
        content = b"".join(map(compact, STREAM))
    elif form == "one line":
        content = b"".join(compact(event)[:-1] for event in STREAM)
    elif form == "no newline at the end":
        content = content[:-1]
    elif form == "unindented":
        content = b"".join(json.dumps(event, indent=0).encode() + b"\n" for event in STREAM)
    elif form == "windows":
        content = content.replace(b"\n", b"\r\n")
    frames, parked = read(path, content, chunk_bytes=chunk_bytes)
    assert [] == parked
    assert EXPECTED == [entry[:3] for entry in brief([*frames[:3], *frames[4:5]])][:3] + [
        ((frame.at_ms - JULY_MS) / 1000, frame.type, frame.resource) for frame in frames[3:]
    ]
    assert [event["object"] for event in STREAM] == [frame.object for frame in frames]


def test_each_event_knows_its_line(path):
    """The place is the first line of the document."""
    frames, _ = read(path, b"".join(map(pretty, STREAM)))
    lines = [sum(pretty(event).count(b"\n") for event in STREAM[:index]) + 1 for index in range(len(STREAM))]
    assert [f"{path}:{line}" for line in lines] == [frame.place for frame in frames]


def test_events_without_write_times_keep_their_order_by_the_step(path):
    """Creation and deletion move the time when they are news; a change of an old object is one step later."""
    created = {"creationTimestamp": "2026-07-01T00:00:10Z"}
    deleting = {**created, "deletionTimestamp": "2026-07-01T00:01:00Z", "deletionGracePeriodSeconds": 30}
    events = [
        watched("ADDED", pod("a", **created)),
        watched("MODIFIED", pod("a", **created)),
        watched("MODIFIED", pod("a", **created)),
        watched("MODIFIED", pod("a", **deleting)),
        watched("DELETED", pod("a", **deleting)),
        watched("ADDED", pod("b", creationTimestamp="2026-07-01T00:00:40Z")),
    ]
    frames, _ = read(path, b"".join(map(compact, events)), step_ms=500)
    assert [10, 10.5, 11, 30, 30.5, 40] == [entry[0] for entry in brief(frames)]


def test_a_deletion_is_dated_when_it_was_asked_for(path):
    """deletionTimestamp lies a grace period ahead; time must not jump there."""
    deleting = {"deletionTimestamp": "2026-07-01T00:00:50Z", "deletionGracePeriodSeconds": 30}
    frames, _ = read(
        path, compact(watched("MODIFIED", pod("a", 5, **deleting))) + compact(watched("ADDED", pod("b", 21)))
    )
    assert [20, 21] == [entry[0] for entry in brief(frames)]


@pytest.mark.parametrize("bad", ["never", 7, None, "2026-07-01T00:00:99Z"])
def test_a_time_that_cannot_be_read_proves_nothing(path, bad):
    """The other times of the object still count."""
    item = pod("a", 5, creationTimestamp=bad, deletionTimestamp=bad, deletionGracePeriodSeconds="30")
    item["metadata"]["managedFields"] += [{"time": bad}, "text", None]
    frames, parked = read(path, compact(watched("ADDED", item)))
    assert ([5], []) == ([entry[0] for entry in brief(frames)], parked)


@pytest.mark.parametrize("metadata", [None, [], "x", {"managedFields": "x"}, {"managedFields": {"a": 1}}])
def test_odd_metadata_is_left_to_the_observer(path, metadata):
    """The reader needs no metadata; the object goes on as it is."""
    item = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}
    frames, parked = read(path, compact(watched("ADDED", item)))
    assert ([1000], [item], []) == (
        [frame.at_ms for frame in frames],
        [frame.object for frame in frames],
        parked,
    )


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (watched("CHANGED", pod("x")), "watch event type 'CHANGED' is none of"),
        (watched(["ADDED"], pod("x")), "is none of"),
        (watched("ADDED", None), "whose object is no JSON object"),
        (watched("ADDED", {"metadata": {}}), "has no kind"),
        (watched("ERROR", {"kind": "Status"}), "before any object"),
    ],
)
@pytest.mark.parametrize("write", [pretty, compact])
def test_a_bad_event_is_parked_alone(path, event, reason, write):
    """The event's line is named and the stream goes on."""
    frames, parked = read(path, write(event) + write(STREAM[0]))
    assert ([(1, "ADDED", "pods", ["a"])], [f"{path}:1"]) == (brief(frames), [one.place for one in parked])
    assert reason in parked[0].reason


def test_events_of_other_kinds_are_counted(path):
    """A stream of another resource gives nothing, and says so by the count."""
    path.write_bytes(pretty(watched("ADDED", entity("Deployment", "d", "apps/v1"))))
    with open_recording(path, on_parked=unexpected) as recording:
        assert [] == list(recording)
    assert {"kind Deployment": 1} == dict(recording.ignored)


def test_a_stream_that_was_cut_and_started_again_loses_one_event(path):
    """kubectl was killed in the middle of a document and its successor appended to the file, at every place of a line."""
    whole = [pretty(event) for event in STREAM[:3]]
    for cut in range(3, len(whole[1]) - 2):
        newline = b"" if whole[1][cut - 1] == ord("\n") else b"\n"
        frames, parked = read(path, whole[0] + whole[1][:cut] + newline + whole[2] + whole[0])
        assert ["a", "a", "a"] == [frame.object["metadata"]["name"] for frame in frames], cut
        assert 1 == len(parked)
        line = whole[0].count(b"\n") + 1
        assert f"{path}:{line}" == parked[0].place
        assert whole[1][: min(cut, 200)].decode(errors="ignore").split("\n")[0] in parked[0].raw


@pytest.mark.parametrize("chunk_bytes", [1, 7, 256 * 1024])
def test_messages_between_documents_are_parked(path, chunk_bytes):
    """kubectl writes warnings to the same file when both outputs are redirected."""
    warning = b'W0701 00:00:00 warnings.go:70] v1 "ComponentStatus" is {deprecated\n'
    error = b"Unable to connect to the server: net/http: TLS handshake timeout\n"
    content = warning + warning + pretty(STREAM[0]) + warning + pretty(STREAM[2]) + error
    frames, parked = read(path, content, chunk_bytes=chunk_bytes)
    assert [(1, "ADDED"), (5, "MODIFIED")] == [entry[:2] for entry in brief(frames)]
    lines = pretty(STREAM[0]).count(b"\n"), pretty(STREAM[2]).count(b"\n")
    assert [f"{path}:1", f"{path}:{3 + lines[0]}", f"{path}:{4 + sum(lines)}"] == [
        one.place for one in parked
    ]
    assert "no JSON object begins here" in parked[0].reason
    assert ["W0701", "W0701", "Unabl"] == [one.raw[:5] for one in parked]


def test_a_document_over_the_limit_is_parked_and_the_next_is_read(path):
    """It is not held; its beginning and its size are reported."""
    limit = len(pretty(STREAM[2]))
    big = pretty(watched("ADDED", {**pod("big", 1), "x": {"y": "}" * limit}}))
    frames, parked = read(
        path, pretty(STREAM[0]) + big + pretty(STREAM[2]), max_line_bytes=limit, chunk_bytes=100
    )
    assert [(1, "ADDED"), (5, "MODIFIED")] == [entry[:2] for entry in brief(frames)]
    size = len(big) - 1
    assert [f"longer than the limit of {limit} bytes ({size} bytes)"] == [
        one.reason.split(";")[0] for one in parked
    ]
    assert (
        big[:1000].decode().replace("\n", r"\n")
        == parked[0].raw[: len(big[:1000].decode().replace("\n", r"\n"))]
    )


def test_lists_and_events_may_follow_each_other(path):
    """A list and then the watch from there, in one file."""
    frames, parked = read(path, pretty(listed(pod("a", 1))) + pretty(STREAM[2]) + compact(STREAM[4]))
    assert [(1, "LIST"), (5, "MODIFIED"), (5, "DELETED")] == [entry[:2] for entry in brief(frames)]
    assert [] == parked
