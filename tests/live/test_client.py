"""The client, against a server on loopback: what comes back as it came, and errors that say what to do."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_apiserver import FakeApiServer, FakeCluster, Refuse, Silence

from sickbay.cluster import client as client_module
from sickbay.cluster.client import ApiClient, BodyTooLargeError, UnreachableError
from sickbay.errors import ServiceError

LEASES = "/apis/coordination.k8s.io/v1/namespaces/sickbay/leases"


def with_client(tmp_path, scene):
    async def play():
        async with FakeApiServer(FakeCluster()) as server:
            client = await ApiClient.connect(server.kubeconfig(tmp_path / "kubeconfig"))
            try:
                await scene(server, client)
            finally:
                await client.close()

    asyncio.run(play())


def test_one_object_is_created_read_and_updated_only_from_the_version_that_was_seen(tmp_path):
    async def scene(server, client):
        lease = {"metadata": {"name": "ingest"}, "spec": {"holderIdentity": "a"}}
        code, _, made = await client.request_json("POST", LEASES, (), lease)
        assert (201, "101") == (code, made["metadata"]["resourceVersion"])
        code, _, refused = await client.request_json("POST", LEASES, (), lease)
        assert (409, "AlreadyExists") == (code, refused["reason"])
        made["spec"]["holderIdentity"] = "b"
        code, _, put = await client.request_json("PUT", f"{LEASES}/ingest", (), made)
        assert (200, "102") == (code, put["metadata"]["resourceVersion"])
        code, _, refused = await client.request_json("PUT", f"{LEASES}/ingest", (), made)
        assert (409, "Conflict") == (code, refused["reason"])
        code, _, read = await client.request_json("GET", f"{LEASES}/ingest", ())
        assert (200, "b") == (code, read["spec"]["holderIdentity"])
        code, _, missing = await client.request_json("GET", f"{LEASES}/other", ())
        assert (404, 404) == (code, missing["code"])

    with_client(tmp_path, scene)


def test_a_body_that_is_no_json_is_an_empty_object(tmp_path):
    async def scene(server, client):
        server.once("get", "leases", Refuse(502, b"<html>bad gateway"))
        assert (502, {}) == (await client.request_json("GET", f"{LEASES}/a", ()))[::2]

    with_client(tmp_path, scene)


def test_bytes_status_and_headers_come_as_they_are(tmp_path):
    async def scene(server, client):
        server.once("list", "pods", Refuse(429, b"\xff\x00", (("Retry-After", "3"),)))
        code, headers, body = await client.get("/api/v1/pods", (("fieldSelector", "a=b&c"),), 100)
        assert (429, "3", b"\xff\x00") == (code, headers["retry-after"], body)
        assert {"fieldSelector": "a=b&c"} == server.requests[-1].query
        assert "Bearer secret" == server.requests[-1].authorization

    with_client(tmp_path, scene)


def test_a_body_beyond_the_limit_is_not_read(tmp_path):
    async def scene(server, client):
        server.cluster.fill("pods", [{"metadata": {"name": f"p{n}", "namespace": "ns"}} for n in range(100)])
        with pytest.raises(BodyTooLargeError, match="more than 1000 bytes"):
            await client.get("/api/v1/pods", (), 1_000)

    with_client(tmp_path, scene)


def test_an_answer_that_does_not_come_is_unreachable(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "READ_S", 0.1)

    async def scene(server, client):
        server.once("list", "pods", Silence(5))
        with pytest.raises(UnreachableError):
            await client.get("/api/v1/pods", (), 1_000)

    with_client(tmp_path, scene)


def test_reloading_takes_the_server_and_the_token_of_the_file_and_open_streams_go_on(tmp_path):
    async def scene(server, client):
        async with FakeApiServer(FakeCluster()) as other, client.stream("/api/v1/pods", (("watch", "true"),)):
            other.kubeconfig(tmp_path / "kubeconfig")
            await asyncio.gather(client.reload(), client.reload())
            assert other.url == client.host
            assert 200 == (await client.get("/api/v1/pods", (), 1_000))[0]
            assert 1 == len(other.requests)

    with_client(tmp_path, scene)


def test_a_reload_that_fails_keeps_what_there_was(tmp_path):
    async def scene(server, client):
        (tmp_path / "kubeconfig").write_text("{}")
        with pytest.raises(ServiceError):
            await client.reload()
        assert 200 == (await client.get("/api/v1/pods", (), 1_000))[0]

    with_client(tmp_path, scene)


def test_i16_certificates_that_do_not_fit_any_more_are_loaded_anew(tmp_path):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            place, url = tmp_path / "kubeconfig", server.url
            server.url = url.replace("http", "https")
            client = await ApiClient.connect(server.kubeconfig(place))
            for _ in range(2):
                with pytest.raises(UnreachableError, match="cannot be reached"):
                    await client.get("/api/v1/pods", (), 1_000)
            server.url = url
            server.kubeconfig(place)
            assert 200 == (await client.get("/api/v1/pods", (), 1_000))[0]
            await client.close()

    asyncio.run(scene())


EXEC = "/api/v1/namespaces/ns/pods/p/exec"


def test_a_websocket_that_is_refused_is_unreachable_with_its_status_and_had_the_credentials(tmp_path):
    async def scene(server, client):
        server.once("list", "exec", Refuse(403))
        with pytest.raises(UnreachableError, match=r"/exec answers 403 and no websocket$"):
            async with client.connect_websocket(EXEC, (("command", "secret word"),), ("v5.channel.k8s.io",)):
                pass
        assert "Bearer secret" == server.requests[-1].authorization

    with_client(tmp_path, scene)


def test_i16_a_websocket_too_has_certificates_loaded_anew(tmp_path):
    async def scene():
        async with FakeApiServer(FakeCluster()) as server:
            place, url = tmp_path / "kubeconfig", server.url
            server.url = url.replace("http", "https")
            client = await ApiClient.connect(server.kubeconfig(place))
            for found in ("cannot be reached", "answers 404"):
                server.once("list", "exec", Refuse(404))
                with pytest.raises(UnreachableError, match=found):
                    async with client.connect_websocket(EXEC, (), ()):
                        pass
                server.url = url
                server.kubeconfig(place)
            await client.close()

    asyncio.run(scene())


def test_a_websocket_goes_through_the_proxy_of_the_kubeconfig_as_requests_do(tmp_path):
    async def scene():
        async with FakeApiServer(FakeCluster()) as proxy:
            cluster = {"server": "http://apiserver.invalid", "proxy-url": proxy.url}
            place = tmp_path / "kubeconfig"
            place.write_text(json.dumps(CONFIG | {"clusters": [{"name": "c", "cluster": cluster}]}))
            client = await ApiClient.connect(str(place))
            await client.get("/api/v1/pods", (), 1_000_000)
            proxy.once("list", "exec", Refuse(404))
            with pytest.raises(UnreachableError, match="answers 404"):
                async with client.connect_websocket(EXEC, (), ()):
                    pass
            assert 2 == len(proxy.requests)
            await client.close()

    asyncio.run(scene())


CONFIG = {
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{", "{}", json.dumps(CONFIG | {"current-context": "other"}), "clusters: 7"]
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path, text):
    place = tmp_path / "kubeconfig"
    if text is not None:
        place.write_text(text)
    with pytest.raises(ServiceError, match=r"kubeconfig cannot be used: .*kubectl works with"):
        asyncio.run(ApiClient.connect(str(place)))


def test_a_context_that_is_not_there_is_named(tmp_path):
    place = tmp_path / "kubeconfig"
    place.write_text(json.dumps(CONFIG))
    with pytest.raises(ServiceError, match="other"):
        asyncio.run(ApiClient.connect(str(place), "other"))


def test_an_exec_plugin_gives_the_token_and_gives_it_anew_on_reload(tmp_path):
    async def scene():
        cluster, counter = FakeCluster(), tmp_path / "count"
        counter.write_text("")
        script = tmp_path / "plugin"
        script.write_text(
            f"#!/bin/sh\necho x >> {counter}\n"
            'echo "{\\"apiVersion\\": \\"client.authentication.k8s.io/v1\\", \\"kind\\": \\"ExecCredential\\",'
            f' \\"status\\": {{\\"token\\": \\"t$(wc -l < {counter} | tr -d " ")\\"}}}}"\n'
        )
        script.chmod(0o755)
        exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}
        async with FakeApiServer(cluster) as server:
            place = tmp_path / "kubeconfig"
            server.kubeconfig(place)
            document = json.loads(place.read_text())
            document["users"][0]["user"] = {"exec": exec_}
            place.write_text(json.dumps(document))
            client = await ApiClient.connect(str(place))
            await client.get("/api/v1/pods", (), 1_000)
            await client.reload()
            await client.get("/api/v1/pods", (), 1_000)
            assert ["Bearer t1", "Bearer t2"] == [request.authorization for request in server.requests]
            await client.close()

    asyncio.run(scene())
