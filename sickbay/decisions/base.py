"""What every decision carries."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What every decision carries."""

    KIND: ClassVar[str] = ""
    SCHEMA_VERSION: ClassVar[int] = 1

    node: str
    at_ms: int
    #: Path of the policy clause that decided, ``custody.unknown.window_ms`` for example.
    clause: str = ""
    #: Why, in words for a person.
    reason: str = ""
    #: Event ids of the facts it rests on.
    evidence: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What the decision is about; unique with the kind inside one cause."""
        return ""

    @property
    def correlation_id(self) -> str:
        """The episode, incident, move or alert that it belongs to."""
        return ""
