"""The page: complete without a network or a script, exact on its axis, and deaf to markup in the cluster's words."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest
from report_models import START_MS, Seen, at, fact, full, mark

from sickbay.report import Bar, Device, Node, Phase, Report, render
from sickbay.report.markup import TEXT_MAX

HOSTILE = [
    '</script><img src=x onerror="alert(1)">',
    "</style></title></svg><script>alert(1)</script>",
    '"><a href="javascript:alert(1)" onfocus=alert(1) autofocus x="',
    "' onmouseover='alert(1)",
    "<!--",
    "]]>&lt;b&gt;&#60;",
    "\u202egnp.exe\u2066\u200b\u2028",
    "\x1b[2J\x1b]0;owned\x07\x00\r\n",
    "${alert(1)}{{7*7}}`",
    "\ud83d",
]


@pytest.fixture(scope="module")
def page():
    return render(full())


@pytest.fixture(scope="module")
def seen(page):
    return Seen(page)


def empty(**changes) -> Report:
    values = {"title": "t", "from_ms": at(0), "until_ms": at(10), "source": "s", "created_by": "b"}
    return Report(**(values | changes))


def one(phases=(), marks=()) -> Report:
    return empty(nodes=(Node("node-a", (Device("dra:d/p/gpu-0", "d", tuple(phases), marks=tuple(marks)),)),))


# --- what a browser may do with it -----------------------------------------------------------------------------------


def test_a_page_names_no_other_place(page, seen):
    """Nothing on it can be fetched: no address, no source, and every link and reference is within the page."""
    assert "//" not in re.sub(r"/\*.*?\*/", "", page, flags=re.DOTALL)
    assert "url(" not in page.replace("url(#", "")
    assert "@import" not in page
    fetching = {"src", "srcset", "action", "formaction", "data", "poster", "background", "ping", "style"}
    assert set() == fetching & {name for _, attributes in seen.elements for name in attributes}
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in seen.elements)
    assert set() == {"link", "img", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in seen.elements
    }


def test_the_browser_is_told_to_run_only_what_the_page_holds(page):
    """The content policy has the hash of the one style and the one script, and denies the rest."""
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1]
    hashes = {
        name: b64encode(
            sha256(re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1].encode()).digest()
        ).decode()
        for name, tag in (("style-src", "style"), ("script-src", "script"))
    }
    assert policy.split("; ") == [
        "default-src 'none'",
        *(f"{name} 'sha256-{value}'" for name, value in hashes.items()),
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_every_reference_has_its_target_and_every_id_is_one(seen):
    """Links, shapes, labels and descriptions point at something that is there once."""
    ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {
        reference.removeprefix("#")
        for _, attributes in seen.elements
        for name in ("href", "for", "aria-labelledby", "aria-describedby", "aria-controls")
        if (reference := attributes.get(name))
    }
    assert set() == wanted - set(ids)
    assert {name for name in wanted if name.startswith("d")} >= {"d1", "d2", "d3", "d4"}


def test_patterns_that_the_style_names_exist(page, seen):
    """A bar without its pattern would be told apart by nothing."""
    patterns = {attributes["id"] for attributes in seen.all("pattern")}
    assert set(re.findall(r"url\(#([\w-]+)\)", page)) <= patterns
    assert patterns >= {
        f"p-{phase}" for phase in ("suspect", "restricted", "quarantined", "probing", "canary", "observing")
    }


def test_equal_models_give_equal_bytes(page):
    """There is no time of writing in it, and no drawn number."""
    assert page == render(full())


# --- words of the cluster --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HOSTILE, ids=repr)
def test_words_of_the_cluster_never_become_markup(seen, word):
    """The same elements with the same attributes come out whatever the words are, and no control character does."""
    page = render(full(word))
    found = Seen(page)
    assert [] == found.unbalanced

    def shape(of):
        return [(tag, sorted(attributes)) for tag, attributes in of.elements if tag != "wbr"]

    assert shape(seen) == shape(found)
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", found.text
    )
    page.encode()


def test_a_word_is_shown_as_it_is_where_that_is_safe():
    """What can be printed is not changed, in whatever script it is written."""
    found = Seen(render(full("Grüße-שלום-<b>")))
    assert "Incident Grüße-שלום-<b>" in found.text


def test_a_long_text_is_cut_and_says_so():
    """A message of a megabyte makes no page of a megabyte."""
    found = Seen(render(one(marks=[mark(1, "quarantine_opened", 1, reason="x" * 1_000_000)])))
    assert "x" * (TEXT_MAX - 1) + "…" in found.text
    assert "x" * TEXT_MAX not in found.text


# --- the axis --------------------------------------------------------------------------------------------------------


def bars(found, name):
    return [
        (bar["x"], bar["width"]) for bar in found.all("svg", class_=name) if bar.get("x", "").endswith("%")
    ]


def shapes(found):
    return [(use["href"], use["x"]) for use in found.all("use") if use.get("x", "").endswith("%")]


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (at(2.5), at(5), ("25%", "25%")),
        (at(0), at(10), ("0%", "100%")),
        (at(7.5), None, ("75%", "25%")),
        (at(-5), at(1), ("0%", "10%")),
        (at(9), at(20), ("90%", "10%")),
        (at(5), at(5) + 1, ("50%", "0.2%")),
        (at(10), at(11), ("99.8%", "0.2%")),
    ],
)
def test_a_phase_stands_where_its_time_is(begin, end, expected):
    """Of ten hours each is a tenth of the width; what lies outside is cut off, and what is too short is still seen."""
    found = Seen(render(one([Phase("quarantined", "unhealthy", begin, end)])))
    assert [expected] == bars(found, "quarantined")


def test_what_lies_outside_of_the_shown_time_is_not_drawn():
    """A phase that ended before the first hour has no bar."""
    found = Seen(render(one([Phase("quarantined", "unhealthy", at(-5), at(-1))])))
    assert [] == bars(found, "quarantined")


def test_a_decision_stands_where_its_time_is_and_leads_to_its_evidence():
    """The mark at a quarter of the width links to the words of that decision."""
    decision = mark(1, "quarantine_opened", 2.5, evidence=(fact(7, 2.4, "ml/train says Unhealthy: XID 79"),))
    page = render(one(marks=[decision]))
    found = Seen(page)
    assert [("#k-down", "25%")] == shapes(found)
    (link,) = found.all("a", class_="m")
    words = Seen(re.search(rf'<li id="{link["href"][1:]}">.*?\n', page, re.DOTALL)[0]).text
    for part in (
        "2026-07-01 02:30:00Z", "quarantine_opened", "because of fact 1", "quarantine.min_hold_ms", "73c557ae2cb82f74", "event-1", "3/101",
        "device_health_observed", "ml/train says Unhealthy: XID 79", "fact-7", "3/97",
    ):  # fmt: skip
        assert part in words


def test_marks_of_one_instant_do_not_hide_one_another():
    """Three decisions at one time stand at three heights."""
    found = Seen(render(one(marks=[mark(number, "quarantine_extended", 5) for number in range(3)])))
    assert 3 == len({use["y"] for use in found.all("use") if use["x"] == "50%"})


def test_a_mark_has_one_tab_stop_in_its_row_and_words_for_a_screen_reader():
    """Without a script a row is one stop; each mark says what it is."""
    found = Seen(render(one(marks=[mark(number, "quarantine_extended", number) for number in range(3)])))
    links = found.all("a", class_="m")
    assert [None, "-1", "-1"] == [link.get("tabindex") for link in links]
    assert "quarantine_extended 2026-07-01 02:00:00Z" in links[2]["aria-label"]


def test_a_gap_is_a_band_behind_everything():
    """From eight to nine of ten hours, in each drawing."""
    found = Seen(render(full()))
    bands = {(band["x"], band["width"], band["height"]) for band in found.all("rect", class_="gapband")}
    assert {("80%", "10%", "100%")} == bands


@pytest.mark.parametrize("phase", ["suspect", "restricted", "quarantined", "probing", "canary", "observing"])
def test_a_phase_is_told_by_word_and_pattern_and_not_by_colour_alone(phase):
    """A wide bar has its word, a narrow one its letter, and each its sentence."""
    page = render(one([Phase(phase, "unhealthy", at(2), at(5)), Phase(phase, "unhealthy", at(6), at(6.2))]))
    wide, narrow = re.findall(rf'<svg class="b {phase}" x="[^"]*%".*?</svg>', page)
    assert f">{phase}</text>" in wide
    assert f">{phase[0].upper()}</text>" in narrow
    assert (
        f"<title>{phase}, cause unhealthy: 2026-07-01 02:00:00Z to 2026-07-01 05:00:00Z, 3 h</title>" in wide
    )


# --- what is there, and what is not ----------------------------------------------------------------------------------


def test_everything_of_the_model_is_in_words(seen):
    """Each part of the model leaves its words outside of the picture."""
    for part in (
        "Incident plain", "replay:plain", "v1plain", "73c557ae2cb82f74", "ab" * 32, "episode-1", "flapping", "plain.jsonl:17", "64Gi",
        "39Gi", "slice_stale", "mapping_changed", "claim/plain", "Showing part of plain.", "120 events in the log", "and 3 more facts",
    ):  # fmt: skip
        assert part in seen.text, part


def test_quiet_devices_are_counted_and_folded(seen):
    """One of a busy node, and a node of eight to which nothing happened."""
    assert "1 quiet device: in service throughout" in seen.text
    assert "1 quiet node with 8 devices: nothing happened there" in seen.text
    assert 1 == len(seen.all("div", class_="dev"))
    assert all("open" not in fold for fold in seen.all("details", class_="quiet"))


def test_a_page_of_nothing_says_so():
    """No device, no episode, no ledger: each section has a sentence."""
    found = Seen(render(empty()))
    for sentence in (
        "Every device was in service throughout.",
        "Nothing happened to any device in this time.",
        "No quarantine episode in this time.",
        "The store holds no ledger of these nodes.",
        "No decision in this time.",
    ):
        assert sentence in found.text
    assert [] == found.unbalanced


def test_many_rows_are_drawn_compact():
    """Eight rows are high, eight hundred are low."""

    def height(count):
        devices = tuple(
            Device(f"dra:d/p/gpu-{n}", "d", (Phase("suspect", "unknown", at(1), at(2)),))
            for n in range(count)
        )
        found = Seen(render(empty(nodes=(Node("node-a", devices),))))
        return {
            int(track["height"])
            for track in found.all("svg", class_="track")
            if "gpu-" in (track.get("aria-label") or "")
        }

    assert max(height(800)) < min(height(8))


def test_holds_of_the_ledger_stand_on_the_same_axis(seen):
    """From four to six of ten hours."""
    assert [("40%", "20%")] == bars(seen, "hold")


def test_decisions_of_the_ledger_are_marks_on_their_nodes_lane(page, seen):
    """At four of ten hours, with the words in the list of decisions that the mark leads to."""
    (link,) = [mark for mark in seen.all("a", class_="m") if "verdict_changed" in mark["aria-label"]]
    assert "hold: plain" in link["aria-label"]
    lane = re.search(r'<div class="row holds">.*?</div></div>|<div class="row holds">.*?</svg></div>', page)[
        0
    ]
    assert link["href"] in lane
    assert 'x="40%"' in lane
    assert f'id="{link["href"][1:]}"' in page
    assert "verdict on new claims" in seen.text


def test_what_of_the_ledger_still_stands_is_counted(seen):
    """The hold is over, the difference and the duplicate are not."""
    assert "1 hold (0 standing), 1 difference (1 standing), 1 refused duplicate (1 standing)" in seen.text


def test_over_commitment_is_shown_full():
    """A node that gave more than it has is not drawn beyond its edge."""
    report = full()
    (node,) = report.ledger
    over = replace(node, balances=(replace(node.balances[0], used_per_mille=1_250),))
    found = Seen(render(replace(report, ledger=(over,))))
    assert ["100.0%"] == [bar["width"] for bar in found.all("rect", class_="over")]
    assert "125 % used" in found.text


def test_the_incident_bar_and_the_episode_line_keep_the_time_of_their_row():
    """The incident from six to seven, the episode from two on without an end."""
    page = render(full())
    assert [("60%", "10%")] == bars(Seen(page), "incident")
    line = re.search(r'<g class="episode".*?</g>', page)[0]
    assert ('x1="20%" x2="100%"', 1) == (re.search(r'x1="\S+" x2="\S+"', line)[0], line.count("<line"))


def test_a_time_before_the_epoch_of_records_does_not_break_a_page():
    """The first moment that a log can hold is drawn."""
    report = empty(from_ms=0, until_ms=1_000, gaps=(Bar("pods", "", 0, 500),))
    assert ("0%", "50%") in bars(Seen(render(report)), "gap")
    assert START_MS > report.until_ms
