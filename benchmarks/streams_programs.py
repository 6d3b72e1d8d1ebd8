"""Topologies T1 to T4 on one core, without the kernels and with them: stores in memory, without the log around it.

`python -m benchmarks.streams_programs`; with the log, transactions and disks see `benchmarks.streams`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

import logflume.streams as lf
from benchmarks._report import Figure, main
from logflume.log.records import Chunk
from logflume.streams import col
from logflume.streams.kernels import kernel_loader
from logflume.streams.state.store import Store

RECORDS = 400_000
CHUNK = 20_000
REPEATS = 3


class Click(msgspec.Struct):
    id: int
    user: str
    page: str
    ms: int
    price: float
    ok: bool


class User(msgspec.Struct):
    name: str
    country: str


class Sink:
    """Counts outputs and problems."""

    def __init__(self) -> None:
        self.records = 0

    def send(self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], **more: Any) -> None:
        self.records += len(keys)

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.records += len(records)

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        assert reason == "late", (reason, cause)


def clicks(users: int) -> list[Chunk]:
    """The peers' input: 75 bytes of JSON, 1 ms apart, 1 % set back by up to 5 s."""
    random_source = random.Random(1)
    chunks = []
    for start in range(0, RECORDS, CHUNK):
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        times = []
        for i in range(start, start + CHUNK):
            user = f"u{random_source.randrange(users):05}"
            ok = "true" if random_source.random() < 0.9 else "false"
            page, ms, price = random_source.randrange(100), random_source.randrange(1, 501), random_source.random() * 50
            keys.append(user.encode())
            values.append(f'{{"id":{i},"user":"{user}","page":"p{page}","ms":{ms},"price":{price:.2f},"ok":{ok}}}'.encode())
            times.append(1_700_000_000_000 + i - (random_source.randrange(5000) if random_source.random() < 0.01 else 0))
        chunks.append(Chunk.from_columns("clicks", keys, values, np.array(times, dtype=np.int64), partition=0))
    return chunks


def t1() -> lf.App:
    app = lf.App("t1")
    passing = app.stream("clicks", Click).filter(col.ok & (col.ms > 100))
    passing.select(col.id, col.user, col.page, price=col.price * 1.2).to("out")
    return app


def t2() -> lf.App:
    app = lf.App("t2")
    app.stream("clicks", Click).group_by_key().count().to("out")
    return app


def t3() -> lf.App:
    app = lf.App("t3")
    windowed = app.stream("clicks", Click).group_by_key().window(lf.tumbling(seconds=10, grace=lf.seconds(10)))
    windowed.aggregate(n=lf.count(), total=lf.sum(col.price)).to("out")
    return app


def t4() -> lf.App:
    app = lf.App("t4")
    app.stream("clicks", Click).join(app.table("users", User)).to("out")
    return app


def run(app: lf.App, chunks: list[Chunk], users: int, *, is_compiled: bool = False) -> float:
    """Return CPU seconds per million records, the least of a few runs; a task commit after each chunk."""
    program = app.plan().subtopologies[0].program
    if is_compiled:
        kernel_loader().load()
    else:
        kernel_loader().stay_out()
    seconds = []
    for _ in range(REPEATS):
        stores = {spec.name: Store(spec) for spec in program.stores}
        sink = Sink()
        task = program.bind(stores, sink, sink)
        if "users" in program.sources:
            rows: list[bytes | None] = [b'{"name":"n%d","country":"DE"}' % i for i in range(users)]
            keys: list[bytes | None] = [b"u%05d" % i for i in range(users)]
            table = Chunk.from_columns("users", keys, rows, np.zeros(users, dtype=np.int64), partition=0)
            task.process("users", table, 0, users)
        started = time.process_time()
        for chunk in chunks:
            task.process("clicks", chunk, 0, len(chunk))
            task.flush()
            for store in stores.values():
                store.committed()
        seconds.append(time.process_time() - started)
        assert sink.records > 0
    return min(seconds) / (len(chunks) * CHUNK) * 1e6


def measure_kernels() -> Iterator[Figure]:
    """Records a second of each topology, without the kernels and with them."""
    few, many = clicks(10_000), clicks(100_000)
    for is_compiled in (False, True):
        for name, app, chunks, users, budget, compiled_budget in (
            ("T1 filter, project", t1(), few, 10_000, 500_000, 2_500_000),
            ("T2 count, 10 k keys", t2(), few, 10_000, 400_000, 2_500_000),
            ("T2b count, 100 k keys", t2(), many, 100_000, None, None),
            ("T3 tumbling count and sum, 10 k keys", t3(), few, 10_000, 250_000, 800_000),
            ("T4 stream-table join, 100 k keys", t4(), many, 100_000, 250_000, 1_500_000),
        ):
            label = f"{name} ({'with' if is_compiled else 'without'} kernels, no log)"
            yield Figure(
                label,
                1e6 / run(app, chunks, users, is_compiled=is_compiled),
                "records/s",
                compiled_budget if is_compiled else budget,
            )


if __name__ == "__main__":
    main(measure_kernels)
