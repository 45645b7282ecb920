"""Laws of Kafka records: whatever is packed comes out as it was, and bytes of anybody else end in an error of ours alone."""

from __future__ import annotations

import msgspec
from facts_of import T0, plugin, word
from hypothesis import given
from hypothesis import strategies as st

from sickbay.cloudevents import BATCH, BATCH_EVENTS_MAX, SINGLE, batches, header, unpack, whole_header
from sickbay.codec import encode, open_envelope, wrap_fact
from sickbay.deadletters import letter_message, of_record, read_letter
from sickbay.errors import SickbayError
from sickbay.topics import RECORD_BYTES_MAX

# quotes, backslashes and characters of each length in UTF-8 are what an encoder can trip over
messages = st.text(st.sampled_from('a"\\\n\x00/é€😀'), max_size=30)


@st.composite
def events(draw):
    """Facts of one node, most of them short and some that fill a good part of a record."""
    fillers = st.sampled_from([0, 0, 0, 0, 100_000, 330_000, 498_000, 990_000])
    made = []
    for rv, (text, filler) in enumerate(draw(st.lists(st.tuples(messages, fillers), max_size=8)), start=1):
        repeats = draw(st.sampled_from([1, 1, 1, 60])) if not filler else 1
        for repeat in range(repeats):
            fact = word(plugin(0), "Unhealthy", T0 + rv, rv * 100 + repeat, message=text + "x" * filler)
            envelope = wrap_fact(fact)
            made.append((envelope, encode(envelope)))
    return made


@given(events(), st.sampled_from([[], [("sickbay-part", b"1/2")]]))
def test_what_is_packed_comes_out_in_its_order_byte_for_byte(given_events, extra):
    records = batches("node-a", given_events, extra)
    opened = [unpack(record.value, record.headers) for record in records]
    assert given_events == [tuple(one) for several in opened for one in several]
    assert all(1 <= len(several) <= BATCH_EVENTS_MAX for several in opened)
    for record in records:
        size = len(record.key) + len(record.value) + sum(len(n) + len(v) for n, v in record.headers)
        assert size <= RECORD_BYTES_MAX
        assert extra == record.headers[len(record.headers) - len(extra) :]


DATA = encode(wrap_fact(word(plugin(0), "Unhealthy", T0, 12)))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "a"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@st.composite
def spoiled(draw):
    """Our own bytes with a piece replaced, removed or put in."""
    whole = draw(st.sampled_from([DATA, b'[{"data":' + DATA + b"}]"]))
    at, cut = draw(st.integers(0, len(whole))), draw(st.integers(0, 40))
    return whole[:at] + draw(st.binary(max_size=6)) + whole[at + cut :]


values = st.none() | st.binary(max_size=60) | spoiled() | json_values.map(msgspec.json.encode)
header_lists = st.none() | st.lists(
    st.tuples(
        st.sampled_from(["content-type", "sickbay-part", "x"]),
        st.none() | st.binary(max_size=8) | st.sampled_from([SINGLE, BATCH]),
    ),
    max_size=4,
)


@given(values, header_lists)
def test_whatever_stands_in_a_record_is_read_or_refused_by_an_error_of_ours(value, headers):
    for read in (
        lambda: [open_envelope(one.envelope) for one in unpack(value, headers)],
        lambda: header(headers, "sickbay-part"),
        lambda: whole_header(headers, "sickbay-part"),
        lambda: read_letter(value),
    ):
        try:
            read()
        except SickbayError:
            continue


@given(values, values, header_lists, st.text(max_size=20))
def test_whatever_is_refused_can_be_parked_and_read_again(key, value, headers, reason):
    letter = of_record("sickbay.facts", 0, 1, key, value, headers, reason)
    message = letter_message(letter)
    found = read_letter(message.value)
    assert letter == found
    if found.is_whole:
        assert ((key or b""), (value or b""), list(headers or ())) == (
            found.key,
            found.value,
            list(found.headers),
        )
