"""Which facts share a record: order, sizes, and that each goes out once or is handed back."""

from hypothesis import given
from hypothesis import strategies as st
from told_facts import breaker, pod, tick, told, word

from ingest.packing import KEY_BYTES_MAX, pack, partition_of_fact
from sickbay.cloudevents import BATCH_EVENTS_MAX, unpack
from sickbay.codec import encode, open_envelope, wrap_fact
from sickbay.topics import RECORD_BYTES_MAX

PARTITIONS = 3
HEADERS = [("sickbay-ingest-epoch", b"7")]


def opened(packed):
    return [
        open_envelope(event.envelope)
        for one in packed
        for event in unpack(one.message.value, one.message.headers)
    ]


def of_partition(packed, number):
    return opened(one for one in packed if one.partition == number)


many = st.lists(told(partitions=PARTITIONS), max_size=60)


@given(many, st.sampled_from((0, 1, 8, 1_000)))
def test_every_fact_goes_out_once_in_its_own_partition(facts, single_max):
    packed, refused = pack(facts, PARTITIONS, HEADERS, single_max=single_max)
    assert not refused
    assert sorted(map(repr, opened(packed))) == sorted(map(repr, facts))
    for one in packed:
        assert {partition_of_fact(fact, PARTITIONS) for fact in opened([one])} == {one.partition}
        assert [encode(event.envelope) for event in one.events] == [event.data for event in one.events]


@given(many, st.sampled_from((0, 1_000)))
def test_the_facts_of_a_partition_keep_their_order(facts, single_max):
    packed, _ = pack(facts, PARTITIONS, single_max=single_max)
    for number in range(PARTITIONS):
        before = [fact for fact in facts if partition_of_fact(fact, PARTITIONS) == number]
        assert of_partition(packed, number) == before


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 400_000)), max_size=12))
def test_no_record_is_larger_than_a_record_may_be(sizes):
    facts = [word(node, rv, message="x" * size) for rv, (node, size) in enumerate(sizes, start=1)]
    packed, refused = pack(facts, PARTITIONS, HEADERS, single_max=0)
    assert not refused
    for one in packed:
        extra = sum(len(name) + len(value) for name, value in one.message.headers)
        assert len(one.message.key) + len(one.message.value) + extra <= RECORD_BYTES_MAX


def test_few_facts_get_a_record_each_under_their_own_key():
    facts = [pod("a", 1), pod("a", 2), tick(1, 5)]
    packed, _ = pack(facts, PARTITIONS, HEADERS, single_max=3)
    assert [
        one.message.key.decode() for one in packed if one.partition == partition_of_fact(facts[0], PARTITIONS)
    ][:2] == [wrap_fact(facts[0]).key, wrap_fact(facts[1]).key]
    assert all(len(one.events) == 1 and HEADERS[0] in one.message.headers for one in packed)


def test_many_facts_of_a_node_share_records_under_its_name():
    packed, _ = pack([pod("a", rv) for rv in range(1, 252)], PARTITIONS, HEADERS)
    assert [len(one.events) for one in packed] == [BATCH_EVENTS_MAX, BATCH_EVENTS_MAX, 51]
    assert {one.message.key for one in packed} == {b"a"}
    assert all(HEADERS[0] in one.message.headers for one in packed)


def test_many_facts_of_several_nodes_share_records_under_the_stream_of_their_partition():
    names = [
        name for name in map("n{}".format, range(40)) if partition_of_fact(pod(name, 1), PARTITIONS) == 0
    ][:5]
    packed, _ = pack([pod(name, rv) for rv in range(1, 5) for name in names], PARTITIONS, single_max=0)
    assert [(one.message.key, len(one.events)) for one in packed] == [(b"partition/0", 20)]


def test_what_everybody_hears_is_packed_under_the_stream_of_the_partition():
    packed, _ = pack([breaker(1, 1), tick(1, 2)], PARTITIONS, single_max=0)
    assert [(one.partition, one.message.key, len(one.events)) for one in packed] == [(1, b"partition/1", 2)]


def test_a_fact_that_no_record_holds_is_handed_back_and_the_others_go_on():
    facts = [
        pod("a", 1),
        word("a", 2, message="x" * RECORD_BYTES_MAX),
        word("a", 3, device="d" * (KEY_BYTES_MAX + 1)),
        pod("a\ud800", 4),
        tick(PARTITIONS, 9),
        pod("a", 5),
    ]
    for single_max in (0, 100):
        packed, refused = pack(facts, PARTITIONS, single_max=single_max)
        assert opened(packed) == [facts[0], facts[-1]]
        assert [
            one.reason.partition(":")[0].partition(" bytes")[0].rstrip("0123456789") for one in refused
        ] == [
            "it has ",
            "its key has ",
            "it cannot be encoded",
            "it is for partition 3; there are ",
        ]
        assert r"\ud800" in refused[2].reason
        assert all(one.identity.isascii() and len(one.data) <= 4_096 for one in refused)
        assert refused[0].identity == "device_health_observed of 'dra:d/p/g0' on 'a'"
        assert refused[0].size > len(refused[0].data) > 0
