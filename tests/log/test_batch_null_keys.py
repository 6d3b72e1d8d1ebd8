"""Records without a key are found as by decoding them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logflume.log.batch import HEADER_BYTES, encode_batch, parse_header
from logflume.log.batch.keys import null_keys

BLOBS = st.one_of(st.none(), st.binary(max_size=200))
RECORDS = st.lists(st.tuples(BLOBS, BLOBS, st.integers(0, 2**41)), min_size=1, max_size=30)


@given(RECORDS)
def test_null_keys_are_found(records: list[tuple[bytes | None, bytes | None, int]]) -> None:
    batch = bytes(encode_batch([k for k, _, _ in records], [v for _, v, _ in records], [t for _, _, t in records]))
    found = null_keys(batch[HEADER_BYTES:], parse_header(batch))
    assert found == [i for i, (key, _, _) in enumerate(records) if key is None]
