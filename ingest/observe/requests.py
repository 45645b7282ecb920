"""What a claim asks of the attributes of its devices: which must be alike, and which must be a certain number.

Only what can name a NUMA node is read: ``matchAttribute`` constraints, and CEL selectors that are nothing but comparisons of an
attribute with a number. CEL is not evaluated here: an expression of any other form names nothing, and nothing is guessed from
a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ingest.observe.fields import Notes, is_int64
from sickbay.facts import AllocationResult, Selected, Together

_BLANK: Final = r"[ \t\n\r\f]*"


def _tokens(*parts: str) -> str:
    return _BLANK.join(parts)


def _quoted(name: str) -> str:
    """Match a name between either of CEL's two quotes, as one of two groups."""
    return f"(?:\"({name})\"|'({name})')"


_DOMAIN: Final = "[A-Za-z0-9.-]+"
_ID: Final = "[A-Za-z_][A-Za-z0-9_]*"
_ATTRIBUTE: Final = _tokens(
    "device", r"\.", "attributes", r"\[", _quoted(_DOMAIN), r"\]",
    "(?:" + _tokens(r"\.", f"({_ID})") + "|" + _tokens(r"\[", _quoted(_ID), r"\]") + ")",
)  # fmt: skip
_NUMBER: Final = "(-?[0-9]{1,19})"
#: One comparison, and what it is followed by. Of two neighbours at most one can match a character, so that a match is found, or
#: given up, in one pass over the text.
_TERM: Final = re.compile(
    f"{_BLANK}(?:{_tokens(_ATTRIBUTE, '==', _NUMBER)}|{_tokens(_NUMBER, '==', _ATTRIBUTE)}){_BLANK}(&&|\\Z)"
)


def attribute_numbers(expression: str) -> tuple[tuple[str, int], ...]:
    """Return qualified attribute and number of each comparison of a CEL expression; () for one of any other form.

    The form is ``device.attributes["domain"].id == 1``, or with ``["id"]``, or the other way round; several are joined by
    ``&&``.
    """
    found = []
    position = 0
    while (term := _TERM.match(expression, position)) is not None:
        groups = term.groups()
        domain = groups[0] or groups[1] or groups[7] or groups[8]
        name = groups[2] or groups[3] or groups[4] or groups[9] or groups[10] or groups[11]
        number = int(groups[5] or groups[6])
        if not is_int64(number):
            return ()
        found.append((f"{domain}/{name}", number))
        if not groups[12]:
            return tuple(found)
        position = term.end()
    return ()


def read_together(devices: dict[str, Any], notes: Notes) -> tuple[Together, ...]:
    """Return the ``matchAttribute`` constraints of ``spec.devices``; their attributes are fully qualified in the API."""
    found = []
    for path, raw in notes.objects(devices.get("constraints"), "spec.devices.constraints"):
        attribute = notes.text(raw, "matchAttribute", path)
        if not attribute:
            continue
        domain, _, name = attribute.partition("/")
        if not (domain and name):
            notes.refuse(f"{path}.matchAttribute", "expected a name with its domain, domain/name")
            continue
        requests = notes.texts(raw.get("requests"), f"{path}.requests")
        found.append(Together(attribute=attribute, requests=tuple(sorted(set(requests)))))
    return tuple(sorted(set(found), key=lambda together: (together.attribute, together.requests)))


def read_selected(
    devices: dict[str, Any], results: tuple[AllocationResult, ...], notes: Notes
) -> tuple[Selected, ...]:
    """Return what the selectors of ``spec.devices`` compare with a number.

    Of the alternatives of a request only the one that was allocated counts, as ``request/alternative``.
    """
    allocated = {f"{result.request}/{result.subrequest}" for result in results if result.subrequest}
    found = {
        Selected(request=request, attribute=attribute, value=value)
        for request, path, raw in _requests(devices, allocated, notes)
        for at, selector in notes.objects(raw.get("selectors"), f"{path}.selectors")
        for attribute, value in attribute_numbers(
            notes.text(notes.mapping(selector.get("cel"), f"{at}.cel"), "expression", f"{at}.cel")
        )
    }
    return tuple(sorted(found, key=lambda item: (item.request, item.attribute, item.value)))


def _requests(
    devices: dict[str, Any], allocated: set[str], notes: Notes
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, path and content of each request that has its own selectors: v1 and v1beta2 nest it, v1beta1 does not."""
    for path, raw in notes.objects(devices.get("requests"), "spec.devices.requests"):
        name = notes.text(raw, "name", path)
        if raw.get("firstAvailable") is not None:
            for at, alternative in notes.objects(raw["firstAvailable"], f"{path}.firstAvailable"):
                full = f"{name}/{notes.text(alternative, 'name', at)}"
                if full in allocated:
                    yield full, at, alternative
        elif raw.get("exactly") is not None:
            yield name, f"{path}.exactly", notes.mapping(raw["exactly"], f"{path}.exactly")
        else:
            yield name, path, raw
