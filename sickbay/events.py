"""Every kind of event by its wire name. The types live in ``facts`` and ``decisions``; this is their register."""

from __future__ import annotations

from typing import Final, TypeAlias

from sickbay.decisions import DECISIONS, Decision
from sickbay.facts import FACTS, Fact

Event: TypeAlias = Fact | Decision

KINDS: Final[dict[str, type[Fact] | type[Decision]]] = {kind.KIND: kind for kind in (*FACTS, *DECISIONS)}
assert len(KINDS) == len(FACTS) + len(DECISIONS), "two events share a wire name"
