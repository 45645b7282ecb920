"""What the documents say of the code, held against the code: policy, events, command line, links."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec
import pytest
from click.testing import CliRunner

from projections.audit import AUDIT_VIEWS
from responders.alerts.words import SEVERITIES
from sickbay import decisions, errors, facts, policy
from sickbay.cli import cli
from sickbay.cli.replaying import EXIT_PARKED
from sickbay.decisions import DECISIONS, Decision
from sickbay.envelope import Envelope
from sickbay.events import KINDS
from sickbay.facts import FACTS, Fact
from streams.custody.aggregate import LATE_FACT

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "examples/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
#: A command is begun by its name alone, at a prompt, after a pipe, or after settings of the environment.
STARTS = re.compile(r"^(?:\$ |.*\| )?(?:[A-Z_]+=\S+ )*sickbay(?: |$)")


@cache
def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def section(document: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    lines = text_of(document).splitlines()
    begin = lines.index(heading) + 1
    level = len(heading.split(" ", 1)[0])
    for end in range(begin, len(lines)):
        if re.match(rf"#{{1,{level}}} ", lines[end]):
            return "\n".join(lines[begin:end])
    return "\n".join(lines[begin:])


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without headings and rules."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and lines[number + 1].startswith("|---")
        if line.startswith("| ") and not is_head:
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def words_of(hint: Any) -> str:
    """A type in the words of the documents."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{value}`" if value else '`""`' for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(map(words_of, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        inner = words_of(arguments[0])
        return f"list of {f'({inner})' if ' or ' in inner else inner}"
    if origin is tuple:
        return f"({', '.join(map(words_of, arguments))})"
    if origin is dict:
        return f"map of {words_of(arguments[1])}"
    if issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    names = {str: "text", int: "integer", bool: "boolean", type(None): "null", msgspec.Raw: "JSON"}
    return names[hint]


# --- the policy ------------------------------------------------------------------------------------------------------


def constrained(hint: Any) -> str:
    """A policy field's type; a range is part of it."""
    (limits,) = getattr(hint, "__metadata__", (None,))
    if limits is None:
        return words_of(hint)
    is_duration = (limits.ge, limits.le) == (0, policy._YEAR_MS)
    return "duration" if is_duration else f"integer, {limits.ge} to {limits.le}"


def shown_default(name: str, value: Any) -> str:
    spelled = f"`{json.dumps(msgspec.to_builtins(value))}`"
    if not name.endswith("_ms"):
        return spelled
    unit, size = next((unit, size) for unit, size in UNITS if value % size == 0)
    return f"{spelled} ({value // size} {unit})"


def policy_fields(values: msgspec.Struct, prefix: str = "") -> dict[str, tuple[str, str]]:
    """Path to (type, default) of every field but the list of driver rules."""
    found: dict[str, tuple[str, str]] = {}
    for name, hint in get_type_hints(type(values), include_extras=True).items():
        value = getattr(values, name)
        if isinstance(value, msgspec.Struct):
            found |= policy_fields(value, f"{prefix}{name}.")
        elif name != "driver_health":
            found[prefix + name] = (constrained(hint), shown_default(name, value))
    return found


def rule_fields() -> dict[str, tuple[str, str]]:
    cls = policy.DriverHealthRule
    defaults = {field.name: field.default for field in msgspec.structs.fields(cls)}
    return {
        f"driver_health[].{name}": (
            words_of(hint),
            "required" if defaults[name] is msgspec.NODEFAULT else shown_default(name, defaults[name]),
        )
        for name, hint in get_type_hints(cls).items()
    }


def test_every_policy_field_is_documented_with_its_type_and_default() -> None:
    """docs/policy.md lists exactly the fields of the policy, as they are."""
    documented = {
        path.strip("`"): (kind, default)
        for path, kind, default, _ in (r for r in rows(text_of("docs/policy.md")) if len(r) == 4)
    }
    assert policy_fields(policy.Policy()) | rule_fields() == documented


def test_every_policy_field_has_a_reason() -> None:
    """A default without a reason cannot be judged."""
    assert [] == [row[0] for row in rows(text_of("docs/policy.md")) if len(row) == 4 and len(row[3]) < 20]


def test_every_default_driver_rule_is_documented() -> None:
    """The rules that hold without a policy stand in the table, in their order."""
    documented = [r for r in rows(section("docs/policy.md", "### `driver_health`")) if len(r) == 3]
    expected = []
    for rule in policy.Policy().driver_health:
        selectors = ("taint_key", "taint_key_prefix", "attribute")
        selector = next(f"`{name}: {getattr(rule, name)}`" for name in selectors if getattr(rule, name))
        healthy = ", ".join(f"`{value}`" for value in rule.healthy_values)
        means = f"healthy when it is {healthy}, else faulty" if rule.attribute else f"`{rule.means}`"
        expected.append([f"`{rule.driver}`", selector, means])
    assert expected == documented


def test_a_policy_path_that_a_document_names_exists() -> None:
    """A clause that was renamed is renamed in the documents too."""
    paths = policy_fields(policy.Policy())
    sections = {path.split(".")[0] for path in paths if "." in path}
    named = {
        (document, code.split(":")[0])
        for document in DOCUMENTS
        if document != "CHANGELOG.md"
        for code in CODE.findall(text_of(document))
        if re.fullmatch(r"[a-z_]+\.[a-z_]+(: \w+)?", code) and code.split(".")[0] in sections
    }
    assert {"docs/custody.md", "docs/policy.md"} <= {document for document, _ in named}
    assert [] == sorted(name for name in named if name[1] not in paths)


def explained_in(document: str, prefix: str = "") -> set[str]:
    """The policy paths that a document names; on the page of a section its prefix may be left out."""
    named = {code.split(":")[0] for code in CODE.findall(text_of(document))}
    return named | {prefix + name for name in named}


def test_every_clause_that_decides_is_explained() -> None:
    """Every policy clause that a decision can name stands on the page of custody, or of the ledger."""
    paths = {path for path in policy_fields(policy.Policy()) if "." in path}
    paths |= {"driver_health", "lateness_horizon_ms", "hold_requested.until_ms"}
    used = {
        node.value
        for path in (ROOT / "streams").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in paths
    }
    assert len(used) > 20
    assert set() == used - explained_in("docs/custody.md") - explained_in("docs/ledger.md", "ledger.")


def test_every_policy_field_of_custody_is_explained() -> None:
    """What custody is ruled by stands on its page, or the mover's; how objects are read, the ledger and responders do not concern it."""
    others = ("reading.", "ledger.", "respond.")
    paths = {path for path in policy_fields(policy.Policy()) if not path.startswith(others)}
    assert set() == paths - {"version"} - explained_in("docs/custody.md") - explained_in("docs/moves.md")


@pytest.mark.parametrize(
    ("part", "page"), [("exclusion", "exclusion"), ("extender", "extender"), ("alerts", "alerts")]
)
def test_every_policy_field_of_a_responder_is_explained(part: str, page: str) -> None:
    """What a responder is ruled by stands on its page."""
    paths = {path for path in policy_fields(policy.Policy()) if path.startswith(f"respond.{part}.")}
    assert len(paths) > 2
    assert set() == paths - explained_in(f"docs/{page}.md", f"respond.{part}.")


def test_every_policy_field_of_the_ledger_is_explained() -> None:
    """What the ledger is ruled by stands on its page."""
    paths = {path for path in policy_fields(policy.Policy()) if path.startswith("ledger.")}
    assert set() == paths - explained_in("docs/ledger.md", "ledger.")


def alerts_raised() -> set[str]:
    """The kinds of alert that custody raises while their cause lasts, read from the calls."""
    found = set()
    for path in (ROOT / "streams").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            ast.unparse(node.target): node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and node.value is not None
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".raise_alert"):
                kind = node.args[0]
                found.add(ast.literal_eval(constants.get(ast.unparse(kind), kind)))
    return found


def test_phases_outcomes_causes_and_alerts_are_those_of_the_code() -> None:
    """The tables of docs/custody.md list what can be, and nothing else."""

    def first(heading: str) -> set[str]:
        return {row[0].strip("`") for row in rows(section("docs/custody.md", heading))}

    raised = alerts_raised() | {LATE_FACT, "breaker"}
    assert set(get_args(decisions.Phase)) == first("## Phases")
    assert set(get_args(decisions.Outcome)) - {""} == first("## Quarantine")
    causes = get_type_hints(decisions.NodeIncidentOpened)["cause"]
    assert set(get_args(causes)) == first("## Node incidents")
    assert raised == first("## Alerts")


def listed(document: str, heading: str, cells: int) -> set[str]:
    """The first cells of the table with so many cells under a heading."""
    return {row[0].strip("`") for row in rows(section(document, heading)) if len(row) == cells}


def test_books_causes_reasons_and_alerts_of_the_ledger_are_those_of_the_code() -> None:
    """The tables of docs/ledger.md list what can be, and nothing else; an alert is named where its cause is."""
    assert set(get_args(decisions.Book)) == listed("docs/ledger.md", "## Books, accounts, entries", 3)
    assert set(get_args(decisions.DriftCause)) == listed("docs/ledger.md", "## Drift", 2)
    assert set(get_args(decisions.HoldReason)) == listed("docs/ledger.md", "## Verdict", 3)
    assert set() == decisions.LEDGER_ALERTS - set(CODE.findall(text_of("docs/ledger.md")))


def test_every_kind_of_alert_has_a_runbook_with_its_severity() -> None:
    """The link of an alert leads to a paragraph of docs/alerts.md, which begins with how urgent it is."""
    paragraphs = section("docs/alerts.md", "## The kinds")
    told = dict(re.findall(r"^### `(\w+)`\n\n\*(\w+)", paragraphs, re.MULTILINE))
    assert SEVERITIES == told


# --- events ----------------------------------------------------------------------------------------------------------


def own_fields(cls: type[msgspec.Struct]) -> dict[str, str]:
    """Name to type of the fields that a class adds to its base."""
    hints = get_type_hints(cls)
    return {
        name: words_of(hints[name]) for name in inspect.get_annotations(cls) if name in cls.__struct_fields__
    }


def documented_fields(heading: str) -> dict[str, str]:
    found = rows(section("docs/events.md", heading).split("\n#")[0])
    return {name.strip("`"): kind for name, kind, meaning in found if meaning}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_event_is_documented_with_its_fields(kind: str) -> None:
    """docs/events.md has the fields of each kind with their types, and no other."""
    assert own_fields(KINDS[kind]) == documented_fields(f"### `{kind}`")


BASES = {
    "## The envelope": Envelope,
    "## What every fact carries": Fact,
    "## Requests": facts.Request,
    "## What every decision carries": Decision,
    "## Decisions on devices": decisions.CustodyDecision,
    "## Decisions on moves": decisions.MoveDecision,
    "## Decisions on entries": decisions.EntryDecision,
}


@pytest.mark.parametrize("heading", BASES)
def test_what_events_share_is_documented(heading: str) -> None:
    """The fields that every fact, decision, request or envelope carries stand under their heading."""
    assert own_fields(BASES[heading]) == documented_fields(heading)


SHAPES = {
    cls.__name__: cls
    for module in (facts, decisions)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, msgspec.Struct) and not issubclass(cls, Fact | Decision)
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_shape_inside_an_event_is_documented(name: str) -> None:
    """Objects inside a payload have a table of their own."""
    assert own_fields(SHAPES[name]) == documented_fields(f"### {name}")


@pytest.mark.parametrize(
    ("heading", "kinds"), [("### Kinds of facts", FACTS), ("### Kinds of decisions", DECISIONS)]
)
def test_the_list_of_kinds_is_the_register(heading: str, kinds: tuple[type[Fact | Decision], ...]) -> None:
    """Every kind is listed once, in the order of the register, with its schema version."""
    expected = [(f"[`{kind.KIND}`](#{kind.KIND})", str(kind.SCHEMA_VERSION)) for kind in kinds]
    assert expected == [(row[0], row[1]) for row in rows(section("docs/events.md", heading))]


# --- the command line ------------------------------------------------------------------------------------------------


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, f"there is no command {name}"
    return found


COMMANDS = tuple(cli.list_commands(click.Context(cli)))


def test_the_readme_lists_every_command_with_an_example_of_it() -> None:
    """One row for each command, in the order of --help, and the example is of that command."""
    listed = [
        row for row in rows(section("README.md", "## Using it")) if len(row) == 3 and "sickbay" in row[2]
    ]
    assert [f"`{name}`" for name in COMMANDS] == [row[0] for row in listed]
    assert list(COMMANDS) == [row[2].strip("`").split()[1] for row in listed]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str) -> None:
    """docs/cli.md names each option in the section of its command."""
    described = section("docs/cli.md", f"## `{name}`")
    whole = command(name)
    parts = [whole]
    if isinstance(whole, click.Group):
        context = click.Context(whole)
        parts += [whole.get_command(context, each) for each in whole.list_commands(context)]
    options = {
        option
        for part in parts
        for param in part.params
        if isinstance(param, click.Option)
        for option in (*param.opts, *param.secondary_opts)
        if option[:2] == "--"
    }
    named = set(re.findall(r"--[a-z-]+", described))
    # what an example hands to kubectl is kubectl's
    named -= {"--watch", "--output-watch-events"}
    assert options == named


def exit_codes() -> set[int]:
    classes = [errors.SickbayError]
    for cls in classes:
        classes += cls.__subclasses__()
    return {cls.exit_code for cls in classes} | {0, EXIT_PARKED, click.UsageError.exit_code, 130}


def test_the_readme_lists_every_exit_code() -> None:
    """The table has a row for each code that the command line can end with, in order, and no other."""
    assert sorted(exit_codes()) == [int(row[0]) for row in rows(section("README.md", "## Exit codes"))]


def test_the_help_lists_every_exit_code() -> None:
    """`sickbay --help` and the README agree."""
    told = (cli.help or "").split("Exit codes:")[1]
    assert sorted(exit_codes()) == [int(code) for code in re.findall(r"(?:^|;)\s*(\d+) ", told)]


def command_lines() -> list[tuple[str, str]]:
    """``(document, line)`` of every call of sickbay in the documents."""
    found = []
    for document in DOCUMENTS:
        text = text_of(document)
        for language, block in FENCE.findall(text):
            if language in {"sh", "text"}:
                joined = block.replace("\\\n", " ")
                found += [(document, line) for line in joined.splitlines() if STARTS.match(line)]
        found += [(document, code) for code in CODE.findall(FENCE.sub("", text)) if STARTS.match(code)]
    return found


def test_the_documents_show_every_command() -> None:
    """A rule over no command lines would always hold."""
    assert set(COMMANDS) <= {name for _, line in command_lines() for name in shlex.split(line)}


@pytest.mark.parametrize(("document", "line"), command_lines())
def test_a_command_line_in_a_document_parses(document: str, line: str) -> None:
    """Every call that is shown names a command that exists, with options and values that it takes."""
    words = shlex.split(line.removeprefix("$ "))
    name, *arguments = words[words.index("sickbay") + 1 :] or ["--help"]
    if name.startswith("-"):
        assert name in {option for parameter in cli.params for option in parameter.opts} | {"--help", "-h"}
        return
    if name == "COMMAND":
        return
    found = command(name)
    # a bare name in running text only mentions the command
    if arguments:
        found.make_context(name, list(arguments))
    if name == "audit" and arguments and not arguments[0].startswith("-") and arguments[0] != "NAME":
        assert arguments[0] in AUDIT_VIEWS, f"{document}: {line}"


def test_a_wrong_command_line_does_not_parse() -> None:
    """The rule above sees an option that does not exist, a value that is none, and a command that is none."""
    with pytest.raises(click.NoSuchOption):
        command("episodes").make_context("episodes", ["--opened"])
    with pytest.raises(click.BadParameter):
        command("episodes").make_context("episodes", ["--as-of", "yesterday"])
    with pytest.raises(AssertionError, match="no command"):
        command("nurse")


def test_the_quick_start_shows_what_the_demo_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of the shortened output comes, in this order, from the command above it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cache/demo").mkdir(parents=True)
    (block,) = (
        text for language, text in FENCE.findall(section("README.md", "## Quick start")) if language == "text"
    )
    calls = [call.splitlines() for call in re.split(r"^\$ sickbay ", block, flags=re.MULTILINE)[1:]]
    for line, *shown in calls:
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in shlex.split(line)]
        printed = iter(CliRunner().invoke(cli, words, catch_exceptions=False).output.splitlines())
        missing = [text for text in shown if text.strip() not in {"", "…"} and text not in printed]
        assert [] == missing, line
    assert ["replay", "explain", "verify"] == [call[0].split()[0] for call in calls]


# --- links and targets -----------------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """The fragments that headings of a document answer to."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[str, str]]:
    return [
        (document, target)
        for document in DOCUMENTS
        for target in LINK.findall(FENCE.sub("", text_of(document)))
        if "://" not in target
    ]


@pytest.mark.parametrize(("document", "target"), links())
def test_a_relative_link_leads_somewhere(document: str, target: str) -> None:
    """The file exists, and so does the heading if one is named."""
    path, _, fragment = target.partition("#")
    place = (ROOT / document).parent / path if path else ROOT / document
    assert place.exists(), f"{document} links to {target}, which is not there"
    assert not fragment or fragment in anchors(place), f"{document}: {target} names no heading"


def test_every_document_is_reached_from_the_readme() -> None:
    """What nobody links to, nobody reads."""
    reached, waiting = set(), ["README.md"]
    while waiting:
        document = waiting.pop()
        reached.add(document)
        for source, target in links():
            place = ((ROOT / source).parent / target.split("#")[0]).resolve()
            if source == document and place.suffix == ".md" and place.is_relative_to(ROOT):
                name = place.relative_to(ROOT).as_posix()
                waiting += [name] if name not in reached else []
    assert set() == set(DOCUMENTS) - reached


def test_every_make_target_that_a_document_names_exists() -> None:
    """`make` and a word after it is a promise."""
    targets = set(re.findall(r"^\.PHONY: (.+)$", text_of("Makefile"), re.MULTILINE))
    named = {
        word
        for document in DOCUMENTS
        for code in [
            *CODE.findall(text_of(document)),
            *re.findall(r"^make .+$", text_of(document), re.MULTILINE),
        ]
        if code.startswith("make ")
        for word in code.split()[1:]
        if "=" not in word
    }
    assert {"demo", "test"} <= named
    assert set() == named - targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_folder_or_module_that_a_document_names_exists(document: str) -> None:
    """A path in backticks that begins with one of our folders leads somewhere."""
    folders = r"(?:sickbay|ingest|streams|projections|migrations|tests|docs|examples|bench|requirements)"
    named = [c for c in CODE.findall(text_of(document)) if re.fullmatch(rf"{folders}/[\w./-]*", c)]
    assert [] == [name for name in named if not (ROOT / name).exists()]
