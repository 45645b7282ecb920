"""The shipped roles and admission policies on a real API server: what each process may do is the matrix, to the last verb."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import manifests
import pytest
from cluster_acting import Acting
from control_plane import VERSIONS, ApiError, ControlPlane
from kustomization import objects
from responding import quarantined, released
from role_matrix import MATRIX, NAMESPACE, VERIFICATION, rights_of

from sickbay.policy import ExclusionPolicy, Policy, RespondPolicy


@pytest.fixture(scope="module", params=VERSIONS)
def plane(request):
    """A control plane of these tests' own: what they install binds every namespace, and would bind other tests' Pods."""
    with ControlPlane(request.param) as started:
        yield started


CLUSTER_OBJECTS = {
    "Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
#: A namespace of somebody else's, those of ours, and that of the nodes' Leases.
SCOPES = ("default", NAMESPACE, VERIFICATION, "kube-node-lease")

#: What none of them may ever do, wherever they are: verb, resource with its group, namespace, name.
DENIED = [
    ("get", "secrets", NAMESPACE, ""),
    ("list", "secrets", "", ""),
    ("get", "configmaps", NAMESPACE, "sickbay-exclusion-bounds"),
    ("update", "configmaps", NAMESPACE, "sickbay-exclusion-bounds"),
    ("patch", "configmaps", NAMESPACE, "sickbay-policy"),
    ("create", "pods", NAMESPACE, ""),
    ("create", "pods", VERIFICATION, ""),
    ("delete", "pods", "default", ""),
    ("deletecollection", "pods", "default", ""),
    ("patch", "pods", "default", ""),
    ("patch", "pods/status", "default", ""),
    ("create", "pods/exec", "default", ""),
    ("get", "pods/exec", "default", ""),
    ("create", "pods/attach", "default", ""),
    ("create", "pods/portforward", "default", ""),
    ("patch", "pods/ephemeralcontainers", "default", ""),
    ("get", "pods/log", "default", ""),
    ("create", "pods/binding", "default", ""),
    ("create", "jobs.batch", NAMESPACE, ""),
    ("delete", "jobs.batch", "default", ""),
    ("patch", "deployments.apps", NAMESPACE, ""),
    ("patch", "nodes", "", ""),
    ("patch", "nodes/status", "", ""),
    ("get", "nodes/proxy", "", ""),
    ("create", "nodes/proxy", "", ""),
    ("update", "resourceslices.resource.k8s.io", "", ""),
    ("delete", "resourceslices.resource.k8s.io", "", ""),
    ("update", "resourceclaims.resource.k8s.io", "default", ""),
    ("delete", "resourceclaims.resource.k8s.io", "default", ""),
    ("update", "resourceclaims.resource.k8s.io/status", "default", ""),
    ("update", "resourceclaims.resource.k8s.io/binding", "default", ""),
    ("patch", "deviceclasses.resource.k8s.io", "", ""),
    ("patch", "devicetaintrules.resource.k8s.io", "", ""),
    ("deletecollection", "devicetaintrules.resource.k8s.io", "", ""),
    ("update", "devicetaintrules.resource.k8s.io/status", "", ""),
    ("update", "leases.coordination.k8s.io", "kube-node-lease", "node"),
    ("update", "leases.coordination.k8s.io", NAMESPACE, "of-somebody-else"),
    ("delete", "leases.coordination.k8s.io", NAMESPACE, ""),
    ("create", "leases.coordination.k8s.io", "default", ""),
    ("delete", "poddisruptionbudgets.policy", "default", ""),
    ("create", "serviceaccounts/token", NAMESPACE, ""),
    ("impersonate", "serviceaccounts", NAMESPACE, ""),
    ("impersonate", "users", "", ""),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", "", ""),
    ("escalate", "clusterroles.rbac.authorization.k8s.io", "", ""),
    ("bind", "clusterroles.rbac.authorization.k8s.io", "", ""),
    ("update", "validatingadmissionpolicies.admissionregistration.k8s.io", "", ""),
    ("delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io", "", ""),
    ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "", ""),
    ("approve", "signers.certificates.k8s.io", "", ""),
    ("get", "namespaces", "", ""),
]

#: What a stolen token would be tried for first, each as a real request.
TRIED = {
    "read a secret": ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    "open the bounds": ("PUT", f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-exclusion-bounds"),
    "delete a Pod": ("DELETE", "/api/v1/namespaces/default/pods/a"),
    "run something in a Pod": ("POST", "/api/v1/namespaces/default/pods/a/exec"),
    "cordon a node": ("PATCH", "/api/v1/nodes/a"),
    "write a slice": ("PUT", "/apis/resource.k8s.io/v1/resourceslices/a"),
    "write an allocation": ("PUT", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/a/status"),
    "remove the bounds": (
        "DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/sickbay-exclusion",
    ),
    "give itself a role": ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
}  # fmt: skip


def install(plane):
    manifests.make(plane.admin, [obj for obj in objects("base") if obj["kind"] in CLUSTER_OBJECTS])


@pytest.fixture(scope="module")
def installed(plane):
    """Install, and let the API server take up the rights, as it does one by one; what is still missing then the tests tell."""
    install(plane)
    end = time.monotonic() + 30
    while any(refused(plane, account) for account in MATRIX) and time.monotonic() < end:
        time.sleep(0.1)
    return plane


@pytest.fixture
def cluster(installed):
    """Return a control plane with everything that the base puts into a cluster, but for what would need nodes."""
    install(installed)
    return installed


# --- the matrix -------------------------------------------------------------------------------------------------------


def review(plane, account, verb, resource, namespace, name=""):
    """Ask the API server whether an account may do something."""
    whole, _, sub = resource.partition("/")
    kind, _, group = whole.partition(".")
    asked = {
        "verb": verb, "group": group, "resource": kind, "subresource": sub, "namespace": namespace, "name": name,
    }  # fmt: skip
    spec = {
        "user": f"system:serviceaccount:{NAMESPACE}:{account}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
        "resourceAttributes": asked,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    status = plane.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)["status"]
    return status["allowed"]


def reported(api, namespace):
    """Return what an account is told that it may do in a namespace, resource to verbs."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status = api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)["status"]
    assert status["incomplete"] is False
    return rights_of(status["resourceRules"])


def merged(*rights):
    found = {}
    for one in rights:
        for resource, verbs in one.items():
            found.setdefault(resource, set()).update(verbs)
    return found


@pytest.mark.parametrize("account", MATRIX)
def test_an_account_may_do_what_the_matrix_says_and_nothing_beyond_what_everybody_may(cluster, account):
    cluster.admin.request(
        "POST",
        "/api/v1/namespaces/default/serviceaccounts",
        {"metadata": {"generateName": "nobody-"}},
    )
    nobody = cluster.admin.items("/api/v1/namespaces/default/serviceaccounts")[-1]["metadata"]["name"]
    api, everybody = cluster.as_account(NAMESPACE, account), cluster.as_account("default", nobody)
    for scope in SCOPES:
        wanted = merged(MATRIX[account].get("", {}), MATRIX[account].get(scope, {}))
        assert reported(api, scope) == merged(reported(everybody, scope), wanted), scope


@pytest.mark.parametrize("account", MATRIX)
def test_everything_of_the_matrix_is_allowed(cluster, account):
    assert refused(cluster, account) == []


def refused(plane, account):
    """Return what an account may not do of the matrix."""
    return [
        (scope, resource, verb)
        for scope, resources in MATRIX[account].items()
        for resource, verbs in resources.items()
        for verb in verbs
        if not allowed_by_name(plane, account, scope, resource, verb)
    ]


def allowed_by_name(plane, account, scope, resource, verb):
    name = ""
    if resource.startswith("leases.") and "/" in resource:
        resource, _, name = resource.partition("/")
    return review(plane, account, verb, resource, scope, name)


@pytest.mark.parametrize("account", MATRIX)
def test_what_is_dangerous_is_denied(cluster, account):
    assert len(DENIED) >= 30
    assert [] == [each for each in DENIED if review(cluster, account, *each)]


@pytest.mark.parametrize("account", ["sickbay-work", "sickbay-respond-exclude", "sickbay-respond-verify", "sickbay-respond-move"])  # fmt: skip
@pytest.mark.parametrize("what", TRIED)
def test_a_stolen_token_is_refused(cluster, account, what):
    method, path = TRIED[what]
    api = cluster.as_account(NAMESPACE, account)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as caught:
        api.request(method, path, {} if method in {"POST", "PUT", "PATCH"} else None, kind=kind)
    assert caught.value.status == 403


def test_no_responder_may_do_another_s_work(cluster):
    """The Lease of each is its own, and only one excludes, one verifies, one moves."""
    work = {
        "sickbay-respond-exclude": ("create", "devicetaintrules.resource.k8s.io", ""),
        "sickbay-respond-verify": ("create", "jobs.batch", VERIFICATION),
        "sickbay-respond-move": ("create", "pods/eviction", "default"),
    }
    for account, other in itertools.product(MATRIX, work):
        assert review(cluster, account, *work[other]) is (account == other)
        assert review(cluster, account, "update", "leases.coordination.k8s.io", NAMESPACE, other) is (
            account == other
        )


# --- the objects are what the API server takes ------------------------------------------------------------------------


def dry_run(plane, obj):
    return plane.admin.request("POST", manifests.collection(obj), obj, dryRun="All", fieldValidation="Strict")


def test_every_object_of_the_base_is_taken_to_the_last_field(cluster):
    """Those that are there already are refused only for that."""
    for obj in objects("base"):
        try:
            dry_run(cluster, obj)
        except ApiError as error:
            assert (error.status, error.body["reason"]) == (409, "AlreadyExists"), obj["metadata"]  # noqa: PT017


def test_the_pods_pass_the_restricted_standard_and_a_lesser_pod_does_not(cluster):
    templates = [
        (obj["metadata"]["name"], obj["spec"]["template"])
        for obj in objects("base")
        if obj["kind"] in {"Deployment", "Job"}
    ]
    assert len(templates) == len(MATRIX)
    for name, template in templates:
        metadata = {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        dry_run(cluster, pod)
        lesser = pod | {"spec": {**pod["spec"], "hostNetwork": True}}
        with pytest.raises(ApiError, match="violates PodSecurity") as caught:
            dry_run(cluster, lesser)
        assert caught.value.status == 403


# --- admission --------------------------------------------------------------------------------------------------------


class Rules:
    """Taint rules, by the version of the API that this control plane serves."""

    def __init__(self, plane):
        self.version = {"1.36": "v1beta2"}.get(plane.version, "v1")
        self.path = f"/apis/resource.k8s.io/{self.version}/devicetaintrules"

    def rule(self, number=0, *, name=None, labels=None, selector=None, **taint):
        return {
            "apiVersion": f"resource.k8s.io/{self.version}",
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": name or f"sickbay-{number:020x}",
                "labels": {"app.kubernetes.io/managed-by": "sickbay"} if labels is None else labels,
            },
            "spec": {
                "deviceSelector": {"driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}
                if selector is None
                else selector,
                "taint": {"key": "sickbay.dev/quarantine", "value": "unhealthy", "effect": "NoSchedule"}
                | taint,
            },
        }


@pytest.fixture
def rules(cluster):
    """Return the rules, with the policies in force, and none left afterwards."""
    made = Rules(cluster)
    until_in_force(cluster, made)
    yield made
    for rule in cluster.admin.items(made.path):
        cluster.admin.delete(f"{made.path}/{rule['metadata']['name']}")


@pytest.fixture
def exclude(cluster):
    """Return a client that is the account of `respond exclude`."""
    return cluster.as_account(NAMESPACE, "sickbay-respond-exclude")


def until_in_force(plane, rules):
    """Wait until both policies refuse: the API server takes them up a moment after they are made."""
    api = plane.as_account(NAMESPACE, "sickbay-respond-exclude")
    for policy, wrong in (
        ("sickbay-exclusion", {"key": "example.com/other"}),
        ("sickbay-exclusion-eviction", {"effect": "NoExecute"}),
    ):
        words = (
            f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: a rule of Sickbay "
        )
        eventually(
            lambda words=words, wrong=wrong: words in refusal(api, rules, rules.rule(**wrong), dry=True)
        )


def eventually(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.1)


def refusal(api, rules, rule, *, dry=False):
    """Return why a rule is refused, "" when it is taken."""
    try:
        api.request("POST", rules.path, rule, **({"dryRun": "All"} if dry else {}))
    except ApiError as error:
        assert error.status in {403, 422}, error  # noqa: PT017
        return str(error)
    return ""


@pytest.mark.parametrize("effect", ["None", "NoSchedule"])
def test_a_right_rule_is_taken_changed_and_removed(cluster, rules, exclude, effect):
    made = exclude.create(rules.path, rules.rule(1, effect=effect))
    assert made["spec"]["taint"]["effect"] == effect
    taint = {**made["spec"]["taint"], "value": "unknown"}
    path = f"{rules.path}/{made['metadata']['name']}"
    assert written(cluster, exclude, path, taint=taint)["spec"]["taint"]["value"] == "unknown"
    exclude.delete(f"{rules.path}/{made['metadata']['name']}")
    assert exclude.items(rules.path) == []


WRONG = {
    "no selector at all": {"selector": {}},
    "no driver": {"selector": {"pool": "a", "device": "gpu-0"}},
    "no pool": {"selector": {"driver": "gpu.example.com", "device": "gpu-0"}},
    "no device": {"selector": {"driver": "gpu.example.com", "pool": "a"}},
    "another key": {"key": "example.com/quarantine"},
    "a key of ours that is another": {"key": "sickbay.dev/quarantined"},
    "the effect that ends Pods": {"effect": "NoExecute"},
    "another name": {"name": "of-somebody-else"},
    "a short name": {"name": "sickbay-0123"},
    "a name that only contains one": {"name": f"sickbay-{0:020x}-b"},
    "no label": {"labels": {}},
    "the label of another manager": {"labels": {"app.kubernetes.io/managed-by": "helm"}},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_rule_is_refused_that_has(rules, exclude, what):
    assert "ValidatingAdmissionPolicy 'sickbay-exclusion" in refusal(
        exclude, rules, rules.rule(2, **WRONG[what])
    )
    assert exclude.items(rules.path) == []


def test_a_rule_without_a_selector_field_is_refused(rules, exclude):
    rule = rules.rule(2)
    del rule["spec"]["deviceSelector"]
    assert "driver, pool and device" in refusal(exclude, rules, rule)


def test_a_right_rule_cannot_be_changed_into_a_wrong_one(cluster, rules, exclude):
    made = exclude.create(rules.path, rules.rule(3))
    path = f"{rules.path}/{made['metadata']['name']}"
    for change in (
        {"deviceSelector": {"driver": "gpu.example.com"}},
        {"taint": {**made["spec"]["taint"], "effect": "NoExecute"}},
        {"taint": {**made["spec"]["taint"], "key": "example.com/other"}},
    ):
        with pytest.raises(ApiError, match="sickbay-exclusion") as caught:
            written(cluster, exclude, path, **change)
        assert caught.value.status == 403
    assert exclude.get(path)["spec"] == made["spec"]


@pytest.mark.parametrize("stranger", [{"name": "of-somebody-else"}, {"labels": {}}])
def test_a_stranger_s_rule_is_neither_changed_nor_removed(cluster, rules, exclude, stranger):
    """Not even into one that would be right."""
    theirs = cluster.admin.create(rules.path, rules.rule(4, **stranger))
    path = f"{rules.path}/{theirs['metadata']['name']}"
    adopted = {"labels": {"app.kubernetes.io/managed-by": "sickbay"}}
    with pytest.raises(ApiError, match="leaves it alone") as caught:
        written(cluster, exclude, path, adopted)
    assert caught.value.status == 403
    with pytest.raises(ApiError, match="leaves it alone") as caught:
        exclude.delete(path)
    assert caught.value.status == 403
    kept = cluster.admin.get(path)
    assert (kept["metadata"].get("labels"), kept["spec"]) == (
        theirs["metadata"].get("labels"),
        theirs["spec"],
    )


def test_others_are_not_bound_and_a_person_may_take_over_a_rule_of_sickbay_s(cluster, rules, exclude):
    made = exclude.create(rules.path, rules.rule(5))
    path = f"{rules.path}/{made['metadata']['name']}"
    written(cluster, cluster.admin, path, taint={**made["spec"]["taint"], "effect": "NoExecute"})
    cluster.admin.create(
        rules.path, rules.rule(name="theirs", labels={}, selector={}, key="example.com/a", effect="None")
    )
    cluster.admin.delete(path)


def written(plane, api, path, metadata=None, **spec):
    """Write a rule over with some fields of its spec changed; the controller of evictions may write its status at any time."""
    for _ in range(20):
        found = plane.admin.get(path)
        found["metadata"] |= metadata or {}
        found["spec"] |= spec
        try:
            return api.put(path, found)
        except ApiError as error:
            if error.status != 409:
                raise
    raise AssertionError(f"{path} is written all the time")


def bounds(plane, value):
    plane.admin.patch(
        f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-exclusion-bounds", {"data": {"noExecute": value}}
    )


def test_pods_may_be_ended_only_where_the_parameter_says_so(cluster, rules, exclude):
    """It needs exactly the word: everything else keeps the bound."""
    ending = rules.rule(6, effect="NoExecute")
    try:
        bounds(cluster, "true")
        eventually(lambda: not refusal(exclude, rules, ending, dry=True))
        exclude.create(rules.path, ending)
        bounds(cluster, "True")
        eventually(lambda: refusal(exclude, rules, rules.rule(7, effect="NoExecute"), dry=True))
        exclude.delete(f"{rules.path}/{ending['metadata']['name']}")
    finally:
        bounds(cluster, "false")
        eventually(lambda: refusal(exclude, rules, ending, dry=True))


def test_a_missing_parameter_keeps_the_bound_and_stops_nobody_s_removal(cluster, rules, exclude):
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-exclusion-bounds"
    kept = cluster.admin.get(path)
    made = exclude.create(rules.path, rules.rule(8))
    cluster.admin.delete(path)
    try:
        eventually(lambda: "no params found" in refusal(exclude, rules, rules.rule(9), dry=True))
        cluster.admin.create(rules.path, rules.rule(name="theirs", labels={}))
        exclude.delete(f"{rules.path}/{made['metadata']['name']}")
    finally:
        metadata = {"name": kept["metadata"]["name"], "namespace": NAMESPACE}
        cluster.admin.create(
            f"/api/v1/namespaces/{NAMESPACE}/configmaps",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": kept["data"]},
        )
        eventually(lambda: not refusal(exclude, rules, rules.rule(9), dry=True))


# --- the responder itself ---------------------------------------------------------------------------------------------


@pytest.fixture
def excluding(cluster, rules, tmp_path):
    """Return how to make an excluder that has the shipped rights and is held to the shipped bounds."""
    token = tmp_path / "token"
    token.write_text(cluster.token(NAMESPACE, "sickbay-respond-exclude"), encoding="utf-8")
    account = SimpleNamespace(
        folder=tmp_path, kubeconfig=lambda path: cluster.kubeconfig(path, user="exclude", token_file=token)
    )
    made = []

    def make(mode):
        policy = Policy(respond=RespondPolicy(exclusion=ExclusionPolicy(mode=mode, confirm_after_ms=0)))
        made.append(Acting(account, policy, installation="roles"))
        return made[-1]

    yield make
    for each in made:
        each.close()


BAD = "dra:roles.example.com/rack/gpu-0"


@pytest.mark.parametrize(("mode", "effect"), [("observe", "None"), ("enforce", "NoSchedule")])
def test_the_excluder_needs_no_more_than_the_shipped_rights_and_bounds(
    cluster, rules, excluding, mode, effect
):
    exclusion = excluding(mode)
    exclusion.look(quarantined(BAD, "rack"))
    (rule,) = cluster.admin.items(rules.path)
    assert rule["spec"]["taint"]["effect"] == effect
    cluster.admin.patch(f"{rules.path}/{rule['metadata']['name']}", {"spec": {"taint": {"value": "edited"}}})

    # the controller of evictions writes a rule's status, and what names an older version is refused: then it looks again
    def values():
        exclusion.excluder._list_at_ms = 0
        exclusion.look()
        return [each["spec"]["taint"].get("value") for each in cluster.admin.items(rules.path)]

    eventually(lambda: values() != ["edited"])
    assert len(values()) == 1
    exclusion.look(released(BAD, "rack"))
    eventually(lambda: values() == [])
    assert not {"refused", "given_up"} & set(exclusion.reports.states())


def test_an_excluder_that_would_end_pods_is_refused_while_the_bound_is_closed(cluster, rules, excluding):
    """And says so: a policy alone evicts nobody."""
    exclusion = excluding("evict")
    exclusion.look(quarantined(BAD, "rack"))
    assert cluster.admin.items(rules.path) == []
    assert exclusion.reports.states() == ["refused"]


def test_the_policies_are_checked_against_the_types_and_nothing_is_amiss(cluster, rules):
    """The controller writes down what an expression could not mean for the resources that it is about."""
    for name in ("sickbay-exclusion", "sickbay-exclusion-eviction"):
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"
        eventually(lambda path=path: "typeChecking" in cluster.admin.get(path).get("status", {}))
        assert cluster.admin.get(path)["status"]["typeChecking"] == {}
