"""Under which key a fact is known, what ends it, and which known records are believed."""

import pytest
from told_facts import (
    breaker,
    claim,
    claim_gone,
    lapsed,
    node_gone,
    node_seen,
    noted,
    pod,
    pod_gone,
    pool,
    resumed,
    tick,
    withdrawn,
    word,
)

from ingest.packing import pack
from ingest.remembering import (
    COVERED,
    DISTRUST,
    ENDED_KEPT_MS,
    ENDED_MAX,
    Covered,
    Ended,
    PartitionMemory,
    bare_message,
    known_message,
    mark_key,
    note,
)
from sickbay.cloudevents import FACTS_OFFSET, INGEST_EPOCH, unpack
from sickbay.codec import encode, wrap_fact
from sickbay.errors import CodecError
from sickbay.facts import DevicePublished, HoldRequested


@pytest.mark.parametrize(
    ("fact", "key"),
    [
        (pod(), '["pod","a","pod:p1"]'),
        (pod_gone(), '["pod","a","pod:p1"]'),
        (claim(), '["claim","a","claim:c1"]'),
        (claim_gone(), '["claim","a","claim:c1"]'),
        (node_seen(), '["node","a","node:n1"]'),
        (node_gone(), '["node","a","node:n1"]'),
        (withdrawn(), '["device","a","dra:d/p/g0"]'),
        (word(), '["word","a","dra:d/p/g0","p1"]'),
        (word(live=False), '["word","a","dra:d/p/g0","p1"]'),
        (word(uid="p2"), '["word","a","dra:d/p/g0","p2"]'),
        (lapsed(), '["lease","a","lease"]'),
        (resumed(), '["lease","a","lease"]'),
        (pool(), '["pool_observed","a","pool:d/p"]'),
        (tick(2, 7), '["tick","partition/2","tick"]'),
        (breaker(1, 7), '["breaker_state_changed","partition/1","breaker:cluster"]'),
        (pod(node=""), '["pod","","pod:p1"]'),
    ],
)
def test_a_fact_is_known_under_what_it_is_about(fact, key):
    assert noted(fact).key.decode() == key


def test_a_device_that_is_withdrawn_stands_where_it_was_published():
    published = DevicePublished(
        node="a", observed_at_ms=0, device_id="dra:d/p/g0", driver="d", pool="p", device="g0", slice_uid="s",
        pool_generation=1,
    )  # fmt: skip
    assert noted(published).key == noted(withdrawn()).key


def test_two_sorts_of_requests_about_one_device_are_both_known():
    held = HoldRequested(
        node="a", observed_at_ms=0, request_id="r", device_id="x/y", actor="me", reason="", until_ms=1
    )
    assert noted(held).key.decode() == '["hold_requested","a","x/y"]'


@pytest.mark.parametrize(
    ("fact", "ended"),
    [
        (pod(), False),
        (pod_gone(), True),
        (claim_gone(), True),
        (node_gone(), True),
        (withdrawn(), True),
        (word(), False),
        (word(live=False), True),
        (pool(), False),
        (pool(newest=None), True),
        (lapsed(), False),
        (tick(), False),
    ],
)
def test_what_ends_a_subject(fact, ended):
    assert noted(fact).ended is ended


def test_a_decision_is_no_fact():
    envelope = wrap_fact(pod())
    for kind in ("device_released", "of_another_build"):
        with pytest.raises(CodecError, match="no kind of fact"):
            note(
                type(envelope)(
                    **{name: getattr(envelope, name) for name in envelope.__struct_fields__} | {"kind": kind}
                ),
                b"",
            )


def known(memory, fact, offset=0, *, epoch=1, covered=None):
    message = known_message(noted(fact), offset, covered or Covered(0, -1), epoch)
    memory.known(*message)


def mark(memory, epoch, covered=None):
    memory.known(*bare_message(mark_key(epoch), b"{}", covered or Covered(0, -1), epoch))


def told(memory, offset, *facts, epoch=1):
    packed, _ = pack(facts, 1, [(INGEST_EPOCH, str(epoch).encode())] if epoch else [], single_max=0)
    assert len(packed) == 1
    memory.fact(offset, packed[0].message.value, packed[0].message.headers)


def facts_of(memory):
    return {entry.noted.data for entry in memory.entries.values()}


def data(fact):
    return encode(wrap_fact(fact))


def test_a_known_record_is_the_event_and_says_where_it_is_from():
    message = known_message(noted(pod()), 12, Covered(9, 3), 4)
    assert unpack(message.value, message.headers)[0].envelope == wrap_fact(pod())
    assert dict(message.headers)[INGEST_EPOCH] == b"4"
    assert dict(message.headers)[FACTS_OFFSET] == b"12"
    assert dict(message.headers)[COVERED] == b"9/3"


def test_without_a_mark_the_facts_are_read_from_the_beginning():
    memory = PartitionMemory()
    known(memory, pod(), covered=Covered(7, 1))
    assert memory.judge(9) == 0
    assert not memory.trusted


def test_facts_are_read_from_where_the_known_ones_end():
    memory = PartitionMemory()
    mark(memory, 1)
    known(memory, pod(rv=5), 6, covered=Covered(6, 1))
    assert memory.judge(9) == 6
    told(memory, 6, pod(rv=5))
    told(memory, 7, pod(rv=4), word())
    memory.read_until(9)
    assert facts_of(memory) == {data(pod(rv=5)), data(word())}
    assert memory.covered == (9, 1)
    assert [key for key, _ in memory.repairs()] == [noted(word()).key]


def test_what_a_replaced_leader_writes_later_is_not_believed_and_taken_back():
    memory = PartitionMemory()
    mark(memory, 1)
    known(memory, pod(rv=5), covered=Covered(6, 1))
    mark(memory, 2, Covered(6, 1))
    known(memory, pod(rv=9), epoch=1, covered=Covered(8, 1))
    known(memory, word(), epoch=1)
    assert memory.judge(9) == 0
    told(memory, 0, pod(rv=5))
    told(memory, 1, pod(rv=6), epoch=2)
    told(memory, 2, pod(rv=9), epoch=1)
    assert facts_of(memory) == {data(pod(rv=6))}
    assert memory.superseded == 1
    assert [(key, entry and entry.offset) for key, entry in memory.repairs()] == [
        (noted(pod()).key, 1),
        (noted(word()).key, None),
    ]


def test_a_new_leader_says_anew_what_is_covered():
    memory = PartitionMemory()
    mark(memory, 1)
    known(memory, pod(), covered=Covered(8, 1))
    mark(memory, 2, Covered(6, 1))
    assert memory.judge(9) == 6


def test_where_somebody_else_wrote_the_facts_alone_are_believed_until_it_is_repaired():
    memory = PartitionMemory()
    mark(memory, 1)
    memory.known(*bare_message(DISTRUST, b"{}", Covered(5, 1), 1))
    assert memory.judge(9) == 0
    told(memory, 0, pod())
    assert [(key, entry and entry.offset) for key, entry in memory.repairs()] == [
        (noted(pod()).key, 0),
        (DISTRUST, None),
    ]
    memory.known(*bare_message(DISTRUST, None, Covered(0, -1), 1))
    memory.judge(9)
    assert DISTRUST not in {key for key, _ in memory.repairs()}


def test_what_a_replaced_leader_took_out_is_taken_out_by_the_new_one():
    memory = PartitionMemory()
    mark(memory, 2)
    memory.known(*bare_message(noted(pod()).key, None, Covered(5, 1), 1))
    assert memory.judge(9) == 0
    assert list(memory.repairs()) == [(noted(pod()).key, None)]


def test_known_records_of_a_topic_of_facts_that_is_no_more_are_not_believed():
    memory = PartitionMemory()
    mark(memory, 1)
    known(memory, pod(), covered=Covered(60, 1))
    assert memory.judge(9) == 0


def test_records_that_nobody_can_read_are_counted_and_passed_over():
    memory = PartitionMemory()
    mark(memory, 1)
    memory.known(b"x", b"{", [(INGEST_EPOCH, b"1"), (COVERED, b"0/-1")])
    memory.known(None, b"x", [(INGEST_EPOCH, b"one")])
    memory.known(b"y", b"x", [(INGEST_EPOCH, b"1"), (COVERED, b"0")])
    assert memory.judge(9) == 0
    memory.fact(0, b"no event", [(INGEST_EPOCH, b"1")])
    memory.fact(1, None, [(INGEST_EPOCH, b"1")])
    memory.fact(2, b"x", [(INGEST_EPOCH, b"-1")])
    told(memory, 3, pod())
    assert memory.unreadable == 6
    assert facts_of(memory) == {data(pod())}


def test_what_people_asked_for_is_not_an_ingesters():
    memory = PartitionMemory()
    told(memory, 0, pod(), epoch=0)
    assert not memory.entries
    assert not memory.unreadable
    assert memory.covered == (1, -1)


def test_an_end_is_kept_for_a_while_and_its_key_is_then_taken_out():
    ended = Ended()
    ended.hear(0, noted(pod_gone(at_ms=1)))
    ended.hear(0, noted(tick(0, ENDED_KEPT_MS)))
    assert not ended.due()
    ended.hear(0, noted(tick(0, ENDED_KEPT_MS + 1)))
    assert ended.due() == [(0, noted(pod()).key)]
    assert not ended.due()


def test_what_comes_back_is_not_taken_out():
    ended = Ended()
    ended.hear(0, noted(withdrawn(at_ms=1)))
    published = noted(withdrawn(at_ms=2))._replace(ended=False)
    ended.hear(0, published)
    ended.hear(0, noted(tick(0, 2 * ENDED_KEPT_MS)))
    assert not ended.due()


def test_the_lease_of_a_node_ends_with_it_unless_it_came_back():
    for back in (False, True):
        ended = Ended()
        ended.hear(0, noted(lapsed(at_ms=1)))
        ended.hear(0, noted(node_gone(at_ms=1)))
        if back:
            ended.hear(0, noted(resumed(at_ms=2)))
        ended.hear(0, noted(tick(0, 2 * ENDED_KEPT_MS)))
        assert ((0, noted(lapsed()).key) in ended.due()) is not back


def test_of_too_many_ends_the_oldest_go():
    ended = Ended()
    one = noted(pod_gone())
    for number in range(ENDED_MAX + 2):
        ended.hear(0, one._replace(key=str(number).encode()))
    assert ended.due() == [(0, b"0"), (0, b"1")]
    assert len(ended) == ENDED_MAX
