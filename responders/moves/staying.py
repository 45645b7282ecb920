"""Owners of workloads that stay on a quarantined device, because they declare no ability to be moved, are told once.

What custody says of them is the alert ``workload_not_movable``. A namespace that takes no Event keeps nobody else from being told.
"""

from __future__ import annotations

import logging
from typing import Final

from responders.moves import owners
from responders.moves.cluster import Cluster
from responders.view import View
from sickbay.clock import Times
from sickbay.errors import ServiceError
from sickbay.operations.respond_metrics import RespondMetrics

_log: Final = logging.getLogger(__name__)
_NOT_MOVABLE: Final = "workload_not_movable"


class StayingOwners:
    """Tells the owners; ``tell`` is called again and again."""

    def __init__(
        self, cluster: Cluster, view: View, *, times: Times, metrics: RespondMetrics, identity: str
    ) -> None:
        self._cluster, self._view, self._times = cluster, view, times
        self._metrics, self._identity = metrics, identity
        #: Alerts whose owner was told, or has nothing left that it could be told about.
        self._told: set[str] = set()

    async def tell(self) -> None:
        """Tell the owners who were not told yet. Raises the last ServiceError after everybody was tried."""
        standing = {
            alert.alert_id: alert.about
            for node in self._view.nodes.values()
            for alert in node.alerts.values()
            if alert.alert == _NOT_MOVABLE
        }
        self._told &= standing.keys()
        problem: ServiceError | None = None
        for alert_id in standing.keys() - self._told:
            try:
                await self._tell(alert_id, standing[alert_id])
                self._told.add(alert_id)
            except ServiceError as error:
                problem = error
                _log.warning("an owner is not told yet: %s", error)
        if problem is not None:
            raise problem

    async def _tell(self, alert_id: str, about: str) -> None:
        device_id, _, place = about.rpartition(" ")
        namespace, _, name = place.partition("/")
        for pod in (await self._cluster.pods(namespace)).values():
            if pod.name == name and not pod.deleting:
                await self._cluster.tell(
                    owners.not_movable_event(alert_id, device_id, pod, self._times.now_ms(), self._identity)
                )
                self._metrics.done("owner", "told")
