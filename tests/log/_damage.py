"""Logs of every kind for tests of damage: many small segments, transactions, compaction; and a bit flipped anywhere in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from logflume.log.batch import Codec, decode_records, encode_batch, iter_batches, visible_batches
from logflume.log.storage import Disk, LogConfig, PartitionLog, run_compaction

KINDS = ("plain", "compacted", "transactional")
SEGMENT_BYTES = 900


class Read(NamedTuple):
    """A record as any client tells it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def config_of(kind: str) -> LogConfig:
    return LogConfig(
        segment_bytes=SEGMENT_BYTES,
        index_interval_bytes=300,
        cleanup_policy="compact" if kind == "compacted" else "delete",
        min_cleanable_dirty_ratio=0.0,
        retention_ms=-1,
    )


def topic_configs(kind: str) -> dict[str, str]:
    """The same as topic configs."""
    policy = "compact" if kind == "compacted" else "delete"
    return {
        "segment.bytes": str(SEGMENT_BYTES),
        "index.interval.bytes": "300",
        "cleanup.policy": policy,
        "retention.ms": "-1",
        "min.cleanable.dirty.ratio": "1.0",
    }


def fill(log: PartitionLog, kind: str, disk: Disk, *, now_ms: int, seed: int = 0) -> None:
    """Append 40 batches of one to three records with headers; some in transactions, some of those aborted; compact some."""
    rng = random.Random(seed)
    sequences = dict.fromkeys((7, 8), 0)
    for i in range(40):
        count = rng.randint(1, 3)
        producer = rng.choice((7, 8)) if kind == "transactional" else -1
        extra = {}
        if producer >= 0:
            extra = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += count
        batch = encode_batch(
            [b"key %d" % rng.randrange(12) for _ in range(count)],
            [b"value %d.%d of %d" % (i, n, seed) for n in range(count)],
            [now_ms + 10 * i + n for n in range(count)],
            headers=[[("h", b"%d" % i)] for _ in range(count)],
            codec=rng.choice((Codec.NONE, Codec.LZ4)),
            is_transactional=producer >= 0,
            **extra,
        )
        log.append(batch, leader_epoch=0, now_ms=now_ms)
        if producer >= 0 and rng.random() < 0.7:
            end(log, producer, is_commit=rng.random() < 0.5, now_ms=now_ms)
        if kind == "compacted" and i == 25:
            log.flush()
            log.config = config_of(kind)
            plan = log.compaction_plan(now_ms, name="a")
            assert plan is not None
            assert log.finish_compaction(run_compaction(plan, disk=disk)) > 0
    for producer in log.open_transactions():
        end(log, producer, is_commit=False, now_ms=now_ms)
    log.flush()


def end(log: PartitionLog, producer: int, *, is_commit: bool, now_ms: int) -> None:
    if producer in log.open_transactions():
        log.append_marker(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit, leader_epoch=0, now_ms=now_ms
        )


def committed(log: PartitionLog) -> list[Read]:
    """What a read_committed reader gets of a sound log."""
    records: list[Read] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        data = log.read(offset, 10_000, up_to_offset=log.last_stable_offset).read()
        if not data:
            break
        batches = list(iter_batches(data))
        end_offset = batches[-1][1].last_offset + 1
        aborted = [(each.producer_id, each.first_offset) for each in log.aborted_transactions(offset, end_offset)]
        for position, _ in visible_batches(data, batches, aborted):
            for record in decode_records(data, position):
                if record.offset >= offset:
                    headers = tuple((name, value) for name, value in record.headers)
                    records.append(Read(record.offset, record.timestamp_ms, record.key, record.value, headers))
        offset = end_offset
    return records


def flips(names: dict[str, int], rng: random.Random, count: int) -> Iterator[tuple[str, int, int]]:
    """Yield so many (file, position, bit): every second in a segment, the others in any file that is not empty."""
    segments = [name for name, size in names.items() if name.endswith(".log") and size]
    others = [name for name, size in names.items() if not name.endswith(".log") and size]
    for i in range(count):
        name = rng.choice(segments if i % 2 else others)
        yield name, rng.randrange(names[name]), rng.randrange(8)
