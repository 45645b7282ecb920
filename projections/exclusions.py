"""What became of the taint rule of a device, report by report, as the next version of its row: pure.

It copies what was reported and compares it with nothing: whether the rule should stand is custody's word, and whether it does the
API server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from projections.rows import Row
from sickbay.facts import ExclusionReported

_TOLD: Final = ("node", "rule", "device_id", "episode_id", "effect", "state", "actor", "detail")
#: After it a rule that is made again is another one.
_REMOVED: Final = "removed"


def next_exclusion(before: Mapping[str, Any] | None, event: ExclusionReported) -> Row:
    """Return the row that follows ``before``.

    ``since_ms`` begins when state or effect change; ``repairs`` counts since the rule was made, a removal ends the count.
    """
    goes_on = before is not None and before["state"] != _REMOVED
    repairs = int(before["repairs"]) if before is not None and goes_on else 0
    is_same = before is not None and (before["state"], before["effect"]) == (event.state, event.effect)
    return {name: getattr(event, name) for name in _TOLD} | {
        "since_ms": before["since_ms"] if before is not None and is_same else event.observed_at_ms,
        "repairs": repairs + (event.state == "repaired"),
    }
