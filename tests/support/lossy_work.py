"""`sickbay work` whose first recovery loses what it read, as Faust does now and then: it stands behind it and nothing comes."""

from __future__ import annotations

import sys

from faust.tables.recovery import Recovery

from sickbay.cli import main

seek_offsets = Recovery._seek_offsets
lost: list[object] = []


async def seek_and_lose(self, consumer, tps, offsets, title):
    await seek_offsets(self, consumer, tps, offsets, title)
    if not lost:
        lost.append(title)
        ends = {tp: self.active_highwaters[tp] + 1 for tp in tps if self.active_highwaters.get(tp, -1) >= 0}
        assert ends, "there is no state to lose"
        await consumer.seek_wait(ends)


Recovery._seek_offsets = seek_and_lose
sys.argv[0] = "sickbay"
main()
