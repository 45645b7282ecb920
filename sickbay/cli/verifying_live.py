"""``sickbay verify --live``: what only a store that follows Kafka can be asked to prove.

Each proof compares the store with what stands in Kafka and returns the line that tells of it; a difference is a VerifyError.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from projections.engine import Store
from projections.verify_live import verify_topics
from sickbay.cli.refolding import verify_snapshots
from sickbay.settings import KafkaSettings, kafka_settings

Proof: TypeAlias = Callable[[KafkaSettings, Store], Awaitable[str]]


async def verify_log_is_merged(settings: KafkaSettings, store: Store) -> str:
    """Merge both topics again and compare them with the log, byte for byte."""
    live = await verify_topics(settings, store)
    told = f"live: {live.facts} facts and {live.decisions} decisions of {live.partitions} partitions in Kafka equal those in the store"
    if not live.behind:
        return told
    return f"{told}, which is {live.behind} records behind in {live.partitions_behind} partitions: of those nothing is proved yet"


async def verify_workers_hold_it(settings: KafkaSettings, _store: Store) -> str:
    """Compare every worker's snapshot with the state that the log in Kafka leads to, byte for byte."""
    counts = await verify_snapshots(settings)
    if not counts["snapshots"]:
        return f"workers: none of {settings.partitions} partitions has a snapshot yet, so there is nothing to compare"
    return (
        f"workers: {counts['snapshots']} snapshots of {settings.partitions} partitions, with {counts['snapshot_nodes']} nodes, equal"
        " the state that the log leads to"
    )


#: In the order in which they are made: a later one may rest on what an earlier one proved.
PROOFS: Final[tuple[Proof, ...]] = (verify_log_is_merged, verify_workers_hold_it)


def verify_live(store: Store) -> list[str]:
    """Make every proof, with Kafka as the environment says; return what each came to.

    Raises VerifyError for a difference, InputError, ServiceError and StoreError when it cannot be told.
    """
    settings = kafka_settings(os.environ)
    if logging.getLogger().level > logging.INFO:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its errors come back as ours, on one line

    async def prove() -> list[str]:
        return [await proof(settings, store) for proof in PROOFS]

    return asyncio.run(prove())
