"""The real kube-scheduler judges the ledger: ``make judge`` lets it decide thousands of times, and this a part of that."""

from __future__ import annotations

import pytest
from judged_clusters import Report, judge

#: Decisions of each version here; the report that a release is judged by has two thousand (``make judge``).
DECISIONS = 320


@pytest.mark.timeout(400)
def test_what_the_ledger_foresees_the_scheduler_does_and_what_it_records_the_ledger_derives(plane):
    report = Report(plane.version)
    report.verdicts += judge(plane, 1_000, DECISIONS)

    told = report.counts()
    assert told["unexplained"] == 0, [verdict.detail for verdict in report.unexplained]
    assert told["decisions"] == DECISIONS
    # both ways of deciding were met, many times
    assert min(told["outcomes"]["bound"], told["outcomes"]["pending"]) > DECISIONS // 10
    assert told["agreed"] > DECISIONS * 9 // 10
