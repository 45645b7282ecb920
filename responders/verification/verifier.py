"""The verifier: looks at the steps that stand and at the namespace, and does what the plan says.

It keeps nothing that it needs: what it remembers of its looks only saves it from telling a report twice, and makes reports say more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from responders.reporting import Reports
from responders.verification import jobs
from responders.verification.namespace import Namespace, RefusedError
from responders.verification.plan import Action, Create, Delete, Report, World, plan, wants_published
from responders.verification.selecting import read_published
from responders.verification.steps import standing
from responders.verification.templates import Templates
from responders.verification.words import detail_of, waiting_words
from responders.view import View
from sickbay.errors import ServiceError
from sickbay.operations.failpoints import reach
from sickbay.operations.respond_metrics import RespondMetrics
from sickbay.policy import ReturnPolicy

#: Kubernetes' own label of the Pods of a Job.
_JOB_NAME: Final = "batch.kubernetes.io/job-name"

_log: Final = logging.getLogger(__name__)


class Verifier:
    """``act`` is one look. ``require_lead`` raises ServiceError unless this process may write; ``now_ms`` is event time."""

    def __init__(
        self,
        *,
        namespace: Namespace,
        templates: Templates,
        policy: ReturnPolicy,
        view: View,
        reports: Reports,
        metrics: RespondMetrics,
        require_lead: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._namespace = namespace
        self._templates = templates
        self._policy = policy
        self._view = view
        self._reports = reports
        self._metrics = metrics
        self._require_lead = require_lead
        self._now_ms = now_ms
        #: Of steps that stand.
        self._remembered = World()
        #: Whether nothing of ours was there when nothing stood.
        self._clean = False

    async def act(self) -> float | None:
        """Look, do what is to be done, and return when to look again at the latest, in seconds. Raises ServiceError."""
        if self._policy.prober != "job":
            return None
        steps = list(standing(self._view, self._policy))
        self._metrics.stands("step", len(steps))
        if not steps and self._clean:
            return None
        world = await self._look(wanted=bool(steps))
        self._clean = not (steps or world.jobs or world.claims)
        by_name = {step.name: step for step in steps}
        world.seen.intersection_update(by_name)
        world.reported.intersection_update(by_name)
        for noted in (world.refused, world.waited):
            for name in noted.keys() - by_name.keys():
                del noted[name]
        world.seen.update(
            name for name, step in by_name.items() if jobs.allocated(world.claims.get(name, {}), step)
        )
        for name in by_name.keys() & world.pods.keys():
            if waits := waiting_words(world.pods[name]):
                world.waited[name] = waits
        errors: list[str] = []
        for node, driver in sorted(set(wants_published(steps, world))):
            try:
                slices = await self._namespace.slices(node, driver)
            except ServiceError as error:
                errors.append(str(error))
                continue
            world.published[node, driver] = read_published(slices, node, driver)
        planned = plan(steps, world, self._templates, self._policy, self._now_ms())
        for action in planned.actions:
            try:
                await self._do(action, world)
            except ServiceError as error:  # the others need not wait for it
                errors.append(str(error))
                if isinstance(action, Create):
                    world.waited[action.step.name] = str(error)
        if errors:
            raise ServiceError("; ".join(sorted(set(errors))[:3]))
        return planned.again_s

    async def _look(self, *, wanted: bool) -> World:
        known = self._remembered
        world = World(seen=known.seen, reported=known.reported, refused=known.refused, waited=known.waited)
        for found, resource in ((world.jobs, "jobs"), (world.claims, "resourceclaims")):
            for each in await self._namespace.ours(resource):
                found[each["metadata"]["name"]] = each
        if wanted and world.jobs:
            for each in await self._namespace.ours("pods"):
                name = (each["metadata"].get("labels") or {}).get(_JOB_NAME, "")
                world.pods.setdefault(name, []).append(each)
        return world

    async def _do(self, action: Action, world: World) -> None:
        self._require_lead()
        match action:
            case Create(step, resource, body):
                try:
                    await self._namespace.create(resource, body)
                except RefusedError as error:
                    world.refused[step.name] = detail_of(str(error))
                    self._metrics.done(f"create_{resource}", "refused")
                    return
                self._metrics.done(f"create_{resource}", "done")
                _log.info("made for %s", step.device_id, extra={"resource": resource, "step": step.name})
                reach(f"verify.{resource}_created")
            case Report(step, fact):
                await self._reports.report(fact)
                world.reported.add(step.name)
                seconds = (fact.observed_at_ms - step.started_at_ms) / 1_000
                self._metrics.done(step.kind, "passed" if fact.passed else "failed", seconds)
                _log.info("reported of %s: %s", step.device_id, fact.detail, extra={"passed": fact.passed})
                reach("verify.reported")
            case Delete(resource, name, uid):
                await self._namespace.delete(resource, name, uid)
                self._metrics.done(f"delete_{resource}", "done")
                reach(f"verify.{resource}_deleted")
