"""The picture of a report: devices by node, each with all that the time axis shows of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from sqlalchemy import Connection, func, or_, select

from projections.report_rows import REMEDY, Row, Where, answers, newest
from projections.temporal import intervals
from sickbay.report import Bar, Device, Mark, Node, Phase
from sickbay.report.model import DEVICES_MAX, PHASES_MAX, ROWS_MAX

DeviceKey: TypeAlias = tuple[str, str]

#: Kinds of marks that stand in the row of their node.
_ABOUT_A_NODE: Final = frozenset({"node_incident_opened", "node_incident_closed", "claims_gate_requested"})


class Picture:
    """Devices by node, each with all that the axis shows of it."""

    def __init__(
        self,
        connection: Connection,
        asked: Where,
        known: Mapping[DeviceKey, Row],
        found: Sequence[Mark],
        notes: list[str],
    ) -> None:
        self._connection, self._asked, self._known, self._notes = connection, asked, known, notes
        self._marks: dict[DeviceKey, list[Mark]] = defaultdict(list)
        for mark in found:
            about = mark.about if mark.kind not in _ABOUT_A_NODE else ""
            self._marks[mark.node, about].append(mark)
        stretch = {"begins": "opened_at_ms", "ends": "closed_at_ms"}
        self.episodes = newest(connection, "episodes", asked, notes, **stretch)
        self.incidents = newest(connection, "node-incidents", asked, notes, **stretch)
        self.moves = newest(connection, "moves", asked, notes, begins="planned_at_ms", ends="finished_at_ms")
        self.gaps = self._gaps()

    def nodes(self) -> tuple[Node, ...]:
        """Return every node of the scope, by name."""
        phases, episodes, moves = self._phases(), self._bars_of_episodes(), self._bars_of_moves()
        busy = sorted({key for found in (phases, episodes, moves, self._marks) for key in found if all(key)})
        if len(busy) > DEVICES_MAX:
            self._notes.append(f"Showing {DEVICES_MAX} of {len(busy)} devices with events; {REMEDY}.")
            weights = Counter({key: len(self._marks.get(key, ())) for key in busy})
            busy = sorted(key for key, _ in weights.most_common(DEVICES_MAX))
        devices, quiet = defaultdict(list), defaultdict(list)
        for key in busy:
            node, device_id = key
            devices[node].append(
                Device(
                    device_id,
                    self._driver(key),
                    tuple(phases.get(key, ())),
                    tuple(episodes.get(key, ())),
                    tuple(moves.get(key, ())),
                    tuple(self._marks.get(key, ())),
                )
            )
        for node, device_id in sorted(self._known.keys() - set(busy)):
            quiet[node].append(device_id)
        incidents = self._bars_of_incidents()
        names = {*devices, *quiet, *incidents, *(node for node, _ in self._marks)} - {""}
        return tuple(
            Node(
                name,
                tuple(devices[name]),
                tuple(quiet[name]),
                tuple(incidents.get(name, ())),
                tuple(self._marks.get((name, ""), ())),
            )
            for name in sorted(names)
        )

    def breakers(self) -> tuple[Bar, ...]:
        """Return when the breaker of each scope was open."""
        opened: dict[tuple[str, int], Bar] = {}
        for row in answers(self._connection, "breaker-history", self._asked):
            key = (row["scope"], row["opened_at_ms"])
            if row["state"] == "open":
                detail = f"{row['adverse']} of {row['known']} turned, the limit is {row['threshold']}"
                opened[key] = Bar(row["scope"], detail, row["opened_at_ms"], None)
            elif key in opened:
                opened[key] = Bar(row["scope"], opened[key].detail, row["opened_at_ms"], row["at_ms"])
        return tuple(bar for bar in opened.values() if bar.to_ms is None or bar.to_ms >= self._asked.from_ms)

    def _driver(self, key: DeviceKey) -> str:
        if key in self._known:
            return str(self._known[key]["driver"])
        return key[1].partition(":")[2].partition("/")[0]

    def _gaps(self) -> tuple[Bar, ...]:
        rows = answers(self._connection, "watch-gaps", self._asked, begins="from_ms", ends="to_ms")
        found = {(row["watched"], row["from_ms"], row["to_ms"]) for row in rows}
        ordered = sorted(found, key=lambda gap: (gap[1], gap[0]))[:ROWS_MAX]
        return tuple(Bar(watched, "", from_ms, to_ms) for watched, from_ms, to_ms in ordered)

    def _phases(self) -> dict[DeviceKey, list[Phase]]:
        found = intervals(self._asked.moment)
        begins, ends = found.c.valid_from_ms, found.c.valid_to_ms
        conditions = [
            found.c.phase != "in_service",
            begins <= self._asked.until_ms,
            or_(ends.is_(None), ends >= self._asked.from_ms),
            *self._asked.narrowed(found),
        ]
        columns = (
            found.c.node,
            found.c.device_id,
            found.c.phase,
            found.c.cause,
            begins,
            ends,
            found.c.episode_id,
        )
        length = func.coalesce(ends, self._asked.until_ms) - begins
        rows = self._connection.execute(
            select(*columns)
            .where(*conditions)
            .order_by(length.desc(), begins, found.c.node, found.c.device_id)
            .limit(PHASES_MAX)
        ).all()
        if len(rows) == PHASES_MAX:
            self._notes.append(
                f"Showing the {PHASES_MAX} longest phases; shorter ones are not drawn; {REMEDY}."
            )
        result: dict[DeviceKey, list[Phase]] = defaultdict(list)
        for node, device_id, phase, cause, from_ms, to_ms, episode_id in sorted(
            rows, key=lambda row: row.valid_from_ms
        ):
            found_before = result[node, device_id]
            if found_before and _goes_on(found_before[-1], phase, cause, from_ms, episode_id):
                found_before[-1] = replace(found_before[-1], to_ms=to_ms)
            else:
                found_before.append(Phase(phase, cause, from_ms, to_ms, episode_id))
        return result

    def _bars_of_episodes(self) -> dict[DeviceKey, list[Bar]]:
        result: dict[DeviceKey, list[Bar]] = defaultdict(list)
        for row in self.episodes:
            result[row["node"], row["device_id"]].append(
                Bar("episode", row["episode_id"], row["opened_at_ms"], row["closed_at_ms"])
            )
        return result

    def _bars_of_moves(self) -> dict[DeviceKey, list[Bar]]:
        result: dict[DeviceKey, list[Bar]] = defaultdict(list)
        for row in self.moves:
            told = f"{row['namespace']}/{row['pod']}, {row['ability']}, {row['outcome'] or row['state']}"
            result[row["node"], row["device_id"]].append(
                Bar("move of", told, row["planned_at_ms"], row["finished_at_ms"])
            )
        return result

    def _bars_of_incidents(self) -> dict[str, list[Bar]]:
        result: dict[str, list[Bar]] = defaultdict(list)
        for row in self.incidents:
            detail = ", ".join(word for word in (row["scope"], row["outcome"]) if word)
            result[row["node"]].append(Bar(row["cause"], detail, row["opened_at_ms"], row["closed_at_ms"]))
        return result


def _goes_on(before: Phase, phase: str, cause: str, from_ms: int, episode_id: str) -> bool:
    """Whether an interval only continues the one before it: a new fault of an episode begins one, and changes no phase."""
    same = (before.phase, before.cause, before.episode_id) == (phase, cause, episode_id)
    return same and before.to_ms == from_ms
