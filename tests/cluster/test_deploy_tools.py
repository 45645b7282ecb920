"""``deploy/`` as kustomize and Helm read it: the base, every component, the example, and the chart, which renders the same."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess

import manifests
import pytest
import yaml
from cluster_objects import make_namespace
from helm_chart import CHART, NAMESPACE
from kustomization import DEPLOY, identity, objects, objects_of
from role_matrix import EXEC_HOOKS, MATRIX, granted

TOOLS = DEPLOY.parent / ".cache" / "deploy-tools"
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
_HASH = re.compile(r"^(sickbay-(?:kafka|policy))-[0-9a-z]{10}$")


def called(name, *arguments):
    """Run a tool; `make deploy-tools` builds it."""
    program = TOOLS / name
    assert program.exists(), f"{name} is not in .cache: `make deploy-tools` builds it (it needs Go 1.26)"
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def built(folder):
    done = called("kustomize", "build", str(folder))
    assert (0, "") == (done.returncode, done.stderr)
    return objects_of(done.stdout)


def with_component(tmp_path, *names):
    """Build the base with components, as an overlay of a user's own does."""
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("chart"))
    overlay = tmp_path / "deploy" / "overlays" / "own"
    overlay.mkdir()
    document = {"resources": ["../../base"], "components": [f"../../components/{name}" for name in names]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return built(overlay)


def rendered(*arguments):
    done = called("helm", "template", "sickbay", str(CHART), "--kube-version", "1.37.0", *arguments)
    assert (0, "") == (done.returncode, done.stderr)
    return objects_of(done.stdout)


def plain(value):
    """Objects with the plain names of generated ConfigMaps."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return _HASH.sub(r"\1", value) if isinstance(value, str) else value


def by_identity(found):
    named = {identity(obj): obj for obj in found}
    assert len(named) == len(found)
    return named


def one(found, kind, name):
    (obj,) = (obj for obj in found if (obj["kind"], obj["metadata"]["name"]) == (kind, name))
    return obj


# --- kustomize --------------------------------------------------------------------------------------------------------


def test_kustomize_builds_what_the_tests_read():
    assert by_identity(plain(built(DEPLOY / "base"))) == by_identity(objects("base"))


def test_a_changed_policy_replaces_the_pods_that_read_it(tmp_path):
    def named(found):
        spec = one(found, "Deployment", "sickbay-respond-exclude")["spec"]["template"]["spec"]
        return next(each["configMap"]["name"] for each in spec["volumes"] if each["name"] == "policy")

    before, after = named(built(DEPLOY / "base")), named(with_component(tmp_path, "enforce-exclusion"))
    assert before != after
    assert _HASH.match(before)
    assert _HASH.match(after)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_changes_only_what_it_is_about(tmp_path, name):
    before, after = by_identity(objects("base")), by_identity(plain(with_component(tmp_path, name)))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    policy = ("ConfigMap", NAMESPACE, "sickbay-policy")
    wanted = {
        "enforce-exclusion": {policy},
        "enforce-exclusion-canary": {policy},
        "enforce-extender": {policy},
        "evict": {policy, ("ConfigMap", NAMESPACE, "sickbay-exclusion-bounds")},
        "exec-hooks": {
            ("ClusterRole", "", "sickbay-respond-move-exec"),
            ("ClusterRoleBinding", "", "sickbay-respond-move-exec"),
        },
        "verified-return": {policy, ("Deployment", NAMESPACE, "sickbay-respond-verify")},
        "http-hooks": {("NetworkPolicy", NAMESPACE, "reaches-hooks")},
    }
    assert changed == wanted[name]


def test_templates_are_read_only_where_devices_are_verified(tmp_path):
    """`respond verify` refuses a directory without any, so it must not be told of one before."""

    def arguments(found):
        (container,) = one(found, "Deployment", "sickbay-respond-verify")["spec"]["template"]["spec"][
            "containers"
        ]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        return container["args"], f"--templates={mounts['templates']}"

    before, option = arguments(objects("base"))
    assert not [each for each in before if each.startswith("--templates")]
    after, _ = arguments(with_component(tmp_path, "verified-return"))
    assert after == [*before, option]


def test_hooks_in_containers_are_granted_to_the_mover_alone(tmp_path):
    found = granted(with_component(tmp_path, "exec-hooks"))
    wanted = copy.deepcopy(MATRIX)
    wanted["sickbay-respond-move"][""] |= EXEC_HOOKS["sickbay-respond-move"][""]
    assert found == wanted


def test_the_example_is_an_installation_of_somebody_s_own():
    found = built(DEPLOY / "overlays" / "example")
    images = {
        container["image"]
        for obj in found
        if obj["kind"] in {"Deployment", "Job"}
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert len(images) == 1
    assert images.pop().startswith("registry.example/sickbay:")
    kafka = next(obj for obj in plain(found) if obj["metadata"]["name"] == "sickbay-kafka")["data"]
    assert kafka["SICKBAY_KAFKA_SECURITY"] == "ssl"
    assert kafka["SICKBAY_KAFKA_BOOTSTRAP"].startswith("kafka-0.kafka.example:9093,")
    assert "to" in one(found, "NetworkPolicy", "reaches-kafka")["spec"]["egress"][0]


def test_the_example_is_taken_by_the_api_server(plane):
    """To the last field, by a dry run; the namespaces are made first, without what would bind the Pods of other tests in them."""
    found = built(DEPLOY / "overlays" / "example")
    for obj in found:
        if obj["kind"] == "Namespace":
            make_namespace(plane.admin, obj["metadata"]["name"])
    for obj in found:
        path = manifests.collection(obj)
        try:
            plane.admin.request("POST", path, obj, dryRun="All", fieldValidation="Strict")
        except manifests.ApiError as error:
            assert error.status == 409, error  # noqa: PT017


# --- Helm -------------------------------------------------------------------------------------------------------------


def as_of_the_base(obj):
    """Take away from a rendered object what only a chart needs."""
    obj = copy.deepcopy(obj)
    if obj["kind"] == "Job":
        obj["metadata"]["name"] = obj["metadata"]["name"].removesuffix("-1")
    if obj["kind"] in {"Job", "Deployment"}:
        template = obj["spec"]["template"]
        assert template["spec"].pop("imagePullSecrets") == []
        annotations = template["metadata"].pop("annotations", {})
        assert annotations.keys() == ({"checksum/config"} if obj["kind"] == "Deployment" else set())
    if obj["kind"] == "NetworkPolicy":
        for rule in (*obj["spec"].get("egress", ()), *obj["spec"].get("ingress", ())):
            for side in ("to", "from"):
                if rule.get(side) == []:
                    del rule[side]
    if obj["metadata"]["name"] == "sickbay-policy":
        obj["data"]["policy.yaml"] = yaml.safe_load(obj["data"]["policy.yaml"])
    return obj


def test_the_chart_renders_the_base():
    base = by_identity(objects("base"))
    del base["Namespace", "", NAMESPACE]  # Helm makes or finds the namespace of a release
    policy = base["ConfigMap", NAMESPACE, "sickbay-policy"]["data"]
    policy["policy.yaml"] = yaml.safe_load(policy["policy.yaml"])
    assert by_identity([as_of_the_base(obj) for obj in rendered("--namespace", NAMESPACE)]) == base


def test_helm_finds_nothing_amiss():
    done = called("helm", "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_namespace_is_named_wherever_it_must_be():
    found = rendered("--namespace", "hospital", "--set", "verificationNamespace=ward")
    assert {obj["metadata"].get("namespace", "") for obj in found} == {
        "",
        "hospital",
        "ward",
        "kube-node-lease",
    }
    text = yaml.safe_dump_all(found)
    assert "system:serviceaccount:hospital:sickbay-respond-exclude" in text
    assert "serviceaccount:sickbay:" not in text
    assert "namespace: sickbay" not in text
    binding = one(found, "ValidatingAdmissionPolicyBinding", "sickbay-exclusion-eviction")
    assert binding["spec"]["paramRef"]["namespace"] == "hospital"
    verify = one(found, "Deployment", "sickbay-respond-verify")
    assert "sickbay-verification" not in yaml.safe_dump(verify)


def test_values_reach_the_processes():
    found = rendered(
        "--namespace", NAMESPACE, "--set", "image.repository=registry.example/sickbay", "--set-string", "image.tag=1.0",
        "--set", "ingest.replicas=1", "--set", "work.replicas=5", "--set", "noExecute=true",
        "--set", "policy.respond.exclusion.mode=evict", "--set", "policy.version=own",
        "--set", "kafka.settings.SICKBAY_KAFKA_BOOTSTRAP=kafka.example:9093", "--set", "kafka.secret=ours",
        "--set", "postgresql.secret=store",
        "--set", "network.kafka[0].ipBlock.cidr=192.0.2.0/24", "--set", "responders.alert.arguments={--log-format=text}",
    )  # fmt: skip
    work = one(found, "Deployment", "sickbay-work")["spec"]
    assert (work["replicas"], work["template"]["spec"]["containers"][0]["image"]) == (
        5,
        "registry.example/sickbay:1.0",
    )
    assert one(found, "Deployment", "sickbay-ingest")["spec"]["replicas"] == 1
    assert "sickbay-ingest" not in {
        obj["metadata"]["name"] for obj in found if obj["kind"] == "PodDisruptionBudget"
    }
    assert one(found, "ConfigMap", "sickbay-exclusion-bounds")["data"] == {"noExecute": "true"}
    policy = yaml.safe_load(one(found, "ConfigMap", "sickbay-policy")["data"]["policy.yaml"])
    assert (policy["version"], policy["respond"]["exclusion"]["mode"]) == ("own", "evict")
    kafka = one(found, "ConfigMap", "sickbay-kafka")["data"]
    assert kafka["SICKBAY_KAFKA_BOOTSTRAP"] == "kafka.example:9093"
    secrets = {
        volume["secret"]["secretName"] for volume in work["template"]["spec"]["volumes"] if "secret" in volume
    }
    assert secrets == {"ours"}
    project = one(found, "Deployment", "sickbay-project")["spec"]["template"]["spec"]["containers"][0]
    assert project["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "url"}
    rule = one(found, "NetworkPolicy", "reaches-kafka")["spec"]["egress"][0]
    assert rule["to"] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
    alert = one(found, "Deployment", "sickbay-respond-alert")["spec"]["template"]["spec"]["containers"][0]
    assert alert["args"][-1] == "--log-format=text"


def test_a_changed_value_replaces_the_pods_that_read_it():
    def checksum(*arguments):
        work = one(rendered("--namespace", NAMESPACE, *arguments), "Deployment", "sickbay-work")
        return work["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum() == checksum()
    assert len({checksum(), checksum("--set", "policy.version=own")}) == 2


def test_a_responder_that_does_not_run_has_no_rights_either():
    def named(found):
        return {identity(obj) for obj in found if "respond-move" in obj["metadata"]["name"]}

    arguments = ("--namespace", NAMESPACE, "--set", "responders.move.enabled=false")
    assert named(rendered(*arguments)) == set()
    assert len(named(rendered("--namespace", NAMESPACE))) > 5


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("noExecute=perhaps", "noExecute"),
        ("work.replicas=0", "replicas"),
        ("kafka.settings.SICKBAY_KAFKA_SASL_PASSWORD=a", "SICKBAY_KAFKA_SASL_PASSWORD"),
        ("responders.extent.enabled=true", "extent"),
        ("images.tag=1", "images"),
    ],
)
def test_a_value_that_is_none_is_refused_by_name(setting, named):
    done = called("helm", "template", "sickbay", str(CHART), "--kube-version", "1.37.0", "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


def test_an_older_cluster_is_refused():
    done = called("helm", "template", "sickbay", str(CHART), "--kube-version", "1.35.0")
    assert done.returncode != 0
    assert "1.36" in done.stderr
