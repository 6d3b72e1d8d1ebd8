"""Batches to columns, Arrow and objects, and back, on one core: records of 100 bytes, 1,000 a batch.

Run: python -m benchmarks.batch_codec [decode|encode|check|peer] [--json]

Decoding takes a fetch of 100 batches, header walk and CRC included; encoding makes one batch of 1,000, header and CRC included.
Figures are the best of several rounds. The peer is aiokafka's compiled codec on the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks._report import Figure, main
from logflume.log.batch import Codec, encode_batch
from logflume.log.batch.columns import encode_rows, load_kernels
from logflume.log.batch.decoding import decode_fetch
from logflume.log.batch.encoding import encode_objects
from logflume.log.batch.header import HEADER_BYTES
from logflume.log.batch.walk import walk, walk_in_python
from logflume.log.broker.incoming import QUICK_RECORDS
from logflume.log.records import Chunk

BATCHES, ROWS = 100, 1000
KEYS: list[bytes | None] = [b"key-%06d" % i for i in range(ROWS)]
VALUES: list[bytes | None] = [(b'{"id":%d,"v":"' % i).ljust(81, b"x") + b'"}' for i in range(ROWS)]
TIMES = [1_700_000_000_000 + i for i in range(ROWS)]


def fetch_bytes(codec: int = Codec.NONE) -> bytes:
    """A fetch response's records: BATCHES batches of ROWS records."""
    batches = [encode_batch(KEYS, VALUES, TIMES, codec=codec, base_offset=i * ROWS) for i in range(BATCHES)]
    return b"".join(map(bytes, batches))


def rate(work: Callable[[], object], records: int, *, rounds: int = 7, seconds: float = 0.25) -> float:
    """Return millions of records a second of the best round."""
    work()
    best = float("inf")
    for _ in range(rounds):
        count, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            work()
            count += 1
        best = min(best, elapsed / count)
    return records / best / 1e6


def decode() -> Iterator[Figure]:
    """Fetches to columns, to Arrow, to Python objects."""
    assert load_kernels(), "the budgets are for the compiled tier, which needs numba"
    data, total = fetch_bytes(), BATCHES * ROWS

    def chunk() -> Chunk:
        return decode_fetch("t", 0, data, from_offset=0)

    def key_and_value_bytes() -> Any:
        decoded = chunk()
        return decoded.keys(), decoded.values()

    yield Figure("decode to columns", rate(chunk, total), "M/s", 20)
    yield Figure("decode to Arrow", rate(lambda: chunk().to_arrow(), total), "M/s", 8)
    yield Figure("decode to key and value bytes", rate(key_and_value_bytes, total), "M/s", 3)
    yield Figure("decode to record objects", rate(lambda: list(chunk().records()), total), "M/s")
    for codec in (Codec.LZ4, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP):
        compressed = fetch_bytes(codec)
        figure = rate(lambda data=compressed: decode_fetch("t", 0, data, from_offset=0), total, rounds=3)  # type: ignore[misc]
        yield Figure(f"decode to columns, {codec.name.lower()}", figure, "M/s")


def encode() -> Iterator[Figure]:
    """Columns and Python objects to batches."""
    assert load_kernels(), "the budgets are for the compiled tier, which needs numba"
    chunk = Chunk.from_columns("t", KEYS, VALUES, np.array(TIMES, np.int64))
    yield Figure("encode from columns", rate(lambda: encode_rows(chunk), ROWS), "M/s", 5)
    yield Figure("encode from Python objects", rate(lambda: encode_objects(KEYS, VALUES, TIMES), ROWS), "M/s", 2)
    for codec in (Codec.LZ4, Codec.ZSTD):
        figure = rate(lambda codec=codec: encode_rows(chunk, codec=codec), ROWS, rounds=3)  # type: ignore[misc]
        yield Figure(f"encode from columns, {codec.name.lower()}", figure, "M/s")


def peer() -> Iterator[Figure]:
    """The same by aiokafka, and by our plain tier (no numba)."""
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    batch = bytes(encode_batch(KEYS, VALUES, TIMES))

    def foreign_decode() -> object:
        read = DefaultRecordBatch(batch)
        assert read.validate_crc()
        return [(record.key, record.value) for record in read]

    def foreign_encode() -> object:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for i in range(ROWS):
            builder.append(i, TIMES[i], KEYS[i], VALUES[i], [])
        return builder.build()

    yield Figure("aiokafka: decode to key and value bytes", rate(foreign_decode, ROWS, rounds=3), "M/s")
    yield Figure("aiokafka: encode from Python objects", rate(foreign_encode, ROWS, rounds=3), "M/s")
    yield Figure("plain tier: encode from Python objects", rate(lambda: encode_batch(KEYS, VALUES, TIMES), ROWS, rounds=3), "M/s")


def check() -> Iterator[Figure]:
    """What a broker looks at in records before it appends them: compiled, and as it is where no compiler was at hand."""
    for size, what in ((81, "100 bytes"), (1, "20 bytes")):
        values: list[bytes | None] = [(value or b"")[:size] for value in VALUES]
        section = memoryview(encode_batch(KEYS, values, TIMES))[HEADER_BYTES:]
        if walk is not walk_in_python:
            compiled = rate(lambda section=section: walk(section, ROWS, TIMES[0]), ROWS, rounds=3)  # type: ignore[misc]
            yield Figure(f"check records of {what}, compiled", compiled, "M/s")
        plain = rate(lambda section=section: walk_in_python(section, ROWS, TIMES[0]), ROWS, rounds=3)  # type: ignore[misc]
        yield Figure(f"check records of {what}, in Python", plain, "M/s")
        yield Figure(f"the most of them at once in Python, {what}", QUICK_RECORDS / plain / 1000, "ms", 20, is_upper=True)


if __name__ == "__main__":
    main(decode, encode, check, peer)
