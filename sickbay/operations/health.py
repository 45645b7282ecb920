"""Whether a process lives and whether it is ready: judged from what it says of itself, never by asking Kafka or a database.

**Live** means that a restart would not help: the event loop answers, and no work waits that nothing moves (C55, faust-streaming
#175). A service that is down makes nobody dead. **Ready** means that what the process shows can be relied on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

#: Work that is known to wait and does not move for so long is stuck. Longer than any rebalance or recovery takes.
STUCK_S: Final = 300.0
#: For so long a sight of waiting work is believed: when Kafka is down nobody knows whether anything waits.
SIGHT_S: Final = 60.0


class Check(Protocol):
    """One reason to be ready or not."""

    @property
    def name(self) -> str:
        """What is checked: ``kafka``, ``view``, ``watch``."""
        ...

    def problem(self) -> str | None:
        """Why it is not ready, ``None`` when it is. Answers at once, from memory."""
        ...


class Told:
    """A check whose owner says how it stands."""

    def __init__(self, name: str, problem: str | None = "it has not started yet") -> None:
        self._name, self._problem = name, problem

    @property
    def name(self) -> str:
        """What is checked."""
        return self._name

    def ready(self) -> None:
        """All is well from here on."""
        self._problem = None

    def failed(self, problem: str) -> None:
        """It is not, and why."""
        self._problem = problem

    def problem(self) -> str | None:
        """What was said last."""
        return self._problem


class Fresh:
    """A check that something is not older than a limit: the view, a watch, the newest figures."""

    def __init__(self, name: str, age_ms: Callable[[], int | None], most_ms: int) -> None:
        self._name, self._age_ms, self._most_ms = name, age_ms, most_ms

    @property
    def name(self) -> str:
        """What is checked."""
        return self._name

    def problem(self) -> str | None:
        """Say how old it is when that is too old, or that there is nothing yet when the age is ``None``."""
        age_ms = self._age_ms()
        if age_ms is None:
            return "there is nothing yet"
        if age_ms > self._most_ms:
            return f"{age_ms / 1000:.0f} s behind, the limit is {self._most_ms / 1000:.0f} s"
        return None


class Progress:
    """Whether work that waits moves.

    Whoever looks at the source says ``waits`` or ``idle``, whoever works says ``moved``, and says ``failed`` when an attempt
    ended with an error that another attempt follows: a database that is down is told by readiness, and no restart mends it. Only
    silence counts: work was seen waiting, is still seen waiting, and nothing at all came of it.
    """

    def __init__(
        self, name: str, *, stuck_s: float = STUCK_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.name: Final = name
        self._stuck_s, self._monotonic = stuck_s, monotonic
        #: Since when work waits without a sign of life, and when it was last seen waiting.
        self._since: float | None = None
        self._seen = 0.0

    def waits(self) -> None:
        """Work was seen waiting just now: the end of a partition is beyond the position."""
        self._seen = self._monotonic()
        if self._since is None:
            self._since = self._seen

    def idle(self) -> None:
        """Nothing waits."""
        self._since = None

    def moved(self) -> None:
        """Something was done."""
        self._since = None

    def failed(self) -> None:
        """An attempt ended with an error, and is made again."""
        self._since = None

    def problem(self) -> str | None:
        """Since when nothing moves, when that is too long."""
        since, now = self._since, self._monotonic()
        if since is None or now - self._seen > SIGHT_S or now - since <= self._stuck_s:
            return None
        return f"work waits for {now - since:.0f} s and nothing moved, the limit is {self._stuck_s:.0f} s"
