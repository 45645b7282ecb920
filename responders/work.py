"""Whether a device may take new work, as the table of phases in docs/custody.md says it. Pure."""

from __future__ import annotations

from typing import Final

from sickbay.decisions import DeviceRecord, Episode
from sickbay.policy import ReturnPolicy

#: Phases in which no new work comes, whatever the time is. ``canary`` lets the canary in, which tolerates what keeps others out.
CLOSED: Final = frozenset({"restricted", "quarantined", "probing", "canary"})
NEVER_MS: Final = 1 << 62


def takes_work_from_ms(record: DeviceRecord, policy: ReturnPolicy) -> int:
    """Return the time from which a device takes new work: 0 for at once, ``NEVER_MS`` for not before its phase changes.

    Under observation new work comes after ``staged_return.ramp_after_percent`` of it.
    """
    if record.phase in CLOSED:
        return NEVER_MS
    episode = record.episode
    if record.phase != "observing" or episode is None or episode.observing_at_ms is None:
        return 0
    if policy.ramp_after_percent == 100:
        return NEVER_MS
    return episode.observing_at_ms + observation_ms(episode, policy) * policy.ramp_after_percent // 100


def observation_ms(episode: Episode, policy: ReturnPolicy) -> int:
    """Return how long the observation of an episode lasts at least."""
    if episode.verification == "prober":
        return policy.observation_ms
    return policy.observation_after_restart_ms if episode.after_restart else policy.observation_only_ms
