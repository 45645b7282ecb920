"""A fake API server with real HTTP semantics on loopback, for tests of whatever lists and watches.

::

    cluster = FakeCluster()
    cluster.put("pods", {"metadata": {"name": "p", "namespace": "ns"}})
    async with FakeApiServer(cluster) as server:
        server.once("watch", "pods", Refuse(410))      # the next watch of Pods; "*" is any resource
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")

``FakeCluster`` is the shared history (etcd): ``put``, ``delete``, ``compact``, ``snapshot`` and ``restore``. Several servers may
stand before one cluster; one with ``lag`` is that many events behind, except for consistent reads.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

from aiohttp import web

Object = dict[str, Any]
_KINDS = {
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
}


class Event(NamedTuple):
    rv: int
    resource: str
    type: str
    object: Object


def _key(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class FakeCluster:
    """Objects with one counter of versions for all resources, as one etcd has it."""

    def __init__(self, rv: int = 100) -> None:
        self.rv = rv
        self.compacted = 0
        self.events: list[Event] = []
        #: Rises with every restore: streams from before end then, unless they are told not to.
        self.generation = 0
        self._uids = 0
        self._waiters: set[asyncio.Event] = set()

    def put(self, resource: str, obj: Object) -> Object:
        """Create or update; uid and resourceVersion are set here."""
        obj = copy.deepcopy(obj)
        before = self.objects(resource).get(_key(obj))
        self.rv += 1
        self._uids += before is None
        obj["apiVersion"], obj["kind"] = _KINDS[resource]
        obj["metadata"].setdefault("uid", before["metadata"]["uid"] if before else f"uid-{self._uids}")
        obj["metadata"]["resourceVersion"] = str(self.rv)
        self._happened(resource, "MODIFIED" if before else "ADDED", obj)
        return obj

    def delete(self, resource: str, name: str, namespace: str = "") -> None:
        self.rv += 1
        gone = copy.deepcopy(self.objects(resource)[namespace, name])
        gone["metadata"]["resourceVersion"] = str(self.rv)
        self._happened(resource, "DELETED", gone)

    def compact(self, keep: int = 0) -> None:
        """Forget the history before the newest ``keep`` versions: a watch from there is Gone."""
        self.compacted = self.rv - keep

    def touch(self, versions: int = 1) -> None:
        """Let something happen that is of no watched resource."""
        self.rv += versions
        self.wake()

    def snapshot(self) -> tuple[int, int]:
        return self.rv, len(self.events)

    def restore(self, snapshot: tuple[int, int], *, cut: bool = True) -> None:
        """Go back: versions are given anew from there. Streams that are not cut stay silent, as real ones do."""
        self.rv, count = snapshot
        del self.events[count:]
        self.compacted = min(self.compacted, self.rv)
        if cut:
            self.generation += 1
        self.wake()

    def objects(self, resource: str, rv: int | None = None) -> dict[tuple[str, str], Object]:
        """Return what there is, or was at a version, by namespace and name."""
        found: dict[tuple[str, str], Object] = {}
        for event in self.events:
            if rv is not None and event.rv > rv:
                break
            if event.resource == resource:
                if event.type == "DELETED":
                    found.pop(_key(event.object), None)
                else:
                    found[_key(event.object)] = event.object
        return found

    def fill(self, resource: str, objects: Iterator[Object] | list[Object]) -> None:
        """Add many objects that are not there yet, quickly."""
        for obj in objects:
            self.rv += 1
            self._uids += 1
            obj["apiVersion"], obj["kind"] = _KINDS[resource]
            obj["metadata"].setdefault("uid", f"uid-{self._uids}")
            obj["metadata"]["resourceVersion"] = str(self.rv)
            self.events.append(Event(self.rv, resource, "ADDED", obj))
        self.wake()

    def _happened(self, resource: str, kind: str, obj: Object) -> None:
        self.events.append(Event(self.rv, resource, kind, obj))
        self.wake()

    def wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def changed(self, timeout_s: float) -> None:
        """Wait until something happened, or for so long."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


# --- what goes wrong -----------------------------------------------------------------------------------------------------


class Refuse(NamedTuple):
    """Answer with an error; ``body`` is a Status of the code unless it is given."""

    code: int
    body: Object | bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Cut(NamedTuple):
    """Break the connection after so many bytes of the body."""

    after: int


class Silence(NamedTuple):
    """Say nothing more after so many bytes of the body, and leave the connection open."""

    after: int


class Say(NamedTuple):
    """Begin a watch with these bytes; ``end`` it orderly after them, or go on."""

    data: bytes
    end: bool = True


Fault = Refuse | Cut | Silence | Say


def status(code: int, reason: str = "", message: str = "", causes: list[Object] | None = None) -> Object:
    """Return a Status object."""
    details = {"details": {"causes": causes}} if causes else {}
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message or reason, **details,
    }  # fmt: skip


#: The historic shapes of "Too large resource version": 1.18.6 on, 1.17 to 1.18.5, before.
TOO_LARGE = (
    status(504, "Timeout", "Too large resource version: 9, current: 3",
           [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]),
    status(504, "Timeout", "the server was unable to return a response in the time allotted",
           [{"message": "Too large resource version"}]),
    status(504, "Timeout", "Too large resource version: 9, current: 3"),
)  # fmt: skip
EXPIRED = status(410, "Expired", "too old resource version: 1 (2)")
STORE_READ = status(500, "StorageReadError", "failed to read one or more pods from the storage")


def event_line(kind: str, obj: Object) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": obj}, ensure_ascii=False).encode() + b"\n"


class Request(NamedTuple):
    verb: str
    resource: str
    query: dict[str, str]
    authorization: str


class _CutError(Exception):
    pass


# --- the server ----------------------------------------------------------------------------------------------------------


class FakeApiServer:
    """One front of a cluster. Attributes may be changed at any time; they hold for what is answered next."""

    def __init__(self, cluster: FakeCluster, *, lag: int = 0) -> None:
        self.cluster = cluster
        #: Events that this front has not seen yet.
        self.lag = lag
        #: Tokens that are accepted; ``None`` accepts everybody.
        self.tokens: set[str] | None = None
        #: Versions of resource.k8s.io that are served; none is a cluster without it.
        self.dra_versions = ["v1", "v1beta2", "v1beta1"]
        self.bookmark_s = 60.0
        #: Whether ``sendInitialEvents`` is known.
        self.watch_list = True
        #: Whether a compacted version is refused in the stream instead of by the answer.
        self.gone_in_stream = False
        #: Whether a watch from a version that is to come is refused; real ones accept it.
        self.refuse_future = False
        #: Every event twice; versions never sent; initial events in another order.
        self.duplicates = False
        self.dropped: set[int] = set()
        self.shuffle: Random | None = None
        #: Every request so far; ``verb`` is list, probe, watch, get, post, put or discover.
        self.requests: list[Request] = []
        self._faults: dict[tuple[str, str], deque[Fault]] = defaultdict(deque)
        self._pages: dict[str, tuple[list[Object], int]] = {}
        self._closing = False
        self._streams: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._closing = True
        self.cluster.wake()
        for stream in self._streams:
            stream.cancel()
        await self._runner.cleanup()

    def kubeconfig(self, path: Path, *, token_file: Path | None = None) -> str:
        """Write a kubeconfig of this server and return its path."""
        user = {"tokenFile": str(token_file)} if token_file else {"token": "secret"}
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": user}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }))  # fmt: skip
        return str(path)

    def once(self, verb: str, resource: str, *faults: Fault) -> None:
        """Let the next requests of this kind go wrong, one by one; ``*`` is any resource."""
        self._faults[verb, resource].extend(faults)

    def expire_tokens(self) -> None:
        """Let every continue token that was given out expire."""
        self._pages.clear()

    def asked(self, verb: str, resource: str = "") -> list[dict[str, str]]:
        """Return the queries of the requests so far."""
        return [r.query for r in self.requests if r.verb == verb and resource in ("", r.resource)]

    # --- answers ---------------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        query = dict(request.query)
        if parts[-1] == "resource.k8s.io":
            resource, verb, name = "", "discover", ""
        elif parts[-2] == "leases":
            resource, verb, name = "leases", request.method.lower(), parts[-1]
        else:
            resource, name = parts[-1], ""
            verb = "watch" if "watch" in query else "probe" if query.get("limit") == "1" else "list"
            verb = verb if request.method == "GET" else request.method.lower()
        self.requests.append(Request(verb, resource, query, request.headers.get("Authorization", "")))
        fault = self._fault(verb, resource)
        if isinstance(fault, Refuse):
            body = fault.body if fault.body is not None else status(fault.code)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            return web.Response(status=fault.code, body=data, headers=dict(fault.headers))
        if self.tokens is not None:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or token not in self.tokens:
                return _refusal(status(401, "Unauthorized"))
        if verb == "discover":
            versions = [{"groupVersion": f"resource.k8s.io/{v}", "version": v} for v in self.dra_versions]
            return web.json_response({"kind": "APIGroup", "versions": versions}) if versions else _missing()
        if parts[1] == "resource.k8s.io" and parts[2] not in self.dra_versions:
            return _missing()
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        if verb in ("get", "put", "post"):
            return await self._one(request, resource, namespace, name)
        if verb == "watch":
            return await self._watch(request, resource, namespace, query, fault)
        return await self._list(request, resource, namespace, query, fault)

    def _fault(self, verb: str, resource: str) -> Fault | None:
        for key in ((verb, resource), (verb, "*")):
            if self._faults[key]:
                return self._faults[key].popleft()
        return None

    @property
    def _visible(self) -> int:
        """The newest version that this front has seen."""
        events = self.cluster.events
        if not self.lag:
            return self.cluster.rv
        return events[-self.lag - 1].rv if len(events) > self.lag else 1

    async def _list(
        self, request: web.Request, resource: str, namespace: str, query: dict[str, str], fault: Fault | None
    ) -> web.StreamResponse:
        wanted = int(query.get("resourceVersion") or 0)
        if "continue" in query:
            if query["continue"] not in self._pages:
                return _refusal(status(410, "Expired", "The provided continue parameter is too old"))
            items, rv = self._pages.pop(query["continue"])
        else:
            if wanted > self._visible:
                return _refusal(TOO_LARGE[0])
            rv = self._visible if wanted else self.cluster.rv
            items = self._items(resource, namespace, rv)
        limit = int(query.get("limit") or 0)
        metadata = {"resourceVersion": str(rv)}
        if limit and len(items) > limit:
            token = f"page-{len(self.requests)}-{rv}"
            self._pages[token] = (items[limit:], rv)
            metadata["continue"] = token
            items = items[:limit]
        version, kind = _KINDS[resource]
        document = {
            "kind": f"{kind}List",
            "apiVersion": version,
            "metadata": metadata,
            "items": items or None,
        }
        body = json.dumps(document, ensure_ascii=False).encode()
        if fault is None:
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await self._send(response, body, fault, 0)
        return response

    def _items(self, resource: str, namespace: str, rv: int) -> list[Object]:
        found = self.cluster.objects(resource, rv)
        return [obj for (space, _), obj in found.items() if namespace in ("", space)]

    async def _watch(
        self, request: web.Request, resource: str, namespace: str, query: dict[str, str], fault: Fault | None
    ) -> web.StreamResponse:
        cluster = self.cluster
        rv = int(query.get("resourceVersion") or 0)
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.watch_list:
            return _refusal(status(422, "Invalid", "sendInitialEvents is forbidden"))
        if self.refuse_future and rv > self._visible:
            return _refusal(TOO_LARGE[0])
        gone = rv < cluster.compacted and not initial
        if gone and not self.gone_in_stream:
            return _refusal(EXPIRED)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            sent = 0
            for line in [event_line("ERROR", EXPIRED)] if gone else ():
                sent = await self._send(response, line, fault, sent)
            if isinstance(fault, Say):
                sent = await self._send(response, fault.data, fault, sent)
            if gone or (isinstance(fault, Say) and fault.end):
                return response
            if initial or not rv:
                rv = cluster.rv
                items = self._items(resource, namespace, rv)
                if self.shuffle:
                    self.shuffle.shuffle(items)
                for obj in items:
                    sent = await self._send(response, event_line("ADDED", obj), fault, sent)
                if initial:
                    mark = {"resourceVersion": str(rv), "annotations": {"k8s.io/initial-events-end": "true"}}
                    sent = await self._send(response, _bookmark(resource, mark), fault, sent)
            await self._follow(response, resource, namespace, rv, fault, sent)
        except _CutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(task)
        return response

    async def _follow(
        self, response: web.StreamResponse, resource: str, namespace: str, rv: int,
        fault: Fault | None, sent: int,
    ) -> None:  # fmt: skip
        cluster, generation = self.cluster, self.cluster.generation
        position = len(cluster.events)
        while position and cluster.events[position - 1].rv > rv:
            position -= 1
        while not self._closing and cluster.generation == generation:
            position = min(position, len(cluster.events))
            fresh = cluster.events[position:]
            for event in fresh:
                if event.rv > self._visible:
                    break
                position += 1
                ours = event.resource == resource and namespace in ("", _key(event.object)[0])
                if ours and event.rv > rv and event.rv not in self.dropped:
                    line = event_line(event.type, event.object) * (2 if self.duplicates else 1)
                    sent = await self._send(response, line, fault, sent)
            before = asyncio.get_running_loop().time()
            await cluster.changed(self.bookmark_s)
            if asyncio.get_running_loop().time() - before >= self.bookmark_s and rv <= self._visible:
                mark = {"resourceVersion": str(self._visible)}
                sent = await self._send(response, _bookmark(resource, mark), fault, sent)

    async def _send(self, response: web.StreamResponse, data: bytes, fault: Fault | None, sent: int) -> int:
        """Write, up to where the fault strikes; return how many bytes of the body were written."""
        if isinstance(fault, Cut | Silence) and sent + len(data) >= fault.after:
            await response.write(data[: fault.after - sent])
            if isinstance(fault, Silence):
                await asyncio.sleep(3600)
            # what was written is on its way before the connection breaks
            await asyncio.sleep(0.001)
            raise _CutError
        await response.write(data)
        return sent + len(data)

    async def _one(
        self, request: web.Request, resource: str, namespace: str, name: str
    ) -> web.StreamResponse:
        """Get, create or update one object; an update must name the version that it saw."""
        known = self.cluster.objects(resource)
        if request.method == "GET":
            found = known.get((namespace, name))
            return web.json_response(found) if found else _missing()
        obj = await request.json()
        obj["metadata"]["namespace"] = namespace
        before = known.get(_key(obj))
        if request.method == "POST" and before:
            return _refusal(status(409, "AlreadyExists"))
        if request.method == "PUT" and not before:
            return _missing()
        stated = obj["metadata"].pop("resourceVersion", None)
        if before and stated not in (None, before["metadata"]["resourceVersion"]):
            return _refusal(status(409, "Conflict", "the object has been modified"))
        put = self.cluster.put(resource, obj)
        return web.json_response(put, status=201 if request.method == "POST" else 200)


def _bookmark(resource: str, metadata: Object) -> bytes:
    version, kind = _KINDS[resource]
    return event_line("BOOKMARK", {"kind": kind, "apiVersion": version, "metadata": metadata})


def _refusal(told: Object) -> web.Response:
    return web.json_response(told, status=told["code"])


def _missing() -> web.Response:
    return _refusal(status(404, "NotFound", "the server could not find the requested resource"))
