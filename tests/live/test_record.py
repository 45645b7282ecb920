"""`sickbay record`, as a user runs it, against a server on loopback."""

from __future__ import annotations

import asyncio
import signal

import pytest
from cli import command, environment
from click.testing import CliRunner
from fake_apiserver import FakeApiServer, FakeCluster, Refuse, status

from ingest.diff import Mirror
from ingest.frames import RESOURCES
from ingest.recording import open_recording
from sickbay.cli import cli
from sickbay.errors import SickbayError
from sickbay.facts import NodeObserved, PodObserved
from sickbay.policy import ReadingPolicy

SECRET = "hunter2"  # noqa: S105


def pod(name):
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "annotations": {"example.com/note": SECRET, "sickbay.dev/ability": "checkpoint"},
            "managedFields": [{"manager": SECRET}],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "c", "image": SECRET, "args": [SECRET], "env": [{"name": "A", "value": SECRET}]}
            ],
        },
        "status": {"phase": "Running"},
    }


def cluster_of_one():
    cluster = FakeCluster()
    cluster.put("pods", pod("p"))
    cluster.put("nodes", {"metadata": {"name": "n1"}})
    return cluster


async def record(*arguments):
    return await asyncio.create_subprocess_exec(
        *command(),
        "record",
        *arguments,
        env=environment(KUBECONFIG=""),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process):
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


def replayed(path):
    mirror, facts, types = Mirror(ReadingPolicy(), 1), [], []
    for frame in open_recording(path, on_parked=lambda parked: pytest.fail(str(parked))):
        types.append((frame.resource, frame.type))
        facts += mirror.apply(frame)
    return facts, types


@pytest.mark.parametrize("name", ["live.jsonl", "live.jsonl.zst"])
def test_a_recording_says_what_the_cluster_said_and_holds_no_secret(tmp_path, name):
    async def scene():
        cluster = cluster_of_one()
        async with FakeApiServer(cluster) as server:
            place = tmp_path / name
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
            process = await record("--kubeconfig", kubeconfig, "--output-file", str(place))
            while len(server.asked("watch")) < len(RESOURCES):  # noqa: ASYNC110 - the process is another one
                await asyncio.sleep(0.02)
            cluster.put("pods", pod("q"))
            await asyncio.sleep(2)
            process.send_signal(signal.SIGINT)
            code, out, err = await ended(process)
            assert (0, True) == (code, "6 frames" in out), (out, err)
            facts, types = replayed(place)
            assert {(resource, "LIST") for resource in RESOURCES} | {("pods", "ADDED"), ("", "TICK")} == set(
                types
            )
            assert ["p", "q"] == [fact.pod for fact in facts if isinstance(fact, PodObserved)]
            assert {"checkpoint"} == {fact.ability for fact in facts if isinstance(fact, PodObserved)}
            assert 1 == sum(isinstance(fact, NodeObserved) for fact in facts)
            if name.endswith("l"):
                assert SECRET not in place.read_text()

    asyncio.run(scene())


def test_a_recording_ends_when_its_time_is_over_and_says_what_it_did_not_hear(tmp_path):
    async def scene():
        async with FakeApiServer(cluster_of_one()) as server:
            server.dra_versions = []
            server.once("list", "leases", *[Refuse(403, status(403, "Forbidden", "no leases for you"))] * 9)
            place = tmp_path / "live.jsonl"
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
            code, out, err = await ended(
                await record("--for", "5s", "--kubeconfig", kubeconfig, "--output-file", str(place))
            )
            assert 3 == code, err
            assert "2 frames: 1 of nodes, 1 of pods" in out
            assert "leases: stale: 403 Forbidden: no leases for you" in err
            assert "nothing was heard of resourceslices, resourceclaims, leases" in err
            assert "TICK" == replayed(place)[1][-1][1]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--for", "soon", "--output-file", "x.jsonl"], 2, "write 90s, 10m or 1h30m"),
        (["--for", "0s", "--output-file", "x.jsonl"], 2, "write 90s, 10m or 1h30m"),
        ([], 2, "--output-file"),
        (["--kubeconfig", "no-such-file", "--output-file", "x.jsonl"], 7, "no-such-file cannot be used"),
        (["--kubeconfig", "no-such-file", "--output-file", "no/such/x.jsonl"], 2, "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(tmp_path, monkeypatch, arguments, code, told):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["record", *arguments], env={"KUBECONFIG": ""})
    error = result.exception
    found = error.exit_code if isinstance(error, SickbayError) else result.exit_code
    assert (code, True) == (found, told in f"{result.output}{error}"), (result.output, error)
