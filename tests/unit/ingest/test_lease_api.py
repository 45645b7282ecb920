"""The Lease over HTTP, against an API server with real preconditions."""

import asyncio

import pytest
from fake_apiserver import FakeApiServer, FakeCluster, Refuse
from virtual_time import LoopTimes

from sickbay.cluster.client import ApiClient
from sickbay.cluster.leading import Conflict, Elector
from sickbay.cluster.lease import made
from sickbay.cluster.lease_api import ApiLeases
from sickbay.errors import ServiceError


def scene(work, tmp_path):
    async def play():
        async with FakeApiServer(FakeCluster()) as server:
            client = await ApiClient.connect(server.kubeconfig(tmp_path / "kubeconfig"))
            try:
                await work(ApiLeases(client, "sickbay"), server)
            finally:
                await client.close()

    asyncio.run(play())


def test_a_lease_is_made_once_and_written_only_over_what_was_read(tmp_path):
    async def work(leases, server):
        assert await leases.read() is None
        lease = await leases.create(made(leases.name, "one", "2026-09-21T14:13:20.000000Z"))
        assert lease["metadata"]["namespace"] == "sickbay"
        with pytest.raises(Conflict):
            await leases.create(made(leases.name, "two", "2026-09-21T14:13:20.000000Z"))
        newer = await leases.replace(lease)
        with pytest.raises(Conflict):
            await leases.replace(lease)
        assert await leases.read() == newer
        server.cluster.delete("leases", leases.name, "sickbay")
        with pytest.raises(Conflict):
            await leases.replace(newer)

    scene(work, tmp_path)


def test_a_refusal_says_what_is_missing(tmp_path):
    async def work(leases, server):
        server.once("get", "leases", Refuse(403))
        with pytest.raises(ServiceError, match=r"answers 403 .* needs get, create and update on leases"):
            await leases.read()

    scene(work, tmp_path)


def test_an_elector_leads_over_http(tmp_path):
    async def work(leases, server):
        await leases.create(made(leases.name, "", "2026-09-21T14:13:20.000000Z"))
        elector = Elector(leases, "one", times=LoopTimes())
        assert await elector.acquire(at_least=7) == 7
        assert elector.leads
        await elector.release()
        assert (await leases.read())["spec"]["holderIdentity"] == ""

    scene(work, tmp_path)
