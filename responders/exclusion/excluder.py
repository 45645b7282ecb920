"""The shell around the taint rules: reads them, carries out the plan, reports what came of it.

A change in the view is acted on by what was read last, so that a new quarantine costs one request; the whole list is read again now
and then, and after every failure. Writes name the version that was read, so that what somebody else did meanwhile is seen first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from responders.exclusion.plan import HOUR_MS, MINUTE_MS, Action, Limits, plan, should
from responders.exclusion.rules import (
    VERSIONS,
    Found,
    build,
    device_of,
    effect_of,
    is_right,
    read,
    rebuilt,
)
from responders.labels import INSTALLATION, MANAGED_BY
from responders.reporting import Reports
from responders.view import View
from sickbay.clock import Times
from sickbay.cluster.objects import list_all, refusal, send
from sickbay.cluster.requests import Method, Requests
from sickbay.envelope import derived_id
from sickbay.errors import ServiceError
from sickbay.facts import ExclusionReported
from sickbay.operations.failpoints import reach
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.policy import Policy

_log: Final = logging.getLogger(__name__)

#: Between two readings of the whole list.
LIST_EVERY_MS: Final = 30_000
#: The API server cuts the time of a creation to seconds.
_SECOND_MS: Final = 1_000
#: Writes under way at once.
_WRITES: Final = 8
_NEEDS: Final = "list, create, update and delete on devicetaintrules (resource.k8s.io)"
ACTOR: Final = "sickbay-respond-exclude"

State: TypeAlias = Literal[
    "applied", "confirmed", "repaired", "given_up", "overridden", "override_ended", "removed", "capped", "refused",
]  # fmt: skip


#: Told once an hour at most, however often it is tried.
_HOURLY: Final = ("capped", "refused", "given_up")


class Excluder:
    """The taint rules of one installation. ``act`` is what ``responders.keeping.keep`` calls."""

    def __init__(
        self,
        api: Requests,
        reports: Reports,
        view: View,
        policy: Policy,
        *,
        installation: str,
        times: Times,
        metrics: RespondMetrics,
        require_lead: Callable[[], None],
    ) -> None:
        self._api, self._reports, self._view, self._policy = api, reports, view, policy
        self._installation, self._times, self._metrics = installation, times, metrics
        self._require_lead = require_lead
        self._path = ""
        self._api_version = ""
        self._found: dict[str, Found] = {}
        #: When the whole list is read again.
        self._list_at_ms = 0
        self._listed_at_ms = 0
        self._created: deque[int] = deque(maxlen=10_000)
        self._repaired: dict[str, deque[int]] = {}
        self._stood: set[str] = set()
        #: Rules that a person is in charge of.
        self._overridden: dict[str, Found] = {}
        #: What was reported, so that it is told once by this process: ids of requests, the oldest forgotten first.
        self._told: dict[str, None] = {}
        #: Versions of rules that were told as applied or repaired.
        self._versions_told: set[str] = set()
        self._writing = asyncio.Semaphore(_WRITES)

    async def act(self) -> float | None:
        """Make the rules what they should be, and return after how many seconds to look again. Raises ServiceError."""
        mono_ms = self._times.monotonic_ms()
        if mono_ms >= self._list_at_ms:
            await self._list()
            self._list_at_ms = mono_ms + LIST_EVERY_MS
            self._listed_at_ms = self._times.now_ms()
        now_ms = self._times.now_ms()
        wanted, due_ms = should(self._view, self._policy, now_ms)
        await self._tell_ended_overrides()
        limits = Limits(
            tuple(self._created),
            {name: tuple(times) for name, times in self._repaired.items()},
            self._listed_at_ms,
            frozenset(self._stood),
        )
        actions = plan(wanted, self._found, self._policy.respond.exclusion, limits, now_ms)
        try:
            # what takes nothing away goes first, and all of it
            await self._all([action for action in actions if action.do != "delete"], now_ms)
            await self._all([action for action in actions if action.do == "delete"], now_ms)
        except BaseException:
            self._list_at_ms = 0
            raise
        self._metrics.stands("taint_rules", len(self._found))
        self._metrics.stands("taint_rules_overridden", len(self._overridden))
        self._metrics.stands("taint_rules_capped", sum(1 for action in actions if action.do == "cap"))
        return self._wait_s(actions, due_ms, now_ms)

    async def _all(self, actions: list[Action], now_ms: int) -> None:
        results = await asyncio.gather(
            *(self._do(action, now_ms) for action in actions), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, BaseException)]
        for result in failed:
            if not isinstance(result, ServiceError):
                raise result
        if failed:
            raise failed[0]

    def _wait_s(self, actions: list[Action], due_ms: int, now_ms: int) -> float:
        times = [due_ms, now_ms + self._list_at_ms - self._times.monotonic_ms()]
        if any(action.do == "cap" for action in actions):
            times.append(now_ms + MINUTE_MS // 4)
        return max(0.0, (min(times) - now_ms) / 1000)

    # --- the API server ---

    async def _list(self) -> None:
        if not self._path:
            await self._discover()
        selector = f"{MANAGED_BY}=sickbay,{INSTALLATION}={self._installation}"
        listed = await list_all(self._api, self._path, [("labelSelector", selector)], needs=_NEEDS)
        rules = (read(item, self._installation) for item in listed)
        self._found = {rule.name: rule for rule in rules if rule is not None}
        self._stood |= self._found.keys()

    async def _discover(self) -> None:
        for version in VERSIONS:
            group = f"/apis/resource.k8s.io/{version}"
            code, body = await self._send("GET", group)
            names = {resource.get("name") for resource in body.get("resources") or ()}
            if code == 200 and "devicetaintrules" in names:
                self._path, self._api_version = f"{group}/devicetaintrules", f"resource.k8s.io/{version}"
                return
        raise ServiceError(
            "the API server serves no DeviceTaintRule: on 1.36 switch on the gate DRADeviceTaintRules and"
            " --runtime-config=resource.k8s.io/v1beta2=true; `sickbay doctor` says what a cluster has"
        )

    async def _send(
        self, method: Method, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        return await send(self._api, method, path, (), body)

    def _refusal(self, verb: str, code: int, body: dict[str, Any]) -> str:
        return refusal(verb, self._path, code, body, _NEEDS)

    # --- doing ---

    async def _do(self, action: Action, now_ms: int) -> None:
        async with self._writing:
            match action.do:
                case "create":
                    await self._create(action, now_ms, "applied")
                case "update":
                    await self._update(action, now_ms, "applied")
                case "repair" if action.found is None:
                    await self._create(action, now_ms, "repaired")
                case "repair":
                    await self._update(action, now_ms, "repaired")
                case "delete":
                    await self._delete(action, now_ms)
                case "respect":
                    await self._respect(action, now_ms)
                case "confirm":
                    # a rule that was made by a process that was killed before it could say so is told by who finds it
                    if action.found is not None and _version(action.found) not in self._versions_told:
                        await self._tell(action, "applied", now_ms)
                    await self._tell(action, "confirmed", now_ms)
                case "cap":
                    policy = self._policy.respond.exclusion
                    await self._tell(
                        action,
                        "capped",
                        now_ms,
                        f"{policy.rules_max} rules at most, {policy.per_minute} new ones a minute",
                    )
                case "give_up":
                    self._metrics.done("repair", "given_up")
                    await self._tell(
                        action, "given_up", now_ms, "somebody else changes or deletes it again and again"
                    )

    async def _create(self, action: Action, now_ms: int, state: State) -> None:
        wanted = action.wanted
        assert wanted is not None
        self._require_lead()
        reach("exclude.creating")
        self._created.append(now_ms)
        body = build(wanted, self._api_version, self._installation, self._policy.hash())
        code, answer = await self._send("POST", self._path, body)
        reach("exclude.created")
        if code == 409:  # made by a process before this one: the next look finds it
            self._look_soon()
            return
        await self._written(action, code, answer, "create", state, now_ms)

    async def _update(self, action: Action, now_ms: int, state: State) -> None:
        wanted, found = action.wanted, action.found
        assert wanted is not None
        assert found is not None
        self._require_lead()
        reach("exclude.updating")
        code, answer = await self._send(
            "PUT", f"{self._path}/{wanted.name}", rebuilt(wanted, found, self._api_version)
        )
        if code in (404, 409):
            # somebody wrote meanwhile, the eviction controller its status most likely: decide again by what is there
            self._look_soon()
            return
        await self._written(action, code, answer, "update", state, now_ms)

    async def _written(
        self, action: Action, code: int, answer: dict[str, Any], verb: str, state: State, now_ms: int
    ) -> None:
        """Take in what the API server made of a write: an acknowledgement that says something else is none."""
        wanted = action.wanted
        assert wanted is not None
        if state == "repaired":
            self._note_repair(wanted.name, now_ms)
        found = read(answer, self._installation) if code in (200, 201) else None
        if found is None or not is_right(found, wanted):
            told = (
                self._refusal(verb, code, answer)
                if code not in (200, 201)
                else "the API server kept something else than what was sent; a webhook may have changed it"
            )
            self._metrics.done(verb, "refused")
            _log.warning("%s: %s", wanted.name, told)
            await self._tell(action, "refused", now_ms, told)
            if code not in (400, 403, 422):
                raise ServiceError(told)
            return
        self._found[found.name] = found
        self._stood.add(found.name)
        self._metrics.done(verb, state, (now_ms - wanted.at_ms) / 1000)
        self._look_soon(self._policy.respond.exclusion.confirm_after_ms)
        reach("exclude.written")
        await self._tell(action._replace(found=found), state, now_ms)

    def _look_soon(self, after_ms: int = 0) -> None:
        """List again after so long, and a second: whoever writes all the time costs one write a second at most."""
        self._list_at_ms = min(self._list_at_ms, self._times.monotonic_ms() + after_ms + _SECOND_MS)

    async def _delete(self, action: Action, now_ms: int) -> None:
        found = action.found
        assert found is not None
        self._require_lead()
        # told before it is done: it is tried until it is done, and a process that was killed in between would tell nobody
        await self._tell(action, "removed", now_ms)
        reach("exclude.deleting")
        preconditions = {"uid": found.uid, "resourceVersion": found.resource_version}
        code, answer = await self._send(
            "DELETE",
            f"{self._path}/{found.name}",
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions},
        )
        reach("exclude.deleted")
        if code == 409:
            _log.info("%s was changed meanwhile, and is looked at again", found.name)
            self._look_soon()
            return
        if code not in (200, 202, 404):
            self._metrics.done("delete", "refused")
            raise ServiceError(self._refusal("delete", code, answer))
        self._found.pop(found.name, None)
        self._stood.discard(found.name)
        self._repaired.pop(found.name, None)
        self._versions_told.discard(_version(found))
        self._metrics.done("delete", "removed")

    async def _respect(self, action: Action, now_ms: int) -> None:
        found = action.found
        assert found is not None
        self._overridden[found.name] = found
        detail = f"by {found.writer or 'somebody'}: {found.override}"[:500]
        await self._tell(action, "overridden", now_ms, detail, mark=derived_id(found.override))

    async def _tell_ended_overrides(self) -> None:
        for name, before in list(self._overridden.items()):
            known = self._found.get(name)
            if known is None or not known.override:
                await self._tell(
                    Action("respect", name, None, before),
                    "override_ended",
                    self._times.now_ms(),
                    mark=before.resource_version,
                )
                del self._overridden[name]

    def _note_repair(self, name: str, now_ms: int) -> None:
        times = self._repaired.setdefault(name, deque(maxlen=1_000))
        while times and times[0] <= now_ms - HOUR_MS:
            times.popleft()
        times.append(now_ms)

    async def _tell(
        self, action: Action, state: State, now_ms: int, detail: str = "", *, mark: str = ""
    ) -> None:
        """Report once what became of a rule. Its version is part of the id, so that a repeat after a restart is the same fact."""
        wanted, found = action.wanted, action.found
        version = _version(found) if found is not None and state not in _HOURLY else ""
        request_id = derived_id("exclusion", action.name, state, version, mark or _mark(state, now_ms))
        if request_id in self._told:
            return
        device_id = wanted.device_id if wanted is not None else device_of(found) if found is not None else ""
        node = wanted.node if wanted is not None else found.node if found is not None else ""
        if not device_id:
            return  # somebody made it a rule about something else, and it names no device to tell of
        await self._reports.report(
            ExclusionReported(
                node=node,
                observed_at_ms=now_ms,
                request_id=request_id,
                device_id=device_id,
                actor=ACTOR,
                episode_id=wanted.episode_id
                if wanted is not None
                else found.episode_id
                if found is not None
                else "",
                rule=action.name,
                effect=effect_of(found) if found is not None else "",
                state=state,
                detail=detail,
            )
        )
        self._told[request_id] = None
        _log.info("%s of %s: %s", action.name, device_id, state, extra={"detail": detail})
        if found is not None and state in ("applied", "repaired"):
            self._versions_told.add(_version(found))
        while len(self._told) > 100_000:
            del self._told[next(iter(self._told))]


def _version(found: Found) -> str:
    return f"{found.uid}:{found.generation}"


def _mark(state: State, now_ms: int) -> str:
    """Return what tells two reports of one state apart that no version of the rule tells apart: the hour."""
    return str(now_ms // HOUR_MS) if state in _HOURLY else ""
