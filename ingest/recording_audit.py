"""API-server audit events (audit.k8s.io/v1) as watch frames: what was written, read back from the answers.

An answer says what the object is now, so only ``RequestResponse`` events help. It must not take a request for granted: what
was refused, tried with dry-run, or only asked to be deleted did not change or remove anything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingest.frames import Frame, FrameType
from ingest.recording_objects import GROUP_AND_KIND, Ignored, Refused, resource_of
from sickbay.errors import InputError
from sickbay.timestamps import parse_time_ms

_WRITES: Final = ("create", "update", "patch", "delete", "deletecollection")

#: Resources whose deletion is answered with a bare Status instead of the object (ReturnDeletedObject in each storage.go of
#: kubernetes/kubernetes pkg/registry), and how many of each are remembered for it; the longest unwritten goes first.
_DELETED_BY_STATUS: Final = ("nodes", "leases")
_REMEMBERED_LIMIT: Final = 10_000


def is_audit_event(document: dict[str, Any]) -> bool:
    """Whether a document is an audit event of any version."""
    version = document.get("apiVersion")
    return (
        document.get("kind") == "Event" and isinstance(version, str) and version.startswith("audit.k8s.io/")
    )


class AuditReader:
    """Turns audit events into frames, in the order of the log; it remembers what a deletion will not show again."""

    def __init__(self, ignored: Ignored) -> None:
        """``ignored`` counts what is passed over."""
        self._ignored = ignored
        #: Resource to ``(namespace, name)`` to the last answer, as JSON: decoded it would take several times the memory.
        self._last: dict[str, dict[tuple[str, str], bytes]] = {
            resource: {} for resource in _DELETED_BY_STATUS
        }

    def convert(self, event: dict[str, Any], place: str) -> tuple[Frame, ...]:
        """Return the frame of one event, or nothing when it wrote nothing that is read here.

        Raises Refused for a write whose outcome the event does not tell.
        """
        if event.get("apiVersion") != "audit.k8s.io/v1":
            raise Refused(
                f"audit events of {event.get('apiVersion')!r:.80} are not read; write the log as audit.k8s.io/v1"
            )
        stage, verb = event.get("stage"), event.get("verb")
        if stage != "ResponseComplete":
            return self._ignored.note(f"audit stage {stage}")
        if verb not in _WRITES:
            return self._ignored.note(f"audit verb {verb}")
        reference = _member(event, "objectRef")
        resource = reference.get("resource")
        group_and_kind = GROUP_AND_KIND.get(resource) if isinstance(resource, str) else None
        if group_and_kind is None or group_and_kind[0] != (reference.get("apiGroup") or ""):
            return self._ignored.note(f"resource {resource}")
        code = _member(event, "responseStatus").get("code")
        if type(code) is int and code >= 300:
            return self._ignored.note("audit request that was not granted")
        if "dryRun=" in str(event.get("requestURI")).partition("?")[2]:
            return self._ignored.note("audit dry run")
        try:
            at_ms = parse_time_ms(event.get("stageTimestamp"))
        except InputError as error:
            raise Refused(f"stageTimestamp: {error}") from error
        if event.get("level") != "RequestResponse":
            raise Refused(
                f"the event has level {event.get('level')!r:.80}, which leaves the answer out;"
                f" set level RequestResponse for {resource} in the audit policy",
                at_ms,
            )
        assert isinstance(resource, str)
        frame_type, item = self._outcome(event, resource, at_ms, created=verb == "create" or code == 201)
        if item is None:
            return self._ignored.note(f"audit subresource {resource}/{reference.get('subresource')}")
        self._remember(resource, item, gone=frame_type == "DELETED")
        return (Frame(at_ms=at_ms, resource=resource, type=frame_type, object=item, place=place),)

    def _outcome(
        self, event: dict[str, Any], resource: str, at_ms: int, *, created: bool
    ) -> tuple[FrameType, dict[str, Any] | None]:
        """What the event made of its object; no object for a subresource that answers with something else."""
        verb, subresource = event["verb"], event["objectRef"].get("subresource")
        answer = event.get("responseObject")
        if verb == "deletecollection":
            raise Refused(
                "deletecollection answers with what was asked to go, not with what went;"
                " put a list that was taken later beside this log",
                at_ms,
            )
        if not isinstance(answer, dict):
            raise Refused(
                "the event has no responseObject (too large events are truncated by the API server);"
                " raise --audit-log-truncate-max-event-size",
                at_ms,
            )
        if answer.get("kind") == "Status":
            if verb == "delete" and not subresource:
                return "DELETED", self._deleted(event, resource, answer, at_ms)
            return "MODIFIED", None
        if resource_of(answer) != resource:
            if subresource:
                return "MODIFIED", None
            raise Refused(
                f"the answer is a {answer.get('kind')!r:.80} and not of {resource}; the event is damaged",
                at_ms,
            )
        if verb == "delete":
            return ("MODIFIED" if _waits(_member(answer, "metadata")) else "DELETED"), answer
        if _is_last_update(_member(answer, "metadata")):
            return "DELETED", answer
        return ("ADDED" if created and not subresource else "MODIFIED"), answer

    def _deleted(
        self, event: dict[str, Any], resource: str, status: dict[str, Any], at_ms: int
    ) -> dict[str, Any]:
        """Return the object that a bare Status says is gone: what the newest line before had of it."""
        reference = event["objectRef"]
        key = (str(reference.get("namespace") or ""), str(reference.get("name") or ""))
        last = self._last.get(resource, {}).get(key)
        item: dict[str, Any] = {} if last is None else msgspec.json.decode(last)
        uid = (
            _member(status, "details").get("uid")
            or _member(_member(event, "requestObject"), "preconditions").get("uid")
            or reference.get("uid")
        )
        if last is None or (uid and uid != _member(item, "metadata").get("uid")):
            raise Refused(
                f"the deletion of {resource} {'/'.join(filter(None, key))!r:.200} is answered without the object, and no"
                " earlier line has it; read a log that begins earlier",
                at_ms,
            )
        return item

    def _remember(self, resource: str, item: dict[str, Any], *, gone: bool) -> None:
        last = self._last.get(resource)
        if last is None:
            return
        metadata = _member(item, "metadata")
        key = (str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
        last.pop(key, None)
        if not gone:
            last[key] = msgspec.json.encode(item)
            if len(last) > _REMEMBERED_LIMIT:
                del last[next(iter(last))]


def _member(parent: dict[str, Any], name: str) -> dict[str, Any]:
    child = parent.get(name)
    return child if isinstance(child, dict) else {}


def _waits(metadata: dict[str, Any]) -> bool:
    """Whether a delete was only begun: the object stays for its grace period, or for its finalizers."""
    return bool(metadata.get("deletionTimestamp")) and bool(
        metadata.get("deletionGracePeriodSeconds") or metadata.get("finalizers")
    )


def _is_last_update(metadata: dict[str, Any]) -> bool:
    """Whether an update removed the object: the last finalizer went while its deletion was due.

    The rule is ShouldDeleteDuringUpdate in k8s.io/apiserver, pkg/registry/generic/registry/store.go.
    """
    return bool(metadata.get("deletionTimestamp")) and not _waits(metadata)
