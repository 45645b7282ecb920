"""The report in a browser: keys, pointer, filter, theme, no complaint in the console, and nothing asked of the network."""

from __future__ import annotations

import pytest
from browser import Browser
from log_scenarios import every_kind
from report_logs import day, hostile
from report_models import full

from projections.engine import Store
from projections.report import Scope, report
from sickbay.report import render

pytestmark = pytest.mark.slow

DAY_ROWS = 240


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages: of every kind of decision, of a day of 800 devices, of hostile words, and of a model with a ledger."""
    folder = tmp_path_factory.mktemp("pages")
    for name, log in (
        ("kinds", every_kind()),
        ("day", day(nodes=100, devices=8)),
        ("hostile", hostile()),
    ):
        with (
            Store.open(folder / f"{name}.db", create=True, partitions=log.partitions) as store,
        ):
            store.write(log.records)
            with store.reading() as connection:
                (folder / f"{name}.html").write_text(render(report(connection, Scope())), encoding="utf-8")
    (folder / "ledger.html").write_text(render(full()), encoding="utf-8")
    return folder


@pytest.fixture
def kinds(browser, files):
    return browser.open(files / "kinds.html", prefers_color_scheme="light")


def focused(page):
    return page.js("document.activeElement.getAttribute('aria-label') || ''")


def card(page):
    return page.js("document.getElementById('card').hidden ? '' : document.getElementById('card').innerText")


def focus(page, kind):
    """Put the focus on the first mark of a kind."""
    page.js(f"document.querySelector('a.m[aria-label^=\"{kind} \"]').focus()")


@pytest.mark.parametrize("name", ["kinds", "day", "hostile", "ledger"])
def test_a_page_asks_for_nothing_and_complains_of_nothing(browser, files, name):
    """One request, for the page itself; no error, no refusal of the content policy."""
    path = files / f"{name}.html"
    page = browser.open(path)
    page.press("n")
    page.press("t")
    page.press("u")
    assert [path.as_uri()] == page.requests()
    assert [] == page.complaints()


def test_hostile_words_run_nothing(browser, files):
    """No image, one script, and the words are readable in the card of their decision."""
    page = browser.open(files / "hostile.html")
    assert [0, 1] == page.js("[document.images.length, document.scripts.length]")
    page.press("n")
    assert '</script><img src=x onerror="alert(1)">' in card(page)
    assert 0 == page.js("document.querySelectorAll('#card img, #card script').length")


def test_the_content_policy_stops_what_is_not_of_the_page(kinds):
    """A script and a style that somebody puts in do not run."""
    kinds.js(
        "document.body.insertAdjacentHTML('beforeend', '<p id=\"late\" style=\"color: rgb(1, 2, 3)\">x</p>');"
        "const s = document.createElement('script'); s.textContent = 'window.ran = true'; document.body.append(s)"
    )
    assert [False, False] == kinds.js(
        "[window.ran === true, getComputedStyle(document.getElementById('late')).color === 'rgb(1, 2, 3)']"
    )


def test_one_tab_stop_and_arrows_that_move_it(kinds):
    """Right goes to the later mark, End to the last, Home to the first, Down to another row, Up back."""
    assert 1 == kinds.js("document.querySelectorAll('#chart a.m[tabindex=\"0\"]').length")
    focus(kinds, "quarantine_opened")
    first = focused(kinds)
    assert first.startswith("quarantine_opened 1970-01-01 00:10:00Z")
    kinds.press("ArrowRight")
    assert focused(kinds).startswith("move_planned")
    kinds.press("End")
    assert focused(kinds).startswith("device_released 1970-01-01 01:00:00Z")
    kinds.press("Home")
    assert first == focused(kinds)
    kinds.press("ArrowLeft")
    assert first == focused(kinds)
    kinds.press("ArrowDown")
    below = focused(kinds)
    assert below.startswith("device_suspected")
    kinds.press("ArrowUp")
    assert focused(kinds) != below
    assert 1 == kinds.js("document.querySelectorAll('#chart a.m[tabindex=\"0\"]').length")


def test_the_focused_mark_is_seen(kinds):
    """The ring about it has the colour of the focus, and that of another mark is not drawn."""
    focus(kinds, "quarantine_opened")
    rings = kinds.js(
        "[...document.querySelectorAll('#chart a.m')].map(m => getComputedStyle(m).getPropertyValue('--ring').trim() !== 'none')"
    )
    assert 1 == sum(rings)
    assert kinds.js("document.activeElement.classList.contains('on')")


def test_focus_shows_the_evidence_and_escape_hides_it(kinds):
    """Reason, clause, policy, the fact with what it said, and the places in the log; the mark is described by it."""
    focus(kinds, "quarantine_extended")
    shown = card(kinds)
    for part in (
        "quarantine_extended",
        "custody.quarantined",
        "policy-hash",
        "device_health_observed",
        "default/trainer says Unhealthy",
    ):
        assert part in shown
    assert "card" == kinds.js("document.activeElement.getAttribute('aria-describedby')")
    kinds.press("Escape")
    assert "" == card(kinds)


def test_the_pointer_shows_the_evidence_and_a_click_keeps_it(kinds):
    """Hover is enough to read; after a click the card stays when the pointer leaves, and Escape gives the focus back."""
    kinds.js(
        "document.querySelector('a.m[aria-label^=\"device_released \"]').scrollIntoView({block: 'center'})"
    )
    kinds.js("new Promise(done => setTimeout(done, 400))")
    box = kinds.js(
        "(b => [b.left + b.width / 2, b.top + b.height / 2])"
        "(document.querySelector('a.m[aria-label^=\"device_released \"]').getBoundingClientRect())"
    )
    kinds.point(*box)
    assert "device_released" in card(kinds)
    kinds.point(5, 5)
    assert "" == card(kinds)
    kinds.point(*box, click=True)
    kinds.point(5, 5)
    assert "device_released" in card(kinds)
    assert "dialog" == kinds.js("document.getElementById('card').getAttribute('role')")
    kinds.press("Escape")
    assert "" == card(kinds)
    assert focused(kinds).startswith("device_released")


def test_enter_keeps_the_card_and_leads_to_the_list(kinds):
    """The link in the card goes to the words of the decision in the list."""
    focus(kinds, "quarantine_opened")
    kinds.press("Enter")
    assert "Close" == kinds.js("document.activeElement.textContent")
    kinds.js("document.querySelector('#card a[href^=\"#d\"]').click()")
    target = kinds.js("location.hash")
    assert "quarantine_opened" in kinds.js(f"document.querySelector('{target}').textContent")
    assert "" == card(kinds)


def test_a_mark_of_the_ledger_shows_its_words_and_is_reached_with_the_keys(kinds):
    """Its lane stands below those of the devices, and is one of the rows that the keys go through."""
    focus(kinds, "drift_found")
    assert "the two books" not in card(kinds)
    assert "mapping_changed: recorded cpu 1501m" in card(kinds)
    kinds.press("ArrowLeft")
    assert focused(kinds).startswith("verdict_changed")
    kinds.press("ArrowUp")
    assert not focused(kinds).startswith("verdict_changed")
    assert 1 == kinds.js("document.querySelectorAll('a.m[tabindex=\"0\"]').length")


def test_next_and_previous_go_about_the_episodes(kinds):
    """There are three, and after the last comes the first."""
    seen = []
    for _ in range(4):
        kinds.press("n")
        seen.append(focused(kinds))
    assert 3 == len(set(seen))
    assert seen[0] == seen[3]
    kinds.press("p")
    assert seen[2] == focused(kinds)


def rows_shown(page):
    return page.js(
        "[...document.querySelectorAll('.row.dev')].filter(r => r.getClientRects().length || !r.closest('.off')).length"
    )


def test_the_filter_hides_rows_and_tells_how_many_are_left(browser, files):
    """Of 800 devices 240 have rows; a node's name leaves its own, and Escape brings all of them back."""
    page = browser.open(files / "day.html")
    assert DAY_ROWS == rows_shown(page)
    page.press("/")
    page.type("node-003")
    expected = page.js(
        "[...document.querySelectorAll('.nodeg')].filter(g => g.textContent.includes('node-003'))[0].querySelectorAll('.dev').length"
    )
    assert 0 < expected < DAY_ROWS
    assert expected == rows_shown(page)
    assert f"{expected} rows" == page.js("document.getElementById('shown').textContent")
    page.press("Escape")
    assert DAY_ROWS == rows_shown(page)


def test_the_filter_finds_phases_and_causes(browser, files):
    """Only devices that were quarantined are left."""
    page = browser.open(files / "day.html")
    page.js("document.getElementById('filter').focus()")
    page.type("quarantined")
    assert page.js("document.querySelectorAll('.dev .b.quarantined').length") == rows_shown(page)


def background(page):
    return page.js("getComputedStyle(document.body).backgroundColor")


def test_dark_and_light_follow_the_preference_and_the_toggle(browser, files):
    """The toggle turns either into the other."""
    light = browser.open(files / "kinds.html", prefers_color_scheme="light")
    dark = browser.open(files / "kinds.html", prefers_color_scheme="dark")
    bright, night = background(light), background(dark)
    assert bright != night
    light.js("document.getElementById('theme').click()")
    dark.press("t")
    assert (night, bright) == (background(light), background(dark))


def test_times_can_be_local_and_utc_again(kinds):
    """In a zone of five and a half hours the same instants have other words."""
    kinds.send("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
    first = "document.querySelector('.decisions time').textContent"
    tick = "document.querySelector('#chart .ruler text').textContent"
    assert ["1970-01-01 00:00:00Z", "00:00"] == [kinds.js(first), kinds.js(tick)]
    kinds.press("u")
    assert ["1970-01-01 05:30:00+05:30", "05:30"] == [kinds.js(first), kinds.js(tick)]
    kinds.press("u")
    assert ["1970-01-01 00:00:00Z", "00:00"] == [kinds.js(first), kinds.js(tick)]


def test_help_opens_with_a_key_and_closes_with_escape(kinds):
    kinds.press("?")
    assert kinds.js("document.getElementById('help').open")
    assert "next and previous episode" in kinds.js("document.getElementById('help').innerText")
    kinds.press("Escape")
    assert not kinds.js("document.getElementById('help').open")


def test_without_a_script_a_mark_is_a_link_to_its_words(browser, files):
    """Everything is there, and no control that would do nothing."""
    page = browser.open(files / "kinds.html")
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.send("Page.reload")
    browser.wait_for("Page.loadEventFired")
    assert "none" == page.js("getComputedStyle(document.querySelector('.tools')).display")
    assert 4 == page.js("document.querySelectorAll('.row.dev').length")
    assert page.js(
        "[...document.querySelectorAll('a.m')].every(m => document.querySelector(m.getAttribute('href')).textContent.length > 20)"
    )


def contrast(page, inner, outer):
    """The contrast of a text on a background, by the formula of WCAG 2."""
    return page.js(
        f"""(() => {{
          const canvas = document.createElement('canvas').getContext('2d', {{ willReadFrequently: true }});
          const light = (color) => {{
            canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255)
              .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b;
          }};
          const probe = document.createElement('p'); document.body.append(probe);
          const seen = (name) => {{ probe.className = 'probe'; probe.style.color = `var(${{name}})`; return light(getComputedStyle(probe).color); }};
          const [a, b] = [seen('{inner}'), seen('{outer}')].sort((x, y) => y - x);
          probe.remove();
          return (a + .05) / (b + .05);
        }})()"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_written_and_drawn_can_be_told_from_what_is_beneath_it(browser, files, scheme):
    """Text has a contrast of 4.5 and lines one of 3, as WCAG 2.2 AA asks."""
    page = browser.open(files / "kinds.html", prefers_color_scheme=scheme)
    texts = [("--ink", "--bg"), ("--dim", "--bg"), ("--dim", "--panel"), ("--link", "--bg")]
    phases = (
        "suspect",
        "restricted",
        "quarantined",
        "probing",
        "canary",
        "observing",
        "incident",
        "breaker",
        "hold",
    )
    texts += [("--ink", f"--t-{phase}") for phase in phases]
    lines = [(f"--s-{phase}", "--bg") for phase in phases] + [("--focus", "--bg")]
    low = {pair: value for pair in texts if (value := contrast(page, *pair)) < 4.5}
    low |= {pair: value for pair in lines if (value := contrast(page, *pair)) < 3}
    assert {} == low


@pytest.mark.parametrize(("width", "name"), [(1440, "day"), (1280, "kinds"), (400, "kinds"), (320, "ledger")])
def test_a_page_is_no_wider_than_its_window(browser, files, width, name):
    """Tables scroll by themselves."""
    page = browser.open(files / f"{name}.html", width=width)
    assert page.js("document.documentElement.scrollWidth <= innerWidth")


def test_a_picture_of_the_page_is_not_empty(browser, files, tmp_path):
    """The bars are painted: many pixels of a screenshot have colours of their own."""
    page = browser.open(files / "kinds.html", prefers_color_scheme="light")
    page.js("document.getElementById('chart').scrollIntoView()")
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 30_000


def test_print_leaves_out_the_controls(browser, files):
    """On paper there are no buttons and no card."""
    page = browser.open(files / "kinds.html")
    page.media(media="print")
    assert "none" == page.js("getComputedStyle(document.querySelector('.tools')).display")


def test_motion_is_only_for_those_who_like_it(browser, files):
    """With reduced motion nothing glides."""
    page = browser.open(files / "kinds.html", prefers_reduced_motion="reduce")
    assert ["auto", "0s"] == page.js(
        "[getComputedStyle(document.documentElement).scrollBehavior, getComputedStyle(document.querySelector('a.m')).transitionDuration]"
    )


def test_more_contrast_makes_borders_stronger(browser, files):
    wide = "parseFloat(getComputedStyle(document.querySelector('.b rect')).strokeWidth)"
    plain = browser.open(files / "kinds.html", prefers_contrast="no-preference").js(wide)
    assert browser.open(files / "kinds.html", prefers_contrast="more").js(wide) > plain
