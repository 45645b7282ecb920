"""Templates: what is taken, and that what is refused is named with its place and its remedy."""

from pathlib import Path

import pytest
import yaml
from verification_worlds import PLAIN, PLUGIN, TEMPLATE, TEMPLATES, step

from responders.verification.templates import read_template, read_templates
from sickbay.errors import InputError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "verification"


def changed(path, value):
    """Return the template with one thing changed; a path of names and numbers."""
    document = yaml.safe_load(TEMPLATE)
    at = document
    for part in path[:-1]:
        at = at[part] if isinstance(part, int) else at.setdefault(part, {})
    at[path[-1]] = value
    return yaml.safe_dump(document)


POD = ("spec", "template", "spec")
MAIN = (*POD, "containers", 0)


def test_the_examples_can_be_used():
    found = read_templates(
        {file.name: file.read_text(encoding="utf-8") for file in EXAMPLES.iterdir()}, "examples"
    )
    assert sorted(found.by_file) == ["canary.yaml", "probe.yaml"]
    assert {each.device_class for each in found.by_file.values()} == {"gpu.example.com"}


def test_the_template_of_a_driver_or_resource_comes_before_the_general_one():
    assert TEMPLATES.of(step()).file == "probe.yaml"
    assert TEMPLATES.of(step(PLUGIN)).file == "probe.example.com_card.yaml"
    assert TEMPLATES.of(step(PLUGIN, "canary")).file == "canary.example.com_card.yaml"
    assert read_templates({"canary.yaml": PLAIN}, "t").of(step(PLUGIN)) is None


@pytest.mark.parametrize("file", ["prob.yaml", "probe.yml", "probe..yaml", "readme", "probe-a.yaml"])
def test_a_file_that_no_step_would_ever_find_is_refused(file):
    with pytest.raises(InputError, match=r"no name of a template; write probe\.yaml"):
        read_templates({file: TEMPLATE}, "templates")


def test_a_directory_without_templates_is_refused():
    with pytest.raises(InputError, match="there is no template; put probe"):
        read_templates({}, "templates")


REFUSED = {
    "kind": (("kind",), "Pod", "it must be one Job of batch/v1"),
    "status": (("status",), {}, "leave it out"),
    "namespace": (("metadata", "namespace"), "a", "metadata.namespace: leave it out"),
    "our label": (("metadata", "labels"), {"sickbay.dev/step": "x"}, "finds its own objects"),
    "managed by": (("metadata", "labels"), {"app.kubernetes.io/managed-by": "x"}, "finds its own objects"),
    "a number for a text": (("metadata", "annotations"), {"a": 1}, "put it in quotes"),
    "unknown annotation": (("metadata", "annotations"), {"sickbay.dev/x": "y"}, "unknown; there are"),
    "device class": (("metadata", "annotations"), {"sickbay.dev/device-class": "A B"}, "name of a DeviceClass"),
    "no device class": (("metadata", "annotations"), {}, "name its DeviceClass"),
    "admin access": (
        ("metadata", "annotations"),
        {"sickbay.dev/device-class": "a", "sickbay.dev/admin-access": "yes"},
        'must be "true" or "false"',
    ),
    "backoff": (("spec", "backoffLimit"), 3, "a step is tried once"),
    "deadline": (("spec", "activeDeadlineSeconds"), 3, "staged_return.probe_timeout_ms"),
    "parallel": (("spec", "parallelism"), 2, "a step is one Pod"),
    "selector": (("spec", "selector"), {}, "the Job controller makes it"),
    "unknown field": (("spec", "maxFailedIndexes"), 1, "there may be podFailurePolicy"),
    "node": ((*POD, "nodeName"), "a", "pins the Pod"),
    "node selector": ((*POD, "nodeSelector"), {}, "pins the Pod"),
    "node affinity": ((*POD, "affinity"), {"nodeAffinity": {}}, "pins the Pod"),
    "claims": ((*POD, "resourceClaims"), [], "makes the claim"),
    "gates": ((*POD, "schedulingGates"), [], "nobody would lift them"),
    "restart": ((*POD, "restartPolicy"), "OnFailure", "it must be Never"),
    "no containers": ((*POD, "containers"), [], "a list of containers"),
    "no image": ((*MAIN, "image"), "", "it must be there"),
    "our variable": ((*MAIN, "env"), [{"name": "SICKBAY_NODE", "value": "x"}], "leave SICKBAY_NODE out"),
    "another claim": ((*MAIN, "resources"), {"claims": [{"name": "x"}]}, "it must be"),
    "nobody uses it": ((*MAIN, "resources"), {}, "else none gets the device"),
    "labels of the pod": (("spec", "template", "metadata"), {"labels": {"sickbay.dev/a": "b"}}, "its own objects"),
    "annotations of the pod": (
        ("spec", "template", "metadata"),
        {"annotations": {"sickbay.dev/device-class": "b"}},
        "belong to the Job's metadata",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_sickbay_sets_itself_and_what_cannot_be_is_refused_with_place_and_remedy(what):
    path, value, told = REFUSED[what]
    with pytest.raises(InputError, match=r"^dir/probe\.yaml: ") as caught:
        read_template(changed(path, value), "dir/probe.yaml", "probe.yaml")
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "a: [", "- a", "a: 1\n---\nb: 2\n", "[" * 100_000, "x" * 300_000])
def test_what_is_no_job_at_all_is_refused(text):
    with pytest.raises(InputError, match=r"^dir/probe\.yaml: "):
        read_template(text, "dir/probe.yaml", "probe.yaml")


def test_what_the_namespace_judges_is_the_authors_will():
    document = yaml.safe_load(TEMPLATE)
    document["spec"]["template"]["spec"] |= {
        "hostPID": True,
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}],
        "serviceAccountName": "prober",
    }
    document["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert read_template(yaml.safe_dump(document), "t", "probe.yaml").device_class == "gpu"
