"""What a partition keeps of batches that a coordinator writes in a producer's name: epochs, but no sequences."""

import pytest

from logflume.log.batch import encode_batch, parse_header
from logflume.log.storage import AppendRefused
from logflume.log.storage.producers import ProducerStates


def offsets_batch(epoch: int) -> bytes:
    return bytes(encode_batch([b"k"], [b"v"], [1], producer_id=7, producer_epoch=epoch, is_transactional=True))


def test_equal_batches_of_a_coordinator_are_not_taken_for_repeated_ones() -> None:
    producers = ProducerStates()
    header = parse_header(offsets_batch(0))
    for offset in range(7):
        assert producers.check(header) is None
        producers.apply(header, first_offset=offset, last_offset=offset, timestamp_ms=1)
    assert producers.open_transactions == {7: 0}


def test_their_epoch_counts() -> None:
    producers = ProducerStates()
    producers.apply(parse_header(offsets_batch(3)), first_offset=0, last_offset=0, timestamp_ms=1)
    with pytest.raises(AppendRefused, match="epoch 3 or later"):
        producers.check(parse_header(offsets_batch(2)))
