"""The manifests of ``deploy/``, held against the command line, the code and what each process may do: without a cluster and Go."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
import yaml
from helm_chart import CHART, ChartError, _document, chart, values
from kustomization import DEPLOY, identity, kustomization, objects, objects_of, sources
from role_matrix import EXEC_HOOKS, MATRIX, NAMESPACE, WITH_TOKEN, granted

from sickbay.cli import cli
from sickbay.operations.running import CANCEL_S, GRACE_S
from sickbay.policy import Policy, policy_from_yaml
from sickbay.settings import kafka_settings

ROOT = Path(__file__).resolve().parents[2]
BASE = objects("base")
WORKLOADS = {obj["metadata"]["name"]: obj for obj in BASE if obj["kind"] in {"Deployment", "Job"}}
DEPLOYMENTS = {name: obj for name, obj in WORKLOADS.items() if obj["kind"] == "Deployment"}
PODS = {name: obj["spec"]["template"] for name, obj in WORKLOADS.items()}
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
READS_POLICY = {
    "sickbay-ingest", "sickbay-respond-alert", "sickbay-respond-exclude", "sickbay-respond-extend", "sickbay-respond-verify",
    "sickbay-respond-move",
}  # fmt: skip


def of_kind(*kinds):
    return {obj["metadata"]["name"]: obj for obj in BASE if obj["kind"] in kinds}


def container(name):
    (found,) = PODS[name]["spec"]["containers"]
    return found


def component(name):
    """The objects that a component adds, and the policy that it brings, if any."""
    folder = DEPLOY / "components" / name
    document = kustomization(f"components/{name}")
    added = [
        obj
        for file in document.get("resources", ())
        for obj in objects_of((folder / file).read_text("utf-8"))
    ]
    policy = folder / "policy.yaml"
    return document, added, policy.read_text("utf-8") if policy.exists() else None


# --- the base is whole ------------------------------------------------------------------------------------------------


def test_every_file_is_part_of_the_base_and_every_part_is_a_file():
    """doctor.yaml is for a person's look, and policy.yaml is the content of a ConfigMap."""
    listed = {source.path for source in sources("base")}
    there = {
        path.relative_to(DEPLOY).as_posix()
        for folder in ("rbac", "base")
        for path in (DEPLOY / folder).iterdir()
    }
    assert there == listed | {"rbac/kustomization.yaml", "rbac/doctor.yaml", "base/policy.yaml"}


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_file_of_a_component_is_used(name):
    document, _, policy = component(name)
    used = {"kustomization.yaml", *document.get("resources", ()), *(["policy.yaml"] if policy else [])}
    assert used == {path.name for path in (DEPLOY / "components" / name).iterdir()}
    generated = [
        entry for entry in document.get("configMapGenerator", ()) if entry["files"] == ["policy.yaml"]
    ]
    assert bool(policy) == bool(generated)


def test_no_two_objects_have_one_name():
    names = [identity(obj) for obj in BASE]
    assert sorted(set(names)) == sorted(names)


def test_there_is_a_workload_for_every_account_and_an_account_for_every_workload():
    assert MATRIX.keys() == WORKLOADS.keys()
    assert {name: name for name in WORKLOADS} == {
        name: pod["spec"]["serviceAccountName"] for name, pod in PODS.items()
    }


def test_every_namespace_asks_for_restricted_pods():
    found = of_kind("Namespace")
    assert {"sickbay", "sickbay-verification"} == found.keys()
    for obj in found.values():
        labels = obj["metadata"]["labels"]
        assert {"restricted"} == {
            labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")
        }


# --- what each may do -------------------------------------------------------------------------------------------------


def test_the_roles_grant_the_matrix_and_nothing_else():
    assert MATRIX == granted(BASE)


def test_nothing_dangerous_is_granted_at_all():
    rules = [rule for obj in of_kind("Role", "ClusterRole").values() for rule in obj["rules"]]
    assert rules
    for rule in rules:
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not any("*" in word for word in words)
        assert not words & {
            "secrets", "configmaps", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "nodes/proxy",
            "serviceaccounts/token", "escalate", "bind", "impersonate", "deletecollection", "patch",
        }  # fmt: skip
        assert "nonResourceURLs" not in rule
        assert not any(resource.endswith("/status") for resource in rule["resources"])


def test_nobody_may_delete_a_workload():
    deletes = {
        (account, scope, resource)
        for account, rights in MATRIX.items()
        for scope, resources in rights.items()
        for resource, verbs in resources.items()
        if "delete" in verbs
    }
    assert deletes == {
        ("sickbay-respond-exclude", "", "devicetaintrules.resource.k8s.io"),
        ("sickbay-respond-verify", "sickbay-verification", "jobs.batch"),
        ("sickbay-respond-verify", "sickbay-verification", "resourceclaims.resource.k8s.io"),
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_only_who_asks_the_cluster_has_a_token(name):
    account = next(obj for obj in BASE if obj["kind"] == "ServiceAccount" and obj["metadata"]["name"] == name)
    assert PODS[name]["spec"]["automountServiceAccountToken"] is (name in WITH_TOKEN)
    assert account.get("automountServiceAccountToken", True) is (name in WITH_TOKEN)
    reaches = PODS[name]["metadata"]["labels"]
    assert ("sickbay.dev/reaches-apiserver" in reaches) is (name in WITH_TOKEN)


def test_commands_in_containers_are_an_addition_of_their_own():
    _, added, _ = component("exec-hooks")
    assert {account: rights for account, rights in granted(added).items() if rights} == EXEC_HOOKS
    for other in set(COMPONENTS) - {"exec-hooks"}:
        assert {"NetworkPolicy"} >= {obj["kind"] for obj in component(other)[1]}


# --- how they run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_command_line_knows_the_command_and_its_options(name):
    command, arguments = cli, list(container(name)["args"])
    context = click.Context(command)
    while isinstance(command, click.Group):
        assert arguments[0] in command.list_commands(context), container(name)["args"]
        context = click.Context(command, parent=context)
        word = arguments.pop(0)
        command = command.get_command(context, word)
    command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_is_restricted(name):
    spec = PODS[name]["spec"]
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert {65532} == {security["runAsUser"], security["runAsGroup"], security["fsGroup"]}
    assert {"type": "RuntimeDefault"} == security["seccompProfile"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container(name)["securityContext"]
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "secret", "configMap"}
    assert {"sizeLimit": "64Mi"} == spec["volumes"][0]["emptyDir"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_asks_for_what_it_needs_and_is_bounded(name):
    resources = container(name)["resources"]
    assert {"cpu", "memory", "ephemeral-storage"} == resources["requests"].keys()
    assert {"memory", "ephemeral-storage"} == resources["limits"].keys()


def test_every_process_runs_the_image_of_the_containers_of_this_machine():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert {compose["x-process"]["image"]} == {container(name)["image"] for name in WORKLOADS}
    assert compose["x-process"]["user"] == "65532:65532"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_kubelet_asks_the_health_port_and_waits_for_a_good_end(name):
    found = container(name)
    (port,) = (port["containerPort"] for port in found["ports"] if port["name"] == "http")
    assert {f"--http-port={port}", "--http-host=0.0.0.0"} <= set(found["args"])
    probes = {kind: found[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {
        "startupProbe": {"path": "/livez", "port": "http"},
        "livenessProbe": {"path": "/livez", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
    }
    assert PODS[name]["spec"]["terminationGracePeriodSeconds"] >= GRACE_S + CANCEL_S + 5


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_replicas_are_kept_apart_and_go_one_by_one(name):
    replicas = DEPLOYMENTS[name]["spec"]["replicas"]
    labels = DEPLOYMENTS[name]["spec"]["selector"]["matchLabels"]
    budget = of_kind("PodDisruptionBudget").get(name)
    if replicas == 1:
        assert budget is None, "a budget of a single replica would stop every drain"
    else:
        assert (budget["spec"]["maxUnavailable"], budget["spec"]["selector"]["matchLabels"]) == (1, labels)
    assert labels.items() <= PODS[name]["metadata"]["labels"].items()
    (spread,) = PODS[name]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels


def test_only_who_takes_turns_or_shares_has_replicas():
    """`respond alert` has no Lease: two of them would tell everything twice."""
    single = {name for name, obj in DEPLOYMENTS.items() if obj["spec"]["replicas"] == 1}
    assert single == {"sickbay-respond-alert"}
    assert DEPLOYMENTS["sickbay-respond-alert"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_service_leads_to_the_ports_of_a_deployment(name):
    service = of_kind("Service")[name]["spec"]
    assert service["selector"].items() <= PODS[name]["metadata"]["labels"].items()
    assert {port["targetPort"] for port in service["ports"]} == {
        port["name"] for port in container(name)["ports"]
    }


def test_a_job_goes_away_so_that_another_version_can_be_applied():
    jobs = {name: obj["spec"] for name, obj in WORKLOADS.items() if obj["kind"] == "Job"}
    assert {"sickbay-topics", "sickbay-migrate"} == jobs.keys()
    for spec in jobs.values():
        assert spec["ttlSecondsAfterFinished"] <= 600
        assert spec["activeDeadlineSeconds"]
        assert spec["backoffLimit"]


# --- what they are told -----------------------------------------------------------------------------------------------


def test_the_shipped_policy_is_the_default_one_and_only_observes():
    data = of_kind("ConfigMap")["sickbay-policy"]["data"]
    shipped = policy_from_yaml(data["policy.yaml"], place="policy.yaml")
    assert Policy() == shipped
    assert ("observe", "observe") == (shipped.respond.exclusion.mode, shipped.respond.extender.mode)
    assert ("none", False) == (shipped.staged_return.prober, shipped.moves.enabled)


@pytest.mark.parametrize("name", WORKLOADS)
def test_whoever_takes_a_policy_is_given_the_one_of_the_config_map(name):
    mounts = {mount["name"]: mount["mountPath"] for mount in container(name)["volumeMounts"]}
    given = [word for word in container(name)["args"] if word.startswith("--policy=")]
    if name not in READS_POLICY:
        assert ([], False) == (given, "policy" in mounts)
        return
    assert [f"--policy={mounts['policy']}/policy.yaml"] == given
    (volume,) = (each for each in PODS[name]["spec"]["volumes"] if each["name"] == "policy")
    assert {"name": "sickbay-policy"} == volume["configMap"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_whoever_speaks_to_kafka_is_told_where_it_is(name):
    speaks = PODS[name]["metadata"]["labels"].get("sickbay.dev/reaches-kafka") == "true"
    assert speaks is (name != "sickbay-migrate")
    assert container(name).get("envFrom", []) == (
        [{"configMapRef": {"name": "sickbay-kafka"}}] if speaks else []
    )
    mounts = {mount["name"]: mount["mountPath"] for mount in container(name)["volumeMounts"]}
    assert speaks is ("kafka" in mounts)
    if speaks:
        settings = kafka_settings(of_kind("ConfigMap")["sickbay-kafka"]["data"])
        assert settings.security == "ssl"
        assert Path(settings.ca_file).parent.as_posix() == mounts["kafka"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_only_the_store_s_own_processes_have_its_url_each_in_a_role_of_its_own(name):
    wanted = {"sickbay-migrate": "sickbay-postgresql-migrator", "sickbay-project": "sickbay-postgresql"}
    secrets = [each["valueFrom"]["secretKeyRef"]["name"] for each in container(name).get("env", [])]
    assert secrets == ([wanted[name]] if name in wanted else [])
    reaches = PODS[name]["metadata"]["labels"]
    assert ("sickbay.dev/reaches-postgresql" in reaches) is (name in wanted)


#: What each component leads to: exclusion's mode, its rules, the extender's mode.
EFFECTS = {
    "enforce-exclusion-canary": ("observe", ["enforce"], "observe"),
    "enforce-exclusion": ("enforce", [], "observe"),
    "enforce-extender": ("enforce", [], "enforce"),
    "evict": ("evict", [], "observe"),
    "verified-return": ("enforce", [], "observe"),
}


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_switches_on_what_it_is_called_after(name):
    document, _, text = component(name)
    if name not in EFFECTS:
        assert text is None
        return
    policy = policy_from_yaml(text, place=name)
    assert policy.version == name
    exclusion = policy.respond.exclusion
    assert EFFECTS[name] == (
        exclusion.mode, [rule.mode for rule in exclusion.rules], policy.respond.extender.mode,
    )  # fmt: skip
    assert policy.moves.enabled is False
    assert policy.staged_return.prober == ("job" if name == "verified-return" else "none")
    merged = [patch["patch"] for patch in document.get("patches", ()) if "target" not in patch]
    opened = [obj for text in merged for obj in objects_of(text)]
    assert [obj["data"] for obj in opened] == ([{"noExecute": "true"}] if name == "evict" else [])


# --- networks ---------------------------------------------------------------------------------------------------------


def policies():
    return [
        obj for obj in BASE if obj["kind"] == "NetworkPolicy" and obj["metadata"]["namespace"] == NAMESPACE
    ]


def chosen(policy, labels):
    return policy["spec"]["podSelector"].get("matchLabels", {}).items() <= labels.items()


def test_what_is_not_allowed_is_denied_in_every_namespace():
    denied = {
        obj["metadata"]["namespace"]
        for obj in BASE
        if obj["kind"] == "NetworkPolicy"
        and obj["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    }
    assert denied == of_kind("Namespace").keys()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_reaches_what_its_labels_say(name):
    labels = PODS[name]["metadata"]["labels"]
    wanted = {f"reaches-{key.rpartition('-')[2]}" for key in labels if key.startswith("sickbay.dev/reaches-")}
    found = {obj["metadata"]["name"] for obj in policies() if chosen(obj, labels)}
    assert found == wanted | {"default-deny", "reaches-dns", "scraped"} | (
        {"asked-by-scheduler"} if name == "sickbay-respond-extend" else set()
    )


def test_every_network_policy_chooses_a_pod():
    for policy in policies():
        assert any(chosen(policy, pod["metadata"]["labels"]) for pod in PODS.values()), policy["metadata"]


def test_a_named_port_of_a_network_policy_is_one_of_the_pods_that_it_chooses():
    for policy in policies():
        named = {
            port["port"]
            for rule in policy["spec"].get("ingress", ())
            for port in rule["ports"]
            if isinstance(port["port"], str)
        }
        for name in DEPLOYMENTS:
            if named and chosen(policy, PODS[name]["metadata"]["labels"]):
                assert named <= {port["name"] for port in container(name)["ports"]}


# --- admission --------------------------------------------------------------------------------------------------------


def test_every_admission_policy_is_bound_denies_and_is_about_the_account_of_exclude_alone():
    found, bindings = of_kind("ValidatingAdmissionPolicy"), of_kind("ValidatingAdmissionPolicyBinding")
    assert {"sickbay-exclusion", "sickbay-exclusion-eviction"} == found.keys() == bindings.keys()
    for name, policy in found.items():
        assert policy["spec"]["failurePolicy"] == "Fail"
        (condition,) = policy["spec"]["matchConditions"]
        account = f"system:serviceaccount:{NAMESPACE}:sickbay-respond-exclude"
        assert condition["expression"] == f"request.userInfo.username == '{account}'"
        assert (bindings[name]["spec"]["policyName"], ["Deny"]) == (
            name, bindings[name]["spec"]["validationActions"],
        )  # fmt: skip


def test_a_missing_parameter_can_stop_neither_a_removal_nor_anybody_s_rules():
    """What a policy matches is refused, whoever asks, while its parameter is missing."""
    parametrised = [
        obj["spec"] for obj in of_kind("ValidatingAdmissionPolicy").values() if "paramKind" in obj["spec"]
    ]
    (spec,) = parametrised
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert spec["matchConstraints"]["objectSelector"] == {
        "matchLabels": {"app.kubernetes.io/managed-by": "sickbay"}
    }


# --- the chart --------------------------------------------------------------------------------------------------------


def test_the_chart_is_what_the_base_says():
    """`make chart` writes it."""
    there = {
        path.relative_to(CHART).as_posix(): path.read_text("utf-8")
        for path in CHART.rglob("*")
        if path.is_file()
    }
    assert chart() == there


def test_every_value_that_the_chart_asks_for_is_given_and_every_given_one_is_asked_for():
    asked = {
        match
        for name, text in chart().items()
        if name.startswith("templates/")
        for match in re.findall(r"\.Values\.([\w.]+)", text)
    }

    def leaves(value, path):
        if not isinstance(value, dict) or path in {"policy", "kafka.settings"}:
            return {path}
        return {leaf for key, each in value.items() for leaf in leaves(each, f"{path}.{key}".lstrip("."))}

    assert asked == leaves(values(), "")


def test_the_schema_knows_the_values_and_no_others():
    schema = json.loads(chart()["values.schema.json"])

    def compare(value, known):
        if known.get("additionalProperties") is False:
            assert value.keys() <= known["properties"].keys()
            assert set(known["required"]) <= value.keys()
            for key, each in value.items():
                compare(each, known["properties"][key])

    compare(values(), schema)
    assert values() == yaml.safe_load(chart()["values.yaml"])


def test_what_a_template_would_misread_is_refused():
    obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": {"a": "{{ b }}"}}}
    with pytest.raises(ChartError, match="braces"):
        _document(obj)
