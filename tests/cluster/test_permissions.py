"""Sickbay runs with exactly the roles that are shipped, and can do nothing beyond them."""

from __future__ import annotations

import asyncio

import manifests
import pytest
from cli import run
from cluster_acting import until
from control_plane import ApiError
from kubelets import Kubelet
from live_watch import following

from ingest.capabilities import EXCESS
from ingest.examining import examine
from ingest.frames import RESOURCES
from sickbay.cluster.client import ApiClient
from sickbay.cluster.leading import Conflict
from sickbay.cluster.lease_api import ApiLeases
from sickbay.facts import NodeObserved

#: What a process that only watches must never be able to do, each as a request.
DENIED = {
    "read a secret": ("GET", "/api/v1/namespaces/sickbay/secrets"),
    "read a config map": ("GET", "/api/v1/namespaces/kube-system/configmaps"),
    "make a Pod": ("POST", "/api/v1/namespaces/sickbay/pods"),
    "delete a Pod": ("DELETE", "/api/v1/namespaces/sickbay/pods/a"),
    "run something in a Pod": ("POST", "/api/v1/namespaces/sickbay/pods/a/exec"),
    "evict a Pod": ("POST", "/api/v1/namespaces/sickbay/pods/a/eviction"),
    "write the status of a Pod": ("PATCH", "/api/v1/namespaces/sickbay/pods/a/status"),
    "cordon a node": ("PATCH", "/api/v1/nodes/a"),
    "write a slice": ("PUT", "/apis/resource.k8s.io/v1/resourceslices/a"),
    "write an allocation": ("PUT", "/apis/resource.k8s.io/v1/namespaces/sickbay/resourceclaims/a/status"),
    "taint a device": ("POST", "/apis/resource.k8s.io/v1/devicetaintrules"),
    "renew the Lease of a node": (
        "PATCH",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
    ),
    "take the Lease of somebody else": (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/sickbay/leases/other",
    ),
    "give itself a role": ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
}


#: A request for each of the roles that are made, which the API server takes up one by one.
ALLOWED = (
    "/api/v1/pods",
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    "/apis/coordination.k8s.io/v1/namespaces/sickbay/leases/sickbay-ingest",
    "/metrics",
)


def is_allowed(api, path):
    try:
        api.get(path)
    except ApiError as error:
        return error.status != 403
    return True


@pytest.fixture
def account(plane, tmp_path):
    """Return a kubeconfig of the account of ``ingest``, whose token is in a file as in a Pod, once its rights are in force."""
    manifests.apply(plane.admin, "rbac/ingest.yaml", "rbac/doctor.yaml")
    api = plane.as_account("sickbay", "sickbay-ingest")
    for path in ALLOWED:
        until(lambda path=path: is_allowed(api, path), f"the right to {path}")
    token = tmp_path / "token"
    token.write_text(plane.token("sickbay", "sickbay-ingest"), encoding="utf-8")
    return plane.kubeconfig(tmp_path / "kubeconfig", user="ingest", token_file=token)


def test_a_watch_of_everything_needs_no_more_than_the_shipped_roles(plane, account, tmp_path):
    kubelet = Kubelet(plane.admin, "permitted").register()
    token = tmp_path / "token"

    async def scene():
        async with following(plane, tmp_path, resources=RESOURCES, token_file=token) as live:
            await live.until(lambda: all(live.state(each) == "watching" for each in RESOURCES))
            await live.until(lambda: "permitted" in {fact.node for fact in live.of(NodeObserved)})
            assert not live.parked

    try:
        asyncio.run(scene())
    finally:
        kubelet.leave()


def test_replicas_can_take_turns_and_only_by_their_own_lease(plane, account):
    async def scene():
        client = await ApiClient.connect(account)
        leases = ApiLeases(client, "sickbay")
        try:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": leases.name},
                "spec": {"holderIdentity": "a"},
            }
            if await leases.read() is None:
                lease = await leases.create(lease)
            lease = await leases.read()
            with pytest.raises(Conflict):
                await leases.create({**lease, "metadata": {"name": leases.name}})
            await leases.replace(lease)
        finally:
            await client.close()
            await asyncio.sleep(0.25)  # see live_watch.following

    asyncio.run(scene())


@pytest.mark.parametrize("what", DENIED)
def test_it_may_not(plane, account, what):
    method, path = DENIED[what]
    api = plane.as_account("sickbay", "sickbay-ingest")
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as caught:
        api.request(method, path, {} if method in {"POST", "PUT", "PATCH"} else None, kind=kind)
    assert caught.value.status == 403


def test_the_doctor_finds_every_permission_and_nothing_in_excess(plane, account):
    done = run("doctor", "--kubeconfig", account, "--lease-namespace", "sickbay", "--output", "json")
    rows = done.json_lines()
    assert done.code == 0, done.err
    assert {row["state"] for row in rows if row["what"] == "permission"} == {"ok"}
    assert {row["state"] for row in rows if row["what"] == "gate"} == {"ok"}
    (version,) = (row["found"] for row in rows if row["what"] == "version")
    assert version.startswith(f"v{plane.version}.")


def test_the_doctor_of_an_administrator_says_what_to_take_away_and_of_a_stranger_what_to_give(
    plane, tmp_path
):
    async def examined(kubeconfig):
        client = await ApiClient.connect(kubeconfig)
        try:
            return await examine(client)
        finally:
            await client.close()
            await asyncio.sleep(0.25)  # see live_watch.following

    admin = asyncio.run(examined(plane.kubeconfig(tmp_path / "admin")))
    assert sum(finding.state == "excess" for finding in admin) == len(EXCESS)
    stranger = plane.kubeconfig(tmp_path / "stranger", user="stranger")
    found = asyncio.run(examined(stranger))
    assert {finding.state for finding in found if finding.what == "permission"} == {"failed"}
    assert {finding.state for finding in found if finding.what == "gate"} == {"unknown"}
    assert run("doctor", "--kubeconfig", stranger).code == 7


def test_where_only_the_store_is_missing_the_doctor_says_so_by_its_code(plane, account, tmp_path):
    assert run("doctor", "--kubeconfig", account, "--db", str(tmp_path / "none.db")).code == 5
