"""Record batches: round trips, equality of the tiers, foreign codecs as oracles, and bytes that lie."""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib
from functools import partial
from typing import Any

import cramjam
import lz4.frame
import numpy as np
import pytest
import zstandard
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import default_records as kafka_records

from logflume.log.batch import (
    HEADER_BYTES,
    BatchTooLarge,
    Codec,
    CorruptBatch,
    Marker,
    RecordData,
    UnsupportedMagic,
    build_marker,
    check_crc,
    columns,
    compress,
    decode_records,
    decoding,
    decompress,
    encode_batch,
    encoding,
    iter_batches,
    parse_header,
    parse_marker,
    stamp,
)
from logflume.log.batch.header import (
    end_of_batches,
    place_and_crc_at,
    producer_of,
    seal,
    size_at,
    stamp_append_time,
    stamp_producer,
)
from logflume.log.batch.key_scan import _scan, _scan_compiled
from logflume.log.batch.tiers import KernelTier, kernel_tier
from logflume.log.records import Chunk

CODECS = list(Codec)
maybe_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=4), maybe_bytes), max_size=3).map(tuple)
rows = st.lists(st.tuples(maybe_bytes, maybe_bytes, st.integers(-1, 2**53), headers), min_size=1, max_size=12)
Rows = list[tuple[bytes | None, bytes | None, int, Any]]

SOME: Rows = [
    (b"k1", b"v1" * 30, 1_700_000_000_000, ()),
    (None, b"", 1_700_000_000_005, (("h", b"x"), ("n", None))),
    (b"", None, 1_699_999_999_000, ()),
]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    assert columns.load_kernels(), "the tests compare with the compiled tier, which needs numba"


def batch_of(given_rows: Rows, **settings_: Any) -> bytearray:
    keys, values, times, heads = (list(c) for c in zip(*given_rows, strict=True))
    return encode_batch(keys, values, times, headers=heads, **settings_)


def expected_records(given_rows: Rows, base_offset: int = 0) -> list[RecordData]:
    return [RecordData(base_offset + i, time, key, value, heads) for i, (key, value, time, heads) in enumerate(given_rows)]


def as_records(chunk: Chunk) -> list[RecordData]:
    return [RecordData(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in chunk.records()]


def decode_both(data: bytes | bytearray, **settings_: Any) -> Chunk:
    """Decode with the kernels, with the loop in C and in Python, also as if numpy were not installed, and require that they agree
    to the last column, or on the refusal."""
    results: list[Chunk | CorruptBatch] = []
    in_c = decoding.locate
    for is_compiled, locate, has_numpy in ((True, None, True), *itertools.product((False,), (in_c, None), (True, False))):
        with tier(is_compiled), pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "locate", locate)
            patch.setattr(decoding, "has_numpy", lambda there=has_numpy: there)
            try:
                results.append(decoding.decode_fetch("t", 0, data, from_offset=0, **settings_))
            except CorruptBatch as error:
                results.append(error)
    compiled, *others = results
    for plain in others:
        if isinstance(compiled, CorruptBatch) or isinstance(plain, CorruptBatch):
            assert type(compiled) is type(plain), (compiled, plain)
        else:
            for name in Chunk.__slots__:
                assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name
            middle = len(plain) // 2
            assert [*plain.slice(0, middle).records(), *plain.slice(middle, len(plain)).records()] == [*compiled.records()]
    if isinstance(compiled, CorruptBatch):
        raise compiled
    return compiled


class tier:
    """Chooses the tier inside a `with` block."""

    def __init__(self, is_compiled: bool) -> None:
        self.is_compiled = is_compiled

    def __enter__(self) -> None:
        self.module, kernel_tier()._module = kernel_tier()._module, kernel_tier()._module if self.is_compiled else None

    def __exit__(self, *exc: object) -> None:
        kernel_tier()._module = self.module


@settings(max_examples=150, deadline=None)
@given(rows, st.sampled_from(CODECS), st.integers(0, 2**50))
def test_what_is_encoded_decodes_the_same(given_rows: Rows, codec: Codec, base_offset: int) -> None:
    batch = batch_of(given_rows, codec=codec, base_offset=base_offset)
    assert decode_records(batch) == expected_records(given_rows, base_offset)
    chunk = decode_both(batch)
    assert as_records(chunk) == expected_records(given_rows, base_offset)
    assert chunk.next_offset == base_offset + len(given_rows)


@settings(max_examples=100, deadline=None)
@given(rows, st.sampled_from(CODECS), st.booleans())
def test_both_tiers_encode_the_same_bytes(given_rows: Rows, codec: Codec, is_transactional: bool) -> None:
    keys, values, times, heads = (list(c) for c in zip(*given_rows, strict=True))
    settings_ = {"codec": codec, "is_transactional": is_transactional, "producer_id": 9, "producer_epoch": 2, "base_sequence": 5}
    plain = encode_batch(keys, values, times, headers=heads, **settings_)
    assert encoding.encode_objects(keys, values, times, headers=heads, **settings_) == plain
    assert columns.encode_rows(Chunk.from_columns("t", keys, values, times, headers=heads), **settings_) == plain


@settings(max_examples=60, deadline=None)
@given(rows, st.data())
def test_rows_of_a_chunk_are_encoded_in_the_order_wanted(given_rows: Rows, data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, len(given_rows) - 1), min_size=1, max_size=8))
    chunk = decode_both(batch_of(given_rows))
    wanted = expected_records([given_rows[i] for i in picks])
    for is_compiled in (True, False):
        with tier(is_compiled):
            batch = columns.encode_rows(chunk, rows=np.array(picks, np.int64))
            assert decode_records(batch) == wanted
            assert len(batch) <= 61 + int(columns.row_sizes(chunk)[picks].sum())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=11), min_size=1, max_size=20), st.integers(1, 50))
def test_both_tiers_place_keys_on_the_same_partition(keys: list[bytes | None], partition_count: int) -> None:
    chunk = Chunk.from_columns("t", keys, keys, [0] * len(keys))
    with tier(True):
        compiled = columns.key_partitions(chunk, partition_count).tolist()
    with tier(False):
        assert columns.key_partitions(chunk, partition_count).tolist() == compiled


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.none() | st.binary(max_size=11), st.none() | st.binary(max_size=40)), min_size=1, max_size=20))
def test_both_tiers_hash_contents_alike_and_null_apart(rows: list[tuple[bytes | None, bytes | None]]) -> None:
    chunk = Chunk.from_columns("t", [key for key, _ in rows], [value for _, value in rows], [0] * len(rows))
    found = []
    for is_compiled in (True, False):
        with tier(is_compiled):
            found.append([hashes.tolist() for hashes in columns.content_hashes(chunk)])
    assert found[0] == found[1]
    assert [[each == -1 for each in hashes] for hashes in found[0]] == [
        [cell is None for cell in cells] for cells in zip(*rows, strict=True)
    ]


def test_many_spans_become_the_same_objects_in_both_tiers() -> None:
    sizes = [0, 1, 31, 32, 255, 256, 65_535, 65_536, 70_000] * 10
    values: list[bytes | None] = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    values[3] = values[-1] = None
    chunk = Chunk.from_columns("t", [None] * len(values), values, [0] * len(values))
    for is_compiled in (True, False):
        with tier(is_compiled):
            assert chunk.values() == values
            assert chunk.keys() == [None] * len(values)


def test_murmur2_places_keys_like_kafka_python() -> None:
    from kafka.partitioner.default import murmur2 as foreign_murmur2

    keys = [bytes(range(n)) for n in range(20)] + [b"\xff" * n for n in range(9)]
    wanted = [(foreign_murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert columns.key_partitions(Chunk.from_columns("t", keys, keys, [0] * len(keys)), 7).tolist() == wanted


def foreign_codecs() -> list[Any]:
    """Codecs that we did not write: kafka-python's (it would want another snappy library) and aiokafka's."""
    foreign = [(kafka_records, codec) for codec in CODECS if codec != Codec.SNAPPY]
    foreign += [(aiokafka_records, codec) for codec in CODECS]
    return [pytest.param(module, codec, id=f"{module.__name__.split('.')[0]}-{codec.name}") for module, codec in foreign]


@pytest.mark.parametrize(("foreign", "codec"), foreign_codecs())
def test_foreign_codecs_read_what_we_write(foreign: Any, codec: Codec) -> None:
    batch = bytes(batch_of(SOME, codec=codec, base_offset=7, producer_id=5, producer_epoch=1, base_sequence=3))
    read = foreign.DefaultRecordBatch(batch)
    assert read.validate_crc()
    assert (read.base_offset, read.producer_id, read.producer_epoch, read.base_sequence) == (7, 5, 1, 3)
    found = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in read]
    assert found == [tuple(r) for r in expected_records(SOME, 7)]


@pytest.mark.parametrize(("foreign", "codec"), foreign_codecs())
def test_we_read_what_foreign_codecs_write(foreign: Any, codec: Codec) -> None:
    builder = foreign.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=1, producer_id=11, producer_epoch=2, base_sequence=4, batch_size=10**6
    )
    for i, (key, value, time, heads) in enumerate(SOME):
        builder.append(i, timestamp=time, key=key, value=value, headers=list(heads))
    batch = bytes(builder.build())
    header = parse_header(batch)
    check_crc(batch, header)
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 4)
    assert decode_records(batch) == expected_records(SOME)
    assert as_records(decode_both(batch)) == expected_records(SOME)


def test_snappy_is_read_raw_and_in_java_framing_with_several_blocks() -> None:
    data = bytes(range(256)) * 400
    raw = bytes(cramjam.snappy.compress_raw(data))
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), 1000):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + 1000]))
        framed += struct.pack(">i", len(block)) + block
    assert decompress(Codec.SNAPPY, raw) == decompress(Codec.SNAPPY, framed) == data
    written = bytes(compress(Codec.SNAPPY, data))
    assert written.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, written) == data


ZEROS = bytes(64 * 1024 * 1024)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_streams_behind_each_other_are_undone_one_after_the_other(codec: Codec) -> None:
    parts = [b"", b"a", bytes(70_000), b"b" * 9000, *(b"%d" % n for n in range(300)), bytes(200_000)]
    joined = b"".join(compress(codec, part) for part in parts)
    assert decompress(codec, joined) == b"".join(parts)
    assert decompress(codec, joined, max_bytes=len(b"".join(parts))) == b"".join(parts)
    with pytest.raises(BatchTooLarge):
        decompress(codec, joined, max_bytes=len(b"".join(parts)) - 1)
    with pytest.raises(CorruptBatch, match="lie behind"):
        decompress(codec, joined, is_single=True)
    with pytest.raises(CorruptBatch, match="early"):
        decompress(codec, joined[:-3])


def test_very_many_tiny_streams_cost_no_more_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stream does not want is copied: of all that follows, that would be a square of their number."""
    make = zlib.decompressobj

    def copied_bytes(count: int) -> int:
        copied = 0

        class Counting:
            def __init__(self, bits: int) -> None:
                self._own = make(bits)

            def decompress(self, data: memoryview, most: int) -> bytes:
                found = self._own.decompress(data, most)
                nonlocal copied
                copied += len(self._own.unused_data)
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(self._own, name)

        monkeypatch.setattr(zlib, "decompressobj", Counting)
        assert decompress(Codec.GZIP, compress(Codec.GZIP, b"") * count) == b""
        return copied

    assert copied_bytes(4000) < 2.2 * copied_bytes(2000)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (Codec.GZIP, gzip.compress(ZEROS)),
        (Codec.LZ4, lz4.frame.compress(ZEROS)),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(ZEROS)),
        (Codec.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS)),
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(ZEROS))),
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20)),
    ],
)
def test_a_bomb_is_refused(codec: Codec, bomb: bytes) -> None:
    with pytest.raises(BatchTooLarge):
        decompress(codec, bomb, max_bytes=1_000_000)
    if len(bomb) * 1100 < len(ZEROS) and codec != Codec.SNAPPY:
        with pytest.raises(BatchTooLarge):
            decompress(codec, bomb)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CODECS[1:]), st.binary(max_size=200), st.data())
def test_damaged_compressed_data_is_refused_or_bounded(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    compressed = bytearray(compress(codec, data * 5))
    for _ in range(draw.draw(st.integers(1, 4))):
        compressed[draw.draw(st.integers(0, len(compressed) - 1))] = draw.draw(st.integers(0, 255))
    cut = compressed[: draw.draw(st.integers(0, len(compressed)))]
    try:
        found = decompress(codec, cut, max_bytes=5000)
    except CorruptBatch:
        return
    assert len(found) <= 5000


@settings(max_examples=400, deadline=None)
@given(rows, st.data())
def test_changed_bytes_are_refused_by_both_tiers_alike(given_rows: Rows, data: st.DataObject) -> None:
    """With the checksum made right again the decoders see lying counts, lengths and varints: they agree and never over-read."""
    batch = batch_of(given_rows)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal(batch, position=0, size_bytes=len(batch))
    try:
        chunk = decode_both(batch)
    except CorruptBatch:
        return
    if not parse_header(batch).is_control:
        assert as_records(chunk) == decode_records(batch)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_any_records_section_is_refused_or_decoded(section: bytes, count: int, last_delta: int) -> None:
    batch = bytearray(batch_of(SOME)[:61]) + section
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, last_delta)
    struct.pack_into(">i", batch, 57, count)
    seal(batch, position=0, size_bytes=len(batch))
    try:
        assert len(decode_both(batch)) == count
    except CorruptBatch:
        return


@settings(max_examples=150, deadline=None)
@given(rows, st.binary(max_size=60), st.integers(1, 6))
def test_keys_are_scanned_like_records_are_decoded(given_rows: Rows, garbage: bytes, count: int) -> None:
    section = bytes(batch_of(given_rows)[61:])
    kernels = kernel_tier().kernels(0)
    assert kernels is not None
    for scan in (_scan, partial(_scan_compiled, kernels)):
        found = scan(section, len(given_rows))
        assert found.keys == [row[0] for row in given_rows]
        assert found.deltas == list(range(len(given_rows)))
        assert found.is_tombstone == [row[1] is None for row in given_rows]
        assert b"".join(section[a:b] for a, b in zip(found.starts, found.ends, strict=True)) == section
        try:
            assert len(scan(garbage, count).keys) == count
        except CorruptBatch:
            continue


def test_every_flipped_bit_is_seen() -> None:
    batch = bytes(batch_of(SOME, base_offset=3))
    for position in range(8, len(batch)):
        if 12 <= position < 16:
            continue
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptBatch):
                decode_records(damaged)


def test_every_cut_is_left_out_or_refused() -> None:
    batch = bytes(batch_of(SOME))
    for size in range(len(batch)):
        with pytest.raises(CorruptBatch):
            decode_records(batch[:size])
        chunk = decode_both(batch + batch_of(SOME, base_offset=3)[:size])
        assert as_records(chunk) == expected_records(SOME)
        assert chunk.next_offset == 3


def test_another_magic_is_named() -> None:
    batch = batch_of(SOME)
    batch[16] = 1
    with pytest.raises(UnsupportedMagic, match="found magic 1"):
        parse_header(batch)


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_allocated() -> None:
    batch = batch_of(SOME)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">i", batch, 23, 2**31 - 1)
    seal(batch, position=0, size_bytes=len(batch))
    with pytest.raises(CorruptBatch, match="cannot fit"):
        decode_records(batch)
    with pytest.raises(CorruptBatch, match="cannot fit"):
        decode_both(batch)


def test_stamping_keeps_the_checksum_and_append_time_renews_it() -> None:
    batch = batch_of(SOME)
    stamp(batch, 42, 7)
    header = parse_header(batch)
    check_crc(batch, header)
    assert (header.base_offset, header.partition_leader_epoch) == (42, 7)
    head = batch[:HEADER_BYTES]
    stamp_append_time(head, batch[HEADER_BYTES:], 1_800_000_000_000)
    batch[:HEADER_BYTES] = head
    check_crc(batch, parse_header(batch))
    assert [r.timestamp_ms for r in decode_records(batch)] == [1_800_000_000_000] * 3
    assert decode_both(batch).timestamps_ms.tolist() == [1_800_000_000_000] * 3


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4), st.integers(0, 400))
def test_what_is_read_of_a_header_alone_is_what_parsing_says(offsets: list[int], cut_bytes: int) -> None:
    batches = [bytearray(batch_of(SOME, base_offset=offset)) for offset in offsets]
    for epoch, batch in enumerate(batches):
        stamp(batch, offsets[epoch], epoch)
        stamp_producer(batch, 7, epoch, 9)
        assert producer_of(batch) == (7, epoch, 9)
    data = b"".join(batches)
    data = data[: max(0, len(data) - cut_bytes)]
    whole = list(iter_batches(data))
    for position, header in whole:
        assert size_at(data, position) == header.size_bytes
        assert place_and_crc_at(data, position) == (header.base_offset, header.size_bytes, header.crc)
    last = whole[-1][1] if whole else None
    assert end_of_batches(data) == (None if last is None else (last.last_offset + 1, last.partition_leader_epoch))
    assert size_at(data, len(data)) is None


def test_decoding_begins_at_the_offset_asked_for() -> None:
    data = bytes(batch_of(SOME, base_offset=10) + batch_of(SOME, base_offset=13))
    for is_compiled in (True, False):
        with tier(is_compiled):
            chunk = decoding.decode_fetch("t", 0, data, from_offset=12)
            assert chunk.offsets.tolist() == [12, 13, 14, 15]
            assert chunk.next_offset == 16
            empty = decoding.decode_fetch("t", 0, data, from_offset=99)
            assert (len(empty), empty.next_offset) == (0, 99)


def test_a_chunk_over_mixed_codecs() -> None:
    data = b"".join(bytes(batch_of(SOME, codec=codec, base_offset=3 * codec)) for codec in CODECS)
    assert as_records(decode_both(data)) == [r for codec in CODECS for r in expected_records(SOME, 3 * codec)]
    with pytest.raises(BatchTooLarge):
        decode_both(data, max_decompressed_bytes=200)


def marker(producer_id: int, offset: int, *, is_commit: bool) -> bytes:
    built = build_marker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=4, is_commit=is_commit, timestamp_ms=1)
    stamp(built, offset, 0)
    return bytes(built)


def test_markers_say_what_they_were_built_with() -> None:
    assert parse_marker(marker(1, 0, is_commit=True)) == Marker(True, 4)
    assert parse_marker(marker(1, 0, is_commit=False)) == Marker(False, 4)
    with pytest.raises(CorruptBatch, match="control batch"):
        parse_marker(batch_of(SOME))


def test_read_committed_leaves_out_aborted_transactions_and_markers() -> None:
    def data(producer_id: int, offset: int) -> bytes:
        return bytes(batch_of(SOME[:1], base_offset=offset, producer_id=producer_id, producer_epoch=0, is_transactional=True))

    log = b"".join(
        [
            data(1, 0),
            data(2, 1),
            marker(1, 2, is_commit=False),
            data(1, 3),
            marker(2, 4, is_commit=True),
            marker(1, 5, is_commit=True),
            bytes(batch_of(SOME[:1], base_offset=6)),
            data(2, 7),
            marker(2, 8, is_commit=False),
        ]
    )
    committed = decode_both(log, aborted=[(2, 7), (1, 0)])
    assert committed.offsets.tolist() == [1, 3, 6]
    assert committed.next_offset == 9
    assert decode_both(log).offsets.tolist() == [0, 1, 3, 6, 7]


def test_batches_are_walked_without_their_records() -> None:
    data = batch_of(SOME) + batch_of(SOME, base_offset=3)
    assert [(position > 0, header.base_offset) for position, header in iter_batches(data)] == [(False, 0), (True, 3)]


def test_kernels_load_in_the_background_once_it_pays() -> None:
    fresh = KernelTier()
    assert fresh.kernels(10) is None
    assert fresh.load()
    assert fresh.kernels(10) is not None


def test_spans_outside_of_the_buffer_are_refused() -> None:
    from logflume.log import InvalidInput

    chunk = Chunk.from_columns("t", [b"key"], [b"value"], [0])
    chunk.value_sizes = np.array([1000], np.int32)
    with pytest.raises(InvalidInput, match="points at bytes"):
        columns.encode_rows(chunk)
