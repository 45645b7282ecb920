"""A process that publishes facts and writes down what was acknowledged, for tests that kill it.

Run as ``python publishing.py BOOTSTRAP PREFIX PARTITIONS FIRST``: it recalls, leads, and publishes numbered facts of a few
nodes until it ends; after each ``drain`` it prints the number that all facts up to are kept.
"""

from __future__ import annotations

import asyncio
import sys

from told_facts import pod, pod_gone, tick, word

from ingest.kafka_log import KafkaFactLog
from sickbay.facts import Fact
from sickbay.settings import KafkaSettings

NODES = tuple(f"node-{number}" for number in range(7))


def numbered(number: int, partitions: int) -> list[Fact]:
    """Return the facts of one step: versions rise with the number."""
    node, uid, at_ms = NODES[number % len(NODES)], f"pod-{number % 31}", number * 1_000
    facts: list[Fact] = [
        pod(node, number, uid=uid, at_ms=at_ms),
        word(node, number, uid=uid, at_ms=at_ms, device=f"dra:d/p/g{number % 5}"),
    ]
    if number % 11 == 0:
        facts.append(pod_gone(node, number, uid=uid, at_ms=at_ms))
    if number % 5 == 0:
        facts += [tick(partition, at_ms) for partition in range(partitions)]
    return facts


async def main(bootstrap: str, prefix: str, partitions: int, first: int) -> None:
    settings = KafkaSettings(bootstrap=bootstrap, security="plaintext", prefix=prefix, partitions=partitions)
    log = KafkaFactLog(settings)
    await log.start()
    memory = await log.recall()
    log.lead(memory.ingest_epoch + 1)
    number = first
    while True:
        for _ in range(1 + number % 40):
            await log.publish(numbered(number, partitions))
            number += 1
        await log.drain()
        print(number - 1, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
