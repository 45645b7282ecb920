"""A step from its beginning to its report, with every way to fail, and a process that is killed after any of its effects."""

import asyncio

import pytest
from verification_worlds import (
    DRA,
    EPISODE,
    NOW_MS,
    PLUGIN,
    TEMPLATES,
    TWO,
    Cluster,
    KilledError,
    device,
    fold,
    slice_of,
    verifier,
)

from responders.verification.namespace import Namespace
from responders.verification.plan import GARBAGE_AFTER_MS
from responders.verification.templates import Templates
from responders.view import View
from sickbay.errors import ServiceError
from sickbay.facts import CanaryReported, ProbeReported
from sickbay.policy import ReturnPolicy

GPU = "gpu.example.com"
OWN = (GPU, "node-a", "gpu-1")


def looks(process, number=4):
    async def look():
        return [await process.act() for _ in range(number)]

    return asyncio.run(look())


def begun(device_id=DRA, phase="probing", cluster=None, **changes):
    """Return a cluster in which the objects of a step were made, the view, and the process."""
    cluster = cluster or Cluster(TWO)
    view = fold(View(), phase, device_id)
    process = verifier(cluster, view, **changes)
    looks(process)
    return cluster, view, process


def only_fact(cluster):
    (fact,) = cluster.facts.values()
    return fact


def test_a_probe_that_succeeds_on_its_device_has_passed_and_is_taken_away_once_custody_knows():
    cluster, view, process = begun()
    assert sorted(kind for kind, _ in cluster.objects) == ["jobs", "resourceclaims"]
    cluster.allocate(*OWN)
    assert looks(process, 1) == [5.0]
    cluster.allocate()  # the claim controller takes it back when the Pod ends
    cluster.finish()
    cluster.now_ms += 60_000
    looks(process)
    fact = only_fact(cluster)
    assert isinstance(fact, ProbeReported)
    assert (fact.passed, fact.episode_id, fact.attempt, fact.device_id) == (True, EPISODE, 1, DRA)
    assert fact.detail == "main ended with 0; its claim had this device"
    assert len(cluster.told) == 1
    assert ("jobs", f"sickbay-probe-{EPISODE}-1") in cluster.objects
    fold(view, "canary")
    looks(process)
    assert sorted(name for _, name in cluster.objects) == [f"sickbay-canary-{EPISODE}-1"] * 2
    cluster.allocate(*OWN)
    looks(process, 1)
    cluster.finish()
    looks(process)
    assert isinstance(cluster.told[-1], CanaryReported)
    assert cluster.told[-1].passed


def test_a_command_that_fails_has_failed_with_its_last_words():
    cluster, _, process = begun()
    cluster.finish("Failed", "BackoffLimitExceeded", exit_code=3, message="ECC error")
    looks(process)
    fact = only_fact(cluster)
    assert not fact.passed
    assert fact.detail == "BackoffLimitExceeded: said so; main ended with 3: ECC error"


def test_a_job_that_runs_too_long_has_failed_and_what_it_waited_for_is_told():
    cluster, _, process = begun()
    cluster.pod({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no device"}]})
    looks(process, 1)
    for key in [key for key in cluster.objects if key[0] == "pods"]:
        del cluster.objects[key]  # the Job controller takes it away at its deadline
    cluster.one("jobs")["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}]}  # fmt: skip
    looks(process)
    assert only_fact(cluster).detail == "DeadlineExceeded: too long; it waited: no device"


def test_a_job_that_must_fail_has_failed_though_its_pod_never_ends():
    cluster, _, process = begun()
    cluster.finish("FailureTarget", "DeadlineExceeded")
    looks(process)
    assert only_fact(cluster).detail.startswith("DeadlineExceeded: ")


def test_a_step_whose_job_says_nothing_is_reported_before_custody_takes_the_silence_for_it():
    cluster, _, process = begun()
    cluster.now_ms = NOW_MS + 570_000
    looks(process)
    assert not only_fact(cluster).passed
    assert "did not end in time; no Pod was made" in only_fact(cluster).detail


def test_a_device_plugins_probe_is_told_to_be_weaker():
    for condition, passed in (("Complete", True), ("Failed", False)):
        cluster, _, process = begun(PLUGIN)
        assert not any(kind == "resourceclaims" for kind, _ in cluster.objects)
        cluster.finish(condition)
        looks(process)
        assert only_fact(cluster).passed is passed
        assert only_fact(cluster).detail.startswith("node-pinned, weaker: the plugin chose the device; ")


def test_another_device_never_passes_and_its_job_is_ended_at_once():
    cluster, _, process = begun()
    cluster.allocate(GPU, "node-a", "gpu-0")
    looks(process)
    assert only_fact(cluster).detail.startswith(
        "the claim was given gpu.example.com/node-a/gpu-0 and not this"
    )
    assert not only_fact(cluster).passed
    assert not any(kind == "jobs" for kind, _ in cluster.objects)
    cluster, _, process = begun()
    cluster.allocate(GPU, "node-a", "gpu-0")
    cluster.finish()
    looks(process)
    assert not only_fact(cluster).passed


def test_an_allocation_that_nobody_saw_passes_only_if_nothing_was_published_anew():
    cluster, _, process = begun()
    cluster.finish()
    looks(process)
    assert only_fact(cluster).passed
    assert only_fact(cluster).detail.endswith("no other device fits its claim")
    cluster, _, process = begun()
    cluster.slices = [slice_of(device("gpu-0", uuid="u1"), device("gpu-1", uuid="u0"), generation=2)]
    cluster.finish()
    looks(process)
    assert not only_fact(cluster).passed
    cluster, _, process = begun()
    cluster.delete("resourceclaims", cluster.one("resourceclaims")["metadata"]["name"])
    cluster.finish()
    looks(process)
    assert "its claim is gone" in only_fact(cluster).detail


def test_a_device_that_cannot_be_singled_out_has_failed_before_anything_is_made():
    alike = slice_of(device("gpu-0", model="a"), device("gpu-1", model="a"))
    cluster, _, _ = begun(cluster=Cluster(alike))
    assert "cannot single the device out" in only_fact(cluster).detail
    assert not cluster.objects


def test_a_device_that_is_not_published_is_waited_for_until_the_deadline():
    cluster, _, process = begun(cluster=Cluster())
    assert not cluster.objects
    assert not cluster.facts
    cluster.slices = [TWO]
    looks(process)
    assert len(cluster.objects) == 2
    cluster, _, process = begun(cluster=Cluster())
    cluster.now_ms += 600_000
    looks(process)
    assert only_fact(cluster).detail.endswith("its driver does not publish the device")


@pytest.mark.parametrize(
    ("files", "device_id", "told"),
    [
        ({}, DRA, "add probe.gpu.example.com.yaml or probe.yaml"),
        ({"probe.yaml": "probe.example.com_card.yaml"}, DRA, "makes no claim; name the DeviceClass"),
        ({"probe.yaml": "probe.yaml"}, PLUGIN, "add probe.example.com_card.yaml without"),
    ],
)
def test_without_a_template_for_it_a_step_has_failed_and_the_remedy_is_named(files, device_id, told):
    templates = Templates({name: TEMPLATES.by_file[of] for name, of in files.items()})
    cluster, _, _ = begun(device_id, templates=templates)
    assert told in only_fact(cluster).detail
    assert not cluster.objects


def test_an_object_that_the_api_server_never_takes_fails_the_step_and_others_are_tried_again():
    cluster = Cluster(TWO)
    cluster.answers["POST", "jobs"] = (422, {"reason": "Invalid", "message": "image: required"})
    begun(cluster=cluster)
    assert (
        only_fact(cluster).detail
        == "the API server refuses it: 422 Invalid: image: required; mend probe.yaml"
    )
    cluster = Cluster(TWO)
    cluster.answers["POST", "jobs"] = (403, {"reason": "Forbidden", "message": "quota"})
    view = fold(View(), "probing")
    process = verifier(cluster, view)
    with pytest.raises(
        ServiceError, match="quota; the service account needs list, create and delete on jobs"
    ):
        looks(process)
    assert not cluster.facts
    del cluster.answers["POST", "jobs"]
    looks(process)
    assert len(cluster.objects) == 2


def test_one_step_that_cannot_be_made_does_not_keep_the_others():
    cluster = Cluster(TWO)
    cluster.answers["GET", "resourceslices"] = (403, {"reason": "Forbidden"})
    view = fold(fold(View(), "probing"), "probing", PLUGIN)
    with pytest.raises(ServiceError, match="needs list on resourceslices"):
        looks(verifier(cluster, view))
    assert [kind for kind, _ in cluster.objects] == ["jobs"]


def test_somebody_elses_object_of_the_name_is_left_alone():
    cluster = Cluster(TWO)
    cluster.answers["POST", "jobs"] = (409, {"reason": "AlreadyExists"})
    with pytest.raises(ServiceError, match="is not of this installation; delete it"):
        begun(cluster=cluster)


def test_who_does_not_lead_writes_nothing():
    cluster = Cluster(TWO)
    cluster.leads = False
    with pytest.raises(ServiceError, match="another leads"):
        begun(cluster=cluster)
    assert not cluster.effects


def test_without_a_prober_the_cluster_is_not_even_asked():
    cluster, _, process = begun(policy=ReturnPolicy())
    assert looks(process) == [None] * 4
    assert not cluster.asked


def test_where_nothing_stands_and_nothing_is_left_nothing_is_asked():
    cluster = Cluster(TWO)
    process = verifier(cluster, View())
    assert looks(process, 3) == [None] * 3
    assert cluster.asked == [("GET", "jobs"), ("GET", "resourceclaims")]


def test_garbage_is_taken_away_but_not_what_another_replica_may_just_have_made():
    cluster, _, _ = begun()
    later = verifier(cluster, View())
    (wait_s,) = looks(later, 1)
    assert 0 < wait_s <= GARBAGE_AFTER_MS / 1_000
    assert len(cluster.objects) == 2
    cluster.now_ms += GARBAGE_AFTER_MS
    looks(later)
    assert not cluster.objects


def test_the_objects_of_another_installation_are_no_garbage():
    cluster, _, _ = begun()
    cluster.now_ms += GARBAGE_AFTER_MS
    looks(verifier(cluster, View(), namespace=Namespace(cluster, "sickbay-verification", "another")))
    assert len(cluster.objects) == 2


def test_a_claim_of_a_job_that_somebody_took_away_is_made_anew():
    cluster, _, process = begun()
    claim = cluster.one("resourceclaims")
    cluster.delete("jobs", claim["metadata"]["name"])
    cluster.put("resourceclaims", claim)  # the garbage collector was not there yet
    looks(process, 6)
    owner = cluster.one("resourceclaims")["metadata"]["ownerReferences"][0]["uid"]
    assert owner == cluster.one("jobs")["metadata"]["uid"]


def test_what_is_on_its_way_out_is_not_deleted_twice():
    cluster, _, _ = begun()
    for each in cluster.objects.values():
        each["metadata"]["deletionTimestamp"] = "2026-09-21T14:13:20Z"
    cluster.now_ms += GARBAGE_AFTER_MS
    looks(verifier(cluster, View()))
    assert ("DELETE", "jobs") not in cluster.asked


def test_an_object_that_was_replaced_meanwhile_is_left_alone():
    cluster, _, _ = begun()
    cluster.now_ms += GARBAGE_AFTER_MS
    asyncio.run(
        verifier(cluster, View())._namespace.delete(
            "jobs", cluster.one("jobs")["metadata"]["name"], "another"
        )
    )
    assert len(cluster.objects) == 2


# --- killed ---


def life(cluster, *, ending, wrong=False):
    """Play a step to its end with processes that are killed and started again; what custody hears moves the device on."""
    view = fold(View(), "probing")
    process = verifier(cluster, view)
    for turn in range(24):
        if turn == 8 and any(kind == "jobs" for kind, _ in cluster.objects):
            cluster.allocate(*((GPU, "node-a", "gpu-0") if wrong else OWN))
        if turn == 12 and any(kind == "jobs" for kind, _ in cluster.objects):
            if not wrong:
                cluster.allocate()
            cluster.finish(ending)
        if turn == 18:
            assert cluster.facts
            fold(view, "quarantined")
            cluster.now_ms += GARBAGE_AFTER_MS
        try:
            looks(process, 1)
        except KilledError:
            process = verifier(cluster, view)


@pytest.mark.parametrize(("ending", "wrong"), [("Complete", False), ("Failed", False), ("Complete", True)])
def test_a_kill_after_any_effect_changes_nothing_in_the_end(ending, wrong):
    calm = Cluster(TWO)
    life(calm, ending=ending, wrong=wrong)
    assert calm.effects >= 4
    for nth in range(1, calm.effects + 1):
        cluster = Cluster(TWO)
        cluster.kill_after = nth
        life(cluster, ending=ending, wrong=wrong)
        assert cluster.effects >= calm.effects
        assert not cluster.objects
        fact, expected = only_fact(cluster), only_fact(calm)
        assert (fact.passed, fact.request_id, fact.detail.split(";")[0]) == (
            expected.passed,
            expected.request_id,
            expected.detail.split(";")[0],
        )
        assert fact.passed is (ending == "Complete" and not wrong)
