"""Names, selectors and objects of a step, over generated identities and attributes."""

import re

from hypothesis import given
from hypothesis import strategies as st
from verification_worlds import (
    DRA,
    EPISODE,
    NOW_MS,
    PLUGIN,
    POLICY,
    TEMPLATES,
    TWO,
    device,
    fold,
    slice_of,
    step,
)

from responders.verification.jobs import allocated, build_claim, build_job
from responders.verification.selecting import expression_of, literal, read_published, single_out
from responders.verification.steps import Place, name_of, place_of, standing
from responders.verification.words import DETAIL_MAX, detail_of, ended_words, waiting_words
from responders.view import View
from sickbay.policy import ReturnPolicy

GPU = "gpu.example.com"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
texts = st.text(max_size=60)
steps = st.tuples(texts | st.uuids().map(str), st.sampled_from(["probe", "canary"]), st.integers(0, 10**6))
scalars = (
    st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", '"', "\\", "é", "1", "true", "\n"])
)
keys = st.sampled_from(["uuid", "serial", "model", "index", "dra.net/numa", "in", f"{GPU}/own"])
devices = st.lists(st.dictionaries(keys, scalars, max_size=4), min_size=1, max_size=6)


# --- names ---


@given(steps, steps)
def test_a_name_is_a_dns_label_and_no_two_steps_have_the_same(one, other):
    assert NAME.fullmatch(name_of(*one))
    assert (name_of(*one) == name_of(*other)) == (one == other)


def test_a_name_can_be_read():
    assert step(attempt=3).name == f"sickbay-probe-{EPISODE}-3"
    assert step().name == step().name
    assert len({step().request_id, step(attempt=2).request_id, step(phase="canary").request_id}) == 3


def test_a_device_is_found_again_in_its_id():
    assert place_of("dra:d.io/pool/with/slashes/gpu-0", "d.io") == Place("d.io", "pool/with/slashes", "gpu-0")
    assert place_of(PLUGIN, "example.com/card") is None
    assert place_of("dra:d.io/gpu-0", "d.io") is None


def test_only_devices_that_are_probed_or_are_canaries_have_a_step_and_only_with_a_prober():
    view = fold(fold(View(), "probing"), "canary", PLUGIN, canary_at_ms=NOW_MS + 5)
    fold(view, "quarantined", "dra:gpu.example.com/node-a/gpu-7")
    found = list(standing(view, POLICY))
    assert [(each.device_id, each.kind, each.started_at_ms) for each in found] == [
        (DRA, "probe", NOW_MS),
        (PLUGIN, "canary", NOW_MS + 5),
    ]
    # half a minute before custody takes the silence for a failure
    assert found[0].deadline_ms == NOW_MS + 570_000
    assert not list(standing(view, ReturnPolicy()))


# --- selectors ---


def fits(terms, attributes):
    """Whether a device fits by CEL's rules: a value of another type differs, what is not there does not fit."""
    return all(
        (domain, name) in attributes and attributes[domain, name] == (kind_of(value), value)
        for domain, name, value in terms
    )


def kind_of(value):
    return {bool: "bool", int: "int", str: "string"}[type(value)]


@given(devices)
def test_a_selector_fits_the_device_and_no_other_or_there_is_none(drawn):
    there = [device(f"gpu-{number}", **each) for number, each in enumerate(drawn)]
    published = read_published([slice_of(*there)], "node-a", GPU)
    for (pool, name), own in published.devices.items():
        terms = single_out(published, Place(GPU, pool, name))
        others = [each for at, each in published.devices.items() if at != (pool, name)]
        if terms is None:
            # nobody could: there is one that has all that it has
            assert any(own.items() <= other.items() for other in others)
        else:
            assert fits(terms, own)
            assert not any(fits(terms, other) for other in others)
            assert len(terms) <= len(own)


@given(texts | st.text(alphabet='"\\\n\r\t\0\u2028é😀$&|', max_size=20))
def test_a_literal_is_one_line_of_ascii_and_says_what_it_should(text):
    if any("\ud800" <= character <= "\udfff" for character in text):
        return
    told = literal(text)
    assert re.fullmatch(r'"(?:[ !#-\[\]-~]|\\[\\"nrt]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*"', told)
    assert told[1:-1].encode().decode("unicode_escape") == text


def test_a_uuid_comes_before_other_attributes_and_one_before_two():
    def terms(*there):
        published = read_published([slice_of(*there)], "node-a", GPU)
        found = single_out(published, Place(GPU, "node-a", "gpu-1"))
        return found and [(domain, name) for domain, name, _ in found]

    assert terms(device("gpu-0", a=0, uuid="x"), device("gpu-1", a=1, uuid="y")) == [(GPU, "uuid")]
    assert terms(device("gpu-0", a=0, uuid="x"), device("gpu-1", a=1, uuid="x")) == [(GPU, "a")]
    three = (device("gpu-0", a=0, b=1), device("gpu-1", a=1, b=1), device("gpu-2", a=1, b=2))
    assert terms(*three) == [(GPU, "a"), (GPU, "b")]
    assert terms(device("gpu-1"), device("gpu-0", a=1)) is None
    assert terms(device("gpu-1")) == ()
    # 1 is not true, and a text is no number
    assert terms(device("gpu-0", a=True), device("gpu-1", a=1)) == [(GPU, "a")]


def test_an_expression_asks_whether_an_attribute_is_there_before_its_value():
    published = read_published([TWO], "node-a", GPU)
    terms = single_out(published, Place(GPU, "node-a", "gpu-1"))
    assert expression_of(GPU, terms) == (
        'device.driver == "gpu.example.com" && "uuid" in device.attributes["gpu.example.com"]'
        ' && device.attributes["gpu.example.com"]["uuid"] == "u1"'
    )


def test_of_a_pool_the_newest_generation_counts_and_of_slices_those_that_the_node_may_use():
    old = slice_of(device("gpu-0", uuid="old"), generation=1)
    new = slice_of(device("gpu-0", uuid="new"), generation=2)
    other = slice_of(device("gpu-9", uuid="o"), node="node-b")
    shared = slice_of(device("net-0", uuid="n"), node="", pool={"name": "net", "generation": 1})
    published = read_published([new, old, other, shared], "node-a", GPU)
    assert {at: dict(each) for at, each in published.devices.items()} == {
        ("node-a", "gpu-0"): {(GPU, "uuid"): ("string", "new")},
        ("net", "net-0"): {(GPU, "uuid"): ("string", "n")},
    }
    assert published.digest == read_published([shared, new], "node-a", GPU).digest
    assert published.digest != read_published([shared, old], "node-a", GPU).digest
    moved = slice_of(device("gpu-0", uuid="newer"), generation=2)
    assert published.digest != read_published([shared, moved], "node-a", GPU).digest


# --- objects ---


def test_a_job_is_pinned_to_the_node_tried_once_and_ends_at_the_steps_deadline():
    found = build_job(step(), TEMPLATES.of(step()), POLICY, NOW_MS + 100_000)
    spec, pod = found["spec"], found["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 470)
    assert spec["ttlSecondsAfterFinished"] > 600
    assert pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
        ]
    }
    assert pod["resourceClaims"] == [{"name": "device", "resourceClaimName": found["metadata"]["name"]}]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["env"] == [
        {"name": "SICKBAY_DEVICE", "value": DRA},
        {"name": "SICKBAY_NODE", "value": "node-a"},
        {"name": "SICKBAY_EPISODE", "value": EPISODE},
    ]
    labels = {"app.kubernetes.io/managed-by": "sickbay", "sickbay.dev/episode": EPISODE, "sickbay.dev/step": "probe"}  # fmt: skip
    assert found["metadata"]["labels"] == spec["template"]["metadata"]["labels"] == labels
    assert found["metadata"]["annotations"]["sickbay.dev/device"] == DRA
    assert TEMPLATES.of(step()).spec["template"]["spec"].keys() == {"restartPolicy", "containers"}


def test_a_job_for_a_device_plugin_has_no_claim():
    plugin = step(PLUGIN)
    assert "resourceClaims" not in build_job(plugin, TEMPLATES.of(plugin), POLICY, NOW_MS)["spec"]["template"]["spec"]  # fmt: skip


def test_a_claim_asks_for_one_device_tolerates_our_taint_alone_and_goes_with_its_job():
    published = read_published([TWO], "node-a", GPU)
    terms = single_out(published, step().place)
    claim = build_claim(step(), TEMPLATES.of(step()), terms, published, "uid-1")
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["name"] == "device"
    assert request["exactly"] == {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": expression_of(GPU, terms)}}],
        "tolerations": [{"key": "sickbay.dev/quarantine", "operator": "Exists"}],
    }
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", "uid-1")


def test_an_allocation_is_right_only_when_it_is_this_device_and_nothing_else():
    def claim(*places):
        results = [dict(zip(("driver", "pool", "device"), each, strict=True)) for each in places]
        return {"status": {"allocation": {"devices": {"results": results}}}}

    own = (GPU, "node-a", "gpu-1")
    assert allocated(claim(own), step())
    assert allocated({}, step()) is None
    for others in ([(GPU, "node-a", "gpu-0")], [(GPU, "node-b", "gpu-1")], [own, own], []):
        assert allocated(claim(*others), step()) is False


# --- words ---


def terminated(code, message="", **more):
    return {"status": {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": code, "message": message} | more}}]}}  # fmt: skip


@given(st.lists(st.text(max_size=9_000), max_size=3))
def test_a_report_is_one_short_line_whatever_a_command_says(said):
    told = detail_of(ended_words([terminated(1, each) for each in said]), waiting_words([]), *said)
    assert len(told) <= DETAIL_MAX
    assert told.isprintable()


def test_the_end_of_what_a_command_said_is_kept_and_no_secret():
    told = ended_words(
        [terminated(3, "x" * 1_000 + " password=hunter22 ECC error in bank 7", reason="Error")]
    )
    assert told.startswith("main ended with 3 (Error): …")
    assert told.endswith("ECC error in bank 7")
    assert "hunter22" not in told


def test_of_several_containers_those_that_failed_are_told():
    assert ended_words([terminated(0), terminated(2)]) == "main ended with 2"
    assert ended_words([terminated(0)]) == "main ended with 0"
    evicted = {"status": {"reason": "Evicted", "message": "the node was low on memory"}}
    assert ended_words([evicted]) == "Pod Evicted: the node was low on memory"


def test_what_a_pod_waits_for_is_told():
    condition = {"type": "PodScheduled", "status": "False", "message": "cannot allocate all claims"}
    assert waiting_words([{"status": {"conditions": [condition]}}]) == "cannot allocate all claims"
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    assert waiting_words([{"status": {"containerStatuses": [waiting]}}]) == "main waits: ImagePullBackOff"
