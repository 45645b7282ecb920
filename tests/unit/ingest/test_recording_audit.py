"""API-server audit logs: what was written, read back from the answers."""

from __future__ import annotations

import copy
import json

import pytest

from ingest import recording_audit
from ingest.recording import open_recording

JULY_MS = 1_782_864_000_000  # 2026-07-01T00:00:00Z

POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "dra-0",
        "namespace": "ml",
        "uid": "00000000-9ead-4000-8000-000000000001",
        "resourceVersion": "7001",
        "creationTimestamp": "2026-07-01T00:00:00Z",
    },
    "spec": {"nodeName": "node-g1", "containers": [{"name": "main"}]},
    "status": {"phase": "Running"},
}
CLAIM = {
    "kind": "ResourceClaim",
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {
        "name": "dra-0-gpu-abcde",
        "namespace": "ml",
        "uid": "a0000084-5a5a-4b4b-8c8c-000000000084",
        "resourceVersion": "7000",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    },
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}
SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200}


def changed(item, **metadata):
    item = copy.deepcopy(item)
    item["metadata"] |= metadata
    return item


DELETING = {"deletionTimestamp": "2026-07-01T00:00:31Z", "deletionGracePeriodSeconds": 30}
DUE = {"deletionTimestamp": "2026-07-01T00:00:01Z", "deletionGracePeriodSeconds": 0}


def event(verb, answer, subresource=None, code=200, request=None, **more):
    """One line of the log, in the shape that the API server writes."""
    claim = (answer or {}).get("kind") == "ResourceClaim"
    resource = "resourceclaims" if claim else "pods"
    entry = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "RequestResponse",
        "auditID": "8f3a1c5e-0000-4000-8000-000000000001",
        "stage": "ResponseComplete",
        "requestURI": f"/api/v1/namespaces/ml/{resource}/dra-0?fieldManager=kubelet",
        "verb": verb,
        "user": {"username": "system:node:node-g1", "groups": ["system:nodes"]},
        "sourceIPs": ["10.0.0.1"],
        "objectRef": {
            "resource": resource,
            "namespace": "ml",
            "name": CLAIM["metadata"]["name"] if claim else "dra-0",
            "apiVersion": "v1",
            **({"apiGroup": "resource.k8s.io"} if claim else {}),
            **({"subresource": subresource} if subresource else {}),
        },
        "responseStatus": {"metadata": {}, "code": code},
        "requestReceivedTimestamp": "2026-07-01T00:00:00.900000Z",
        "stageTimestamp": "2026-07-01T00:00:01.234567Z",
        "annotations": {"authorization.k8s.io/decision": "allow"},
    }
    if request is not None:
        entry["requestObject"] = request
    if answer is not None:
        entry["responseObject"] = answer
    return entry | more


@pytest.fixture
def read(tmp_path):
    def read_events(*events):
        path = tmp_path / "audit.log"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in events))
        parked = []
        with open_recording(path, on_parked=parked.append) as recording:
            frames = list(recording)
        return frames, parked, dict(recording.ignored)

    return read_events


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (event("create", POD, code=201), "ADDED"),
        (event("update", POD), "MODIFIED"),
        (event("patch", POD), "MODIFIED"),
        (event("patch", POD, "status"), "MODIFIED"),
        (event("patch", POD, "resize"), "MODIFIED"),
        (event("update", CLAIM, "status"), "MODIFIED"),
        (event("patch", POD, code=201), "ADDED"),
        (event("delete", POD), "DELETED"),
        (event("delete", changed(POD, **DELETING)), "MODIFIED"),
        (event("delete", changed(POD, **DUE)), "DELETED"),
        (event("delete", changed(CLAIM, **DUE)), "MODIFIED"),
        (event("patch", changed(POD, **DELETING), "status"), "MODIFIED"),
        (event("update", changed(CLAIM, **DUE)), "MODIFIED"),
        (event("update", changed(CLAIM, finalizers=[], **DUE), "status"), "DELETED"),
        (event("patch", changed(POD, deletionTimestamp="2026-07-01T00:00:01Z", finalizers=[])), "DELETED"),
    ],
)
def test_a_write_is_one_frame(read, entry, expected):
    """At the time of the answer. A deletion that waits for its grace period or its finalizers is a change; the update that
    takes the last finalizer is the deletion."""
    frames, parked, _ = read(entry)
    assert [(JULY_MS + 1234, expected, entry["objectRef"]["resource"], entry["responseObject"])] == [
        (frame.at_ms, frame.type, frame.resource, frame.object) for frame in frames
    ]
    assert frames[0].place.endswith("audit.log:1")
    assert [] == parked


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (event("get", POD), "audit verb get"),
        (event("list", {"kind": "PodList", "items": []}), "audit verb list"),
        (event("watch", None), "audit verb watch"),
        (event("update", POD, stage="RequestReceived"), "audit stage RequestReceived"),
        (event("watch", None, stage="ResponseStarted"), "audit stage ResponseStarted"),
        (event("update", SUCCESS, code=409), "audit request that was not granted"),
        (event("create", POD, code=300), "audit request that was not granted"),
        (
            event("create", POD, requestURI="/api/v1/namespaces/ml/pods?dryRun=All&pretty=true"),
            "audit dry run",
        ),
        (event("create", SUCCESS, "binding", code=201), "audit subresource pods/binding"),
        (event("create", SUCCESS, "eviction", code=201), "audit subresource pods/eviction"),
        (event("delete", SUCCESS, "proxy"), "audit subresource pods/proxy"),
        (
            event("create", {"kind": "Eviction", "apiVersion": "policy/v1"}, "eviction"),
            "audit subresource pods/eviction",
        ),
        (
            event("update", POD, objectRef={"resource": "configmaps", "apiVersion": "v1"}),
            "resource configmaps",
        ),
        (event("update", POD, objectRef={"resource": "nodes", "apiGroup": "longhorn.io"}), "resource nodes"),
        (event("update", POD, objectRef=None), "resource None"),
        (event("get", POD, level="Metadata"), "audit verb get"),
    ],
)
def test_what_wrote_nothing_is_counted_and_passed_over(read, entry, reason):
    """Reads, refusals, dry runs, early stages, other resources and subresources that do not answer with the object."""
    assert ([], [], {reason: 1}) == read(entry)


@pytest.mark.parametrize(
    ("entry", "reason", "at_ms"),
    [
        (
            event("update", None, level="Metadata"),
            "level 'Metadata', which leaves the answer out",
            JULY_MS + 1234,
        ),
        (
            event("update", None, level="Request"),
            "set level RequestResponse for pods in the audit policy",
            JULY_MS + 1234,
        ),
        (event("update", None), "no responseObject", JULY_MS + 1234),
        (
            event("update", {"kind": "Node", "apiVersion": "v1"}),
            "the answer is a 'Node' and not of pods",
            JULY_MS + 1234,
        ),
        (event("update", {"metadata": {}}), "has no kind", None),
        (
            event("deletecollection", {"kind": "PodList"}),
            "deletecollection answers with what was asked",
            JULY_MS + 1234,
        ),
        (event("update", POD, stageTimestamp="soon"), "stageTimestamp: 'soon'", None),
        (event("update", POD, stageTimestamp=None), "stageTimestamp: a time must be", None),
        (event("update", POD, apiVersion="audit.k8s.io/v1beta1"), "write the log as audit.k8s.io/v1", None),
        (
            event("delete", SUCCESS),
            "is answered without the object, and no earlier line has it",
            JULY_MS + 1234,
        ),
    ],
)
def test_a_write_whose_outcome_is_not_told_is_parked(read, entry, reason, at_ms):
    """The reason says what to change; the log goes on."""
    frames, parked, _ = read(entry, event("create", changed(POD, name="other"), code=201))
    assert ["ADDED"] == [frame.type for frame in frames]
    assert [at_ms] == [one.at_ms for one in parked]
    assert reason in parked[0].reason


NODE = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {"name": "node-g1", "uid": "a000009b-5a5a-4b4b-8c8c-00000000009b", "resourceVersion": "100"},
    "status": {"capacity": {"cpu": "24", "nvidia.com/gpu": "8"}},
}
NODE_REFERENCE = {"resource": "nodes", "name": "node-g1", "apiVersion": "v1"}
LEASE = {
    "kind": "Lease",
    "apiVersion": "coordination.k8s.io/v1",
    "metadata": {"name": "n", "namespace": "kube-node-lease"},
}
LEASE_REFERENCE = {
    "resource": "leases",
    "name": "n",
    "namespace": "kube-node-lease",
    "apiGroup": "coordination.k8s.io",
}


def node_event(verb, answer, **more):
    return event(verb, answer, objectRef=NODE_REFERENCE, **more)


def gone(uid):
    return {**SUCCESS, "details": {"name": "node-g1", "kind": "nodes", "uid": uid}}


def test_a_deletion_answered_with_a_status_has_the_object_of_the_newest_line(read):
    """Nodes and leases are deleted so. Once only: a second deletion of the name is of something else."""
    old = changed(NODE, resourceVersion="99")
    deletion = node_event("delete", gone(NODE["metadata"]["uid"]))
    frames, parked, _ = read(node_event("create", old), node_event("patch", NODE), deletion, deletion)
    assert [("ADDED", old), ("MODIFIED", NODE), ("DELETED", NODE)] == [
        (frame.type, frame.object) for frame in frames
    ]
    assert ["the deletion of nodes 'node-g1' is answered without the object, and no earlier line has it"] == [
        one.reason.split(";")[0] for one in parked
    ]
    frames, parked, _ = read(
        event("update", LEASE, objectRef=LEASE_REFERENCE), event("delete", SUCCESS, objectRef=LEASE_REFERENCE)
    )
    assert ([LEASE, LEASE], []) == ([frame.object for frame in frames], parked)


@pytest.mark.parametrize(
    "deletion",
    [
        node_event("delete", gone("another-uid")),
        node_event(
            "delete", SUCCESS, request={"kind": "DeleteOptions", "preconditions": {"uid": "another-uid"}}
        ),
        event("delete", SUCCESS, objectRef=NODE_REFERENCE | {"uid": "another-uid"}),
    ],
)
def test_a_deletion_of_another_object_of_the_name_is_parked(read, deletion):
    """A uid anywhere in the event that is not that of the object seen last: the log lacks lines."""
    frames, parked, _ = read(node_event("create", NODE), deletion)
    assert (["ADDED"], 1) == ([frame.type for frame in frames], len(parked))
    assert "read a log that begins earlier" in parked[0].reason


def test_a_recreated_object_is_deleted_as_it_was_last(read):
    """The newest object of a name counts."""
    new = changed(NODE, uid="new-uid")
    frames, _, _ = read(node_event("create", NODE), node_event("create", new), node_event("delete", SUCCESS))
    assert ("DELETED", new) == (frames[-1].type, frames[-1].object)


def test_the_memory_of_objects_is_bounded(read, monkeypatch):
    """The object that was not written for longest is forgotten, and its deletion parked."""
    monkeypatch.setattr(recording_audit, "_REMEMBERED_LIMIT", 2)
    others = [node_event("create", changed(NODE, name=f"n{number}")) for number in range(2)]
    deletion = node_event("delete", gone(NODE["metadata"]["uid"]))
    frames, parked, _ = read(
        node_event("create", NODE), others[0], node_event("patch", NODE), others[1], deletion
    )
    assert ("DELETED", []) == (frames[-1].type, parked)
    frames, parked, _ = read(node_event("create", NODE), *others, deletion)
    assert ("ADDED", 1) == (frames[-1].type, len(parked))


def test_events_keep_the_order_and_the_times_of_the_log(read):
    """The log is written in the order of answers; a time that goes back stays as it is."""
    early = event("update", POD, stageTimestamp="2026-07-01T00:00:00Z")
    frames, _, _ = read(event("update", POD), early)
    assert [JULY_MS + 1234, JULY_MS] == [frame.at_ms for frame in frames]
