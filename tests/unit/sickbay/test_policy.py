"""The policy document: what it refuses, what it hashes, and that every default has a unit and a reason."""

from __future__ import annotations

import ast
import inspect

import msgspec
import pytest

import sickbay.policy
from sickbay.errors import PolicyError
from sickbay.policy import DriverHealthRule, Policy, policy_from_document, policy_from_yaml


def refused(text):
    with pytest.raises(PolicyError) as caught:
        policy_from_yaml(text, place="policy.yaml")
    return str(caught.value)


def test_an_empty_document_is_the_default_policy():
    """A person writes only what differs."""
    assert (
        Policy() == policy_from_yaml("", place="policy.yaml") == policy_from_yaml("{}", place="policy.yaml")
    )


def test_a_document_changes_what_it_names_and_nothing_else():
    """Sections are merged with the defaults, field by field."""
    policy = policy_from_yaml("version: a\nunknown: {window_ms: 60000}", place="policy.yaml")

    assert ("a", 60_000) == (policy.version, policy.unknown.window_ms)
    assert Policy().unknown.settle_ms == policy.unknown.settle_ms
    assert Policy().quarantine == policy.quarantine


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("unknown: {windows_ms: 1}", "windows_ms"),
        ("unkown: {}", "unkown"),
        ("unknown: {window_ms: -1}", "$.unknown.window_ms"),
        ("unknown: {window_ms: 5m}", "$.unknown.window_ms"),
        ("unknown: {window_ms: 1.5}", "$.unknown.window_ms"),
        ("unknown: {window_ms: 99999999999999}", "$.unknown.window_ms"),
        ("breaker: {ratio_percent: 101}", "$.breaker.ratio_percent"),
        ("quarantine: {hold_factor: 0}", "$.quarantine.hold_factor"),
        ("quarantine: {flap_limit: 1}", "$.quarantine.flap_limit"),
        ("staged_return: {prober: perhaps}", "$.staged_return.prober"),
        ("node_incident: {min_devices: 1}", "$.node_incident.min_devices"),
        ("moves: {attempts: 0}", "$.moves.attempts"),
        ("moves: {enabled: sometimes}", "$.moves.enabled"),
        ("quarantine: {health_words: {Broken: Bad}}", "$.quarantine.health_words"),
        ("ledger: {emulate: 1.36}", "$.ledger.emulate"),
        ("ledger: {emulate: '1.35'}", "$.ledger.emulate"),
        ("ledger: {hold_on_drift: explained}", "$.ledger.hold_on_drift"),
        ("ledger: {slice_stale_ms: 1m}", "$.ledger.slice_stale_ms"),
        ("ledger: {canary_values: canary}", "$.ledger.canary_values"),
        ("ledger: {promotion_drills: -1}", "$.ledger.promotion_drills"),
        ("ledger: {grace_ms: 1}", "grace_ms"),
        ("reading: {node_labels: example.com/tier}", "$.reading.node_labels"),
        ("driver_health: [{driver: x}]", "exactly one of"),
        ("driver_health: [{driver: x, taint_key: a, attribute: b}]", "exactly one of"),
    ],
)
def test_a_field_that_does_not_fit_is_refused_with_its_path_and_a_remedy(text, place):
    """A slip of the pen is an error and never a default."""
    error = refused(text)

    assert error.startswith("policy.yaml: ")
    assert place in error
    assert "docs/policy.md" in error


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("unknown: {window_ms: 3600001}", ("unknown.window_ms (3600001)", "unknown.window_max_ms (3600000)")),
        ("quarantine: {min_hold_ms: 86400001}", ("quarantine.min_hold_ms", "quarantine.hold_max_ms")),
        ("quarantine: {lease_ms: 599999}", ("quarantine.min_hold_ms", "quarantine.lease_ms")),
        (
            "staged_return: {observation_ms: 7200001}",
            ("staged_return.observation_ms", "staged_return.observation_only_ms"),
        ),
        (
            "ledger: {rebuild_settle_ms: 600001}",
            ("ledger.rebuild_settle_ms (600001)", "lateness_horizon_ms (600000)"),
        ),
        (
            "ledger: {slice_stale_ms: 600001}",
            ("ledger.slice_stale_ms (600001)", "lateness_horizon_ms (600000)"),
        ),
        ("ledger: {recheck_ms: 600001}", ("ledger.recheck_ms (600001)", "lateness_horizon_ms (600000)")),
        (
            "ledger: {canary_label: example.com/tier}",
            ("ledger.canary_label (example.com/tier)", "reading.node_labels"),
        ),
        ("unknown: {window_ms: 999}", ("unknown.window_ms is 999 ms",)),
        ("quarantine: {min_hold_ms: 0}", ("quarantine.min_hold_ms is 0 ms",)),
    ],
)
def test_fields_that_contradict_one_another_are_refused_by_name(text, names):
    """Both sides and their values stand in the error."""
    error = refused(text)

    for name in names:
        assert name in error


def test_a_canary_label_is_ours_or_one_that_is_kept():
    """A class that is told by a label which nobody reads would be empty for ever, in silence."""
    text = "ledger: {canary_label: example.com/tier}\nreading: {node_labels: [example.com/tier]}"

    assert "example.com/tier" == policy_from_yaml(text, place="p").ledger.canary_label
    text = "ledger: {canary_label: sickbay.dev/wave, canary_values: [first, second]}"
    assert ("first", "second") == policy_from_yaml(text, place="p").ledger.canary_values


@pytest.mark.parametrize("text", ["- a list", "just a text", "42"])
def test_a_document_that_is_no_mapping_is_refused(text):
    """Say what was found."""
    assert "expected a mapping" in refused(text)


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\tunknown: {}"])
def test_a_document_that_is_no_yaml_is_refused_with_its_place(text):
    """The place in the text is in the error."""
    assert "policy.yaml: not YAML" in refused(text)


def test_yaml_can_build_no_objects():
    """A policy is data."""
    assert "not YAML" in refused("!!python/object/apply:os.getcwd []")


def test_the_canonical_document_reads_back_as_the_policy():
    """Defaults included, keys sorted: the log explains itself."""
    policy = policy_from_yaml(
        "version: b\nquarantine: {health_words: {PermanentlyUnhealthy: Unhealthy}}", place="p"
    )
    document = msgspec.json.decode(policy.canonical())

    assert policy == policy_from_document(policy.canonical())
    assert sorted(document) == list(document)
    assert {field.name for field in msgspec.structs.fields(Policy)} == set(document)


def test_a_document_of_another_build_is_refused():
    """A field that this build does not know may decide something."""
    with pytest.raises(PolicyError, match="policy document"):
        policy_from_document('{"unheard_of": 1}')


def test_the_hash_is_that_of_the_content():
    """Equal content has an equal hash, however it was written; any other has another."""
    text = "unknown: {window_ms: 60000, settle_ms: 5000}"
    turned = "unknown:\n  settle_ms: 5000\n  window_ms: 60000\n"
    first, second = policy_from_yaml(text, place="a"), policy_from_yaml(turned, place="b")

    assert first.hash() == second.hash() != Policy().hash()
    assert (16, True) == (len(first.hash()), set(first.hash()) <= set("0123456789abcdef"))


def test_the_hash_of_the_default_policy_is_known():
    """A changed default is another policy and shows in every decision: it must be meant."""
    assert "5e7d3c10f9548544" == Policy().hash()


def test_a_policy_cannot_be_changed():
    """What decided must stay what it was."""
    with pytest.raises(AttributeError):
        Policy().version = "other"


def test_no_duration_is_a_float_and_every_one_names_its_unit():
    """Exact integers in milliseconds; the unit is in the name."""
    document = msgspec.to_builtins(Policy())

    def numbers(node, path):
        if isinstance(node, dict):
            for key, value in node.items():
                yield from numbers(value, f"{path}.{key}")
        elif isinstance(node, float) or (isinstance(node, int) and not isinstance(node, bool)):
            yield path, node

    units = (
        "_ms",
        "_percent",
        "_factor",
        "_limit",
        ".min_devices",
        ".floor",
        ".attempts",
        ".per_node",
        ".cluster",
        "_max",
        "_per_hour",
        ".per_minute",
        "_drills",
    )
    found = list(numbers(document, "policy"))

    assert 20 < len(found)
    assert [] == [path for path, value in found if isinstance(value, float) or not path.endswith(units)]


def test_every_default_stands_beside_its_reason():
    """A comment above each field with a default, in the sections that decide."""
    source = inspect.getsource(sickbay.policy).splitlines()
    tree = ast.parse("\n".join(source))
    sections = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("Policy")]
    silent = [
        f"{section.name}.{field.target.id}"
        for section in sections
        for field in section.body
        if isinstance(field, ast.AnnAssign)
        and not source[field.lineno - 2].strip().startswith("#:")
        and section.name != "Policy"
    ]

    assert 13 == len(sections)
    assert [] == silent


def test_a_rule_on_a_drivers_health_selects_exactly_one_thing():
    """Key, prefix or attribute."""
    assert "k" == DriverHealthRule(driver="d", taint_key="k").taint_key
    with pytest.raises(ValueError, match="exactly one"):
        DriverHealthRule(driver="d", taint_key="k", taint_key_prefix="p")
