"""``sickbay parked``: what could not be used, to look at and to try again.

Letters stay where they are: trying one again adds its record to its topic, and the letter is history. So a letter that was tried
again and could not be used once more has a second letter, which names the first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeVar

import click

from sickbay.cli import output
from sickbay.cli.moments import Moment
from sickbay.errors import InputError, NotFoundError
from sickbay.operations.parking import Parked, Retrier, read_parked, why_not
from sickbay.settings import KafkaSettings, kafka_settings
from sickbay.topics import Topics

T = TypeVar("T")
#: Letters that one `retry` may take: so many places are kept in memory.
PLACES_MAX: Final = 100_000

#: Exit code of a retry that did everything but what cannot be written again (README, "Exit codes").
EXIT_PARKED: Final = 3

_COLUMNS: Final = (
    "parked_at_ms",
    "place",
    "reason",
    "times",
    "at_ms",
    "value_bytes",
    "retry",
    "retried_from",
)
_TIMES: Final = _COLUMNS.index("times")
_WRITTEN: Final = "written"


@click.group()
def parked() -> None:
    """Look at what could not be used and was parked in Kafka, and try it again.

    Where Kafka is and what the topics are called stands in the variables SICKBAY_KAFKA_…; docs/cli.md lists them. What a replay
    parked stands in its store: `sickbay audit parked`.
    """


topic_option = click.option("--topic", help="Only records of this topic, by its full name.")
since_option = click.option(
    "--since", "since_ms", type=Moment(), help="Only what was parked at this time or later."
)


@parked.command("list")
@topic_option
@click.option("--partition", type=click.IntRange(0), help="Only records of this partition.")
@since_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="The newest so many; older ones are counted.",
)
@output.output_option
def list_(topic: str | None, partition: int | None, since_ms: int | None, limit: int, form: str) -> None:
    """List dead letters, one line for each place, the newest last.

    \b
    Examples:
      sickbay parked list
      sickbay parked list --topic sickbay.facts --since 2026-07-01T08:00:00Z --output json
    """
    newest = _run(_newest(_settings(), topic, partition, since_ms, limit))
    output.print_rows(_COLUMNS, newest.rows(), form, empty="nothing is parked")
    if newest.left_out:
        output.note(
            f"note: {newest.left_out} older letters are not shown; narrow the question or raise --limit"
        )


class _Newest:
    """The newest rows, one for each place, and how many older ones there were."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left_out = 0
        self._rows: OrderedDict[str, tuple[Any, ...]] = OrderedDict()

    def add(self, found: Parked, topics: Topics) -> None:
        letter = found.letter
        before = self._rows.pop(letter.place, None)
        times = 1 + (before[_TIMES] if before else 0)
        retry = "possible" if why_not(letter, topics) is None else "impossible"
        self._rows[letter.place] = (
            found.parked_ms, letter.place, letter.reason, times, letter.at_ms, letter.value_bytes, retry, found.retried_from,
        )  # fmt: skip
        if len(self._rows) > self.limit:
            self._rows.popitem(last=False)
            self.left_out += 1

    def rows(self) -> list[tuple[Any, ...]]:
        return list(self._rows.values())


async def _newest(
    settings: KafkaSettings, topic: str | None, partition: int | None, since_ms: int | None, limit: int
) -> _Newest:
    newest = _Newest(limit)
    async with aclosing(read_parked(settings, since_ms=since_ms)) as letters:
        async for found in letters:
            if topic in (None, found.letter.topic) and partition in (None, found.letter.partition):
                newest.add(found, settings.topics)
    return newest


@parked.command("show")
@click.argument("place")
@output.output_option
def show(place: str, form: str) -> None:
    """Show one dead letter whole: why it was parked, its headers, and its bytes as text, or as hex where they are no text.

    PLACE is where it was found, as `sickbay parked list` prints it.

    \b
    Examples:
      sickbay parked show sickbay.facts/3@1200
      sickbay parked show sickbay.facts/3@1200 --output json
    """
    settings = _settings()
    told = _told(_run(_find(settings, place)), settings.topics)
    if form == "json":
        output.print_json({output.name_of(name): output.shown(name, value) for name, value in told.items()})
        return
    rows: list[tuple[str, Any]] = []
    for name, value in told.items():
        if isinstance(value, dict):
            rows += [(f"header {key}", text) for key, text in value.items()]
        else:
            rows.append((output.name_of(name), output.shown(name, value)))
    output.print_rows(("field", "value"), rows, form)


async def _find(settings: KafkaSettings, place: str) -> Parked:
    """Return the newest letter of a place. Raises NotFoundError."""
    newest: Parked | None = None
    async with aclosing(read_parked(settings)) as letters:
        async for found in letters:
            if found.letter.place == place:
                newest = found
    if newest is None:
        raise NotFoundError(f"nothing of {place} is parked; `sickbay parked list` prints the places")
    return newest


def _told(found: Parked, topics: Topics) -> dict[str, Any]:
    letter = found.letter
    told: dict[str, Any] = {
        "place": letter.place,
        "reason": letter.reason,
        "parked_at_ms": found.parked_ms,
        "at_ms": letter.at_ms,
        "topic": letter.topic,
        "partition": letter.partition if letter.topic else None,
        "offset": letter.offset if letter.topic else None,
        "retry": why_not(letter, topics) or "possible",
        "key": _text(letter.key),
        # the same header may come twice, and the second one is not less true
        "headers": {
            name if count == 1 else f"{name} ({count})": _text(content)
            for name, content, count in _numbered(letter.headers)
        },
        "value_bytes": letter.value_bytes,
        "kept_bytes": len(letter.value),
    }
    return told | {"value": _text(letter.value)}


def _numbered(headers: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes, int]]:
    seen: Counter[str] = Counter()
    for name, content in headers:
        seen[name] += 1
        yield name, content, seen[name]


def _text(content: bytes) -> str:
    """Return bytes as text, with what cannot be printed escaped; bytes that are no UTF-8 as ``hex:…``."""
    try:
        return output.printable(content.decode())
    except UnicodeDecodeError:
        return f"hex:{content.hex()}"


@parked.command("retry")
@click.argument("place", required=False)
@click.option("--all-of", metavar="TOPIC", help="Every letter of this topic that can be written again.")
@since_option
@click.option("--yes", is_flag=True, help="Write more than one without being asked again.")
@output.output_option
def retry(place: str | None, all_of: str | None, since_ms: int | None, yes: bool, form: str) -> None:
    """Write the original bytes again, to the topic and partition where they were: by PLACE, or all of a topic.

    The record gets the header sickbay-retried with the place it comes from, and stands behind everything that came since. What was
    taken before is passed over, so trying again twice does no harm. Letters that were tried again and came back are tried by their
    newest letter. The exit code is 3 when some of a topic's letters cannot be written again.

    \b
    Examples:
      sickbay parked retry sickbay.facts/3@1200
      sickbay parked retry --all-of sickbay.facts --since 2026-07-01T08:00:00Z --yes
    """
    settings = _settings()
    if (place is None) == (all_of is None):
        raise InputError("name either one PLACE or --all-of TOPIC; `sickbay parked list` prints both")
    if place is not None and since_ms is not None:
        raise InputError("--since narrows --all-of, and a PLACE is one letter already")
    done: list[tuple[str, str, str]] = []
    try:
        if place is not None:
            _run(_retry_one(settings, place, done))
        else:
            _run(_retry_all(settings, str(all_of), since_ms, yes, done))
    finally:  # also of a run that Kafka broke off: these were written
        if done:
            output.print_rows(("place", "result", "written_to"), done, form)
    if any(result != _WRITTEN for _, result, _ in done):
        raise SystemExit(EXIT_PARKED)


async def _retry_one(settings: KafkaSettings, place: str, done: list[tuple[str, str, str]]) -> None:
    found = await _find(settings, place)
    async with Retrier(settings) as retrier:
        done.append((place, _WRITTEN, await retrier.write(found.letter)))


async def _retry_all(
    settings: KafkaSettings, topic: str, since_ms: int | None, yes: bool, done: list[tuple[str, str, str]]
) -> None:
    newest: dict[str, tuple[int, int]] = {}
    came_back: set[str] = set()
    async with aclosing(read_parked(settings, since_ms=since_ms)) as letters:
        async for found in letters:
            if found.letter.topic == topic:
                newest[found.letter.place] = (found.partition, found.offset)
                came_back.add(found.retried_from)
                if len(newest) > PLACES_MAX:
                    raise InputError(
                        f"more than {PLACES_MAX} letters of {topic} are parked; narrow them with --since"
                    )
    wanted = {place: at for place, at in newest.items() if place not in came_back}
    if not wanted:
        raise NotFoundError(f"nothing of {topic} is parked; `sickbay parked list` prints what is")
    if len(wanted) > 1 and not yes:
        raise InputError(f"{len(wanted)} letters of {topic} would be written again; give --yes to do that")
    # read again: their bytes together may be more than memory
    async with (
        Retrier(settings) as retrier,
        aclosing(read_parked(settings, since_ms=since_ms)) as letters,
    ):
        async for found in letters:
            letter = found.letter
            if wanted.get(letter.place) == (found.partition, found.offset):
                problem = why_not(letter, settings.topics)
                if problem is None:
                    done.append((letter.place, _WRITTEN, await retrier.write(letter)))
                else:
                    done.append((letter.place, problem, ""))


def _settings() -> KafkaSettings:
    return kafka_settings(os.environ)


def _run(asking: Coroutine[Any, Any, T]) -> T:
    if logging.getLogger().level > logging.INFO:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its errors come back as ours, on one line
    return asyncio.run(asking)
