"""Fresh databases of either kind, for suites that must not care which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from postgresql import server

DATABASES = ("postgresql", "sqlite")


@contextmanager
def places(kind: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Give out a fresh place for each name, the same one for the same name, and take them all back at the end."""
    made: dict[str, str] = {}

    def place(name: str) -> str:
        if name not in made:
            made[name] = server().migrated() if kind == "postgresql" else str(folder / f"{name}.db")
        return made[name]

    yield place
    if kind == "postgresql":
        for url in made.values():
            server().give_back(url)
