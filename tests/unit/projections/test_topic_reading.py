"""Dead letters as the store keeps them, whoever wrote them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from projections.topic_reading import letter_item
from sickbay.deadletters import DeadLetter, letter_message


@pytest.mark.parametrize(
    ("at_ms", "kept"), [(None, None), (5, 5), (2**63 - 1, 2**63 - 1), (2**63, None), (-(2**70), None)]
)
def test_a_letter_of_a_time_that_no_database_holds_is_kept_without_it(at_ms, kept):
    letter = letter_message(DeadLetter(place="watch:pods", reason="why", at_ms=at_ms))
    item = letter_item(TopicPartition("parked", 0), SimpleNamespace(value=letter.value, offset=3))
    assert (item.place, item.reason, item.at_ms) == ("watch:pods", "why", kept)
