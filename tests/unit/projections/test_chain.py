"""The hash chain: every kind of tampering, at every place of a small log."""

from __future__ import annotations

from hashlib import sha256

import pytest

from projections.chain import first_head, next_hash, verify_links
from sickbay.errors import VerifyError

DATA = [f"event {number}".encode() for number in range(6)]


def linked(data):
    links, head = [], first_head(3)
    for offset, item in enumerate(data):
        head = next_hash(head, item)
        links.append((offset, item, head))
    return links


LINKS = linked(DATA)
HEAD = LINKS[-1][2]


def test_the_chain_is_sha256_of_head_and_data():
    """h_n = SHA-256(h_(n-1) || data_n), from a constant that names the partition."""
    assert sha256(first_head(3) + DATA[0]).digest() == LINKS[0][2]
    assert sha256(b"sickbay.event_log/partition/3").digest() == first_head(3)


def test_an_untouched_log_verifies():
    """The number of events is returned; an empty log has the first head."""
    assert len(DATA) == verify_links(3, LINKS, head=HEAD, position=6)
    assert 0 == verify_links(3, [], head=first_head(3), position=0)


@pytest.mark.parametrize("place", range(len(DATA)))
def test_a_deleted_event_is_found(place):
    """In the middle at the next link, at the end by the head."""
    with pytest.raises(
        VerifyError, match=f"offset {place + 1}: the hash chain" if place < 5 else "tail was cut"
    ):
        verify_links(3, LINKS[:place] + LINKS[place + 1 :], head=HEAD)


@pytest.mark.parametrize("place", range(len(DATA) + 1))
def test_an_inserted_event_is_found(place):
    """Wherever it stands, even when it carries a chain that fits there."""
    before = LINKS[place - 1][2] if place else first_head(3)
    shifted = [(offset * 10, data, chain) for offset, data, chain in LINKS]
    forged = (place * 10 - 5, b"forged", next_hash(before, b"forged"))
    if place == 0:
        shifted = [(offset + 10, data, chain) for offset, data, chain in shifted]
        forged = (0, b"forged", next_hash(before, b"forged"))
    with pytest.raises(VerifyError):
        verify_links(3, [*shifted[:place], forged, *shifted[place:]], head=HEAD)


@pytest.mark.parametrize("place", range(len(DATA)))
def test_a_changed_event_is_found_where_it_stands(place):
    """One flipped bit breaks its own link."""
    offset, data, chain = LINKS[place]
    changed = (offset, bytes([data[0] ^ 1]) + data[1:], chain)
    with pytest.raises(VerifyError, match=f"offset {place}: the hash chain breaks here"):
        verify_links(3, [*LINKS[:place], changed, *LINKS[place + 1 :]], head=HEAD)


@pytest.mark.parametrize("place", range(len(DATA) - 1))
def test_swapped_events_are_found(place):
    """Two neighbours that change places break the link of the first."""
    links = list(LINKS)
    (left, left_data, left_chain), (right, right_data, right_chain) = links[place : place + 2]
    links[place : place + 2] = [(left, right_data, right_chain), (right, left_data, left_chain)]
    with pytest.raises(VerifyError, match=f"offset {place}: the hash chain breaks here"):
        verify_links(3, links, head=HEAD)


@pytest.mark.parametrize("length", range(len(DATA)))
def test_a_cut_tail_is_found_by_the_head(length):
    """What is left is a valid chain, but not one that ends with the recorded head."""
    with pytest.raises(VerifyError, match="tail was cut"):
        verify_links(3, LINKS[:length], head=HEAD)


@pytest.mark.parametrize("place", range(len(DATA)))
def test_a_history_that_was_chained_anew_is_found_by_the_head(place):
    """Somebody who rewrites every later link cannot arrive at the head that was kept elsewhere."""
    forged = linked([*DATA[:place], b"forged", *DATA[place + 1 :]])
    with pytest.raises(VerifyError, match="tail was cut or added to"):
        verify_links(3, forged, head=HEAD)


def test_a_log_of_another_partition_does_not_verify():
    """The first head depends on the partition."""
    with pytest.raises(VerifyError, match="partition 2 offset 0"):
        verify_links(2, LINKS, head=HEAD)


def test_offsets_out_of_order_and_beyond_the_position_are_found():
    """Order and position are checked beside the hashes."""
    with pytest.raises(VerifyError, match="offset 0 follows 0"):
        verify_links(3, [LINKS[0], LINKS[0]], head=HEAD)
    with pytest.raises(VerifyError, match="at or after the recorded position 5"):
        verify_links(3, LINKS, head=HEAD, position=5)
