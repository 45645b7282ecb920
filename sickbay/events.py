"""Every kind of event by its wire name. The types live in ``facts`` and ``decisions``; this is their register."""

from __future__ import annotations

from typing import Final, TypeAlias

from sickbay.decisions import DECISIONS, Decision
from sickbay.facts import FACTS, Fact

Event: TypeAlias = Fact | Decision

_ALL: Final[tuple[type[Fact | Decision], ...]] = (*FACTS, *DECISIONS)
KINDS: Final[dict[str, type[Fact | Decision]]] = {kind.KIND: kind for kind in _ALL}
assert len(KINDS) == len(FACTS) + len(DECISIONS), "two events share a wire name"
