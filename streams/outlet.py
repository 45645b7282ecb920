"""What a worker needs of a broker, and where it counts what it does. Contracts only: Faust fills them, and a driver for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from sickbay.cloudevents import Headers, Message
from sickbay.deadletters import DeadLetter, of_record


class Delivered(NamedTuple):
    """One record of the facts topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    #: Broker's time of the record, milliseconds since the epoch.
    written_at_ms: int
    #: Lets the broker's position move past the record.
    acknowledge: Callable[[], object]

    @property
    def event_id(self) -> str:
        """The id of the one event of the record, as its header says; empty for a batch and for what is none of ours."""
        return (next((value for name, value in self.headers if name == "ce_id"), None) or b"").decode(
            errors="replace"
        )

    def letter(self, topic: str, reason: str) -> DeadLetter:
        """Return the record as a dead letter."""
        return of_record(topic, self.partition, self.offset, self.key, self.value, self.headers, reason)


class Outlet(Protocol):
    """What a worker needs of a broker."""

    async def send(self, topic: str, partition: int, message: Message) -> Awaitable[object]:
        """Hand a record over; what is returned is done when the broker has it. May wait for room."""
        ...

    def put_state(self, partition: int, key: str, value: bytes | None) -> Awaitable[object]:
        """Write a state piece, or remove it; as ``send``."""
        ...

    def state(self, partition: int) -> Mapping[str, bytes]:
        """Return the state pieces of a partition as they were recovered and written."""
        ...

    def end(self, partition: int) -> int | None:
        """Return where a partition of the facts topic ends as was seen last, ``None`` when that was not seen."""
        ...

    async def rewind(self, partition: int, offset: int) -> None:
        """Deliver the facts of a partition again from an offset on."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time that only goes on."""
        ...


class Figures(Protocol):
    """Where a worker counts what it does."""

    def answered(self, outcome: str, facts: Mapping[str, int], decisions: Mapping[str, int]) -> None:
        """One record was answered: kinds of its facts and of its decisions, to how many."""
        ...

    def parked(self) -> None:
        """One record was parked."""
        ...

    def decided(self, written_at_ms: int) -> None:
        """The broker has the decisions of the record that it took at this time."""
        ...

    def moved(self, partition: int, position: int, time_ms: int) -> None:
        """Everything before a position is folded, up to this event time."""
        ...

    def snapshotted(self, partition: int) -> None:
        """The state of a partition as it stands is in a snapshot."""
        ...

    def held(self, positions: Mapping[int, int]) -> None:
        """These are the partitions that the worker has, with the position of each."""
        ...

    def breaker(self, waiting: Mapping[str, int]) -> None:
        """The breakers of these scopes are open, each with the devices that wait for it, as the worker that has their home knows."""
        ...
