"""Records without a key are found as by decoding them, in any batch, whole or damaged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logflume.log.batch import CorruptBatch, decode_records, encode_batch
from logflume.log.batch.keys import null_keys

BLOBS = st.one_of(st.none(), st.binary(max_size=200))
RECORDS = st.lists(st.tuples(BLOBS, BLOBS, st.integers(0, 2**41)), min_size=1, max_size=30)


def batch_of(records: list[tuple[bytes | None, bytes | None, int]]) -> bytes:
    return bytes(encode_batch([k for k, _, _ in records], [v for _, v, _ in records], [t for _, _, t in records]))


@given(RECORDS)
def test_null_keys_are_found(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    assert null_keys(batch_of(records)) == [i for i, (key, _, _) in enumerate(records) if key is None]


@given(RECORDS, st.data())
def test_damaged_records_give_what_decoding_gives(
    records: list[tuple[bytes | None, bytes | None, int]], data: st.DataObject
) -> None:
    batch = bytearray(batch_of(records))
    batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = null_keys(bytes(batch))
    except CorruptBatch:
        return
    assert set(found) <= set(range(len(records)))
    try:
        decoded = decode_records(bytes(batch), has_crc_check=False)
    except CorruptBatch:
        return
    assert found == [i for i, record in enumerate(decoded) if record.key is None]
