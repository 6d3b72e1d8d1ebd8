"""Aggregates with the kernels in an engine on a real log: results, changelogs and stores, also after the disk was lost."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import connect
from logflume.log.interfaces import Log
from logflume.log.records import Chunk, TopicPartition
from logflume.log.schemas import BIGINT, DOUBLE, Column
from logflume.streams import col
from logflume.streams.graph import WINDOW_START
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.state import EntryCodec, Store

numba = pytest.importorskip("numba", reason="the kernels need numba")

PARTITIONS, BLOCK = 2, 3_000
Model = dict[bytes, tuple[int, float]]


class Event(msgspec.Struct):
    user: str
    price: float


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with connect(str(tmp_path / "data")) as opened:
        opened.admin().ensure_topic("events", partitions=PARTITIONS)
        yield opened


def send(log: Log, first: int, model: Model) -> None:
    """Send a block of events, some of which only the exact decoder can read, and count them into the model."""
    rng, producer = random.Random(first), log.producer()
    users = [f"u{rng.randrange(40)}" for _ in range(BLOCK)]
    prices = [rng.randrange(100) / 4 for _ in range(BLOCK)]
    texts = [f'"{user}"' if i % 97 else '"\\u0041"' for i, user in enumerate(users)]
    values: list[bytes | None] = [
        f'{{"user":{text},"price":{price}}}'.encode() for text, price in zip(texts, prices, strict=True)
    ]
    times = [20 * (first + i) for i in range(BLOCK)]
    keys = [user.encode() for user in users]
    producer.send_chunk("events", Chunk.from_columns("events", keys, values, times))
    producer.flush()
    producer.close()
    for key, price, at in zip(keys, prices, times, strict=True):
        window = key + WINDOW_START.pack(at - at % 10_000)
        n, total = model.get(window, (0, 0.0))
        model[window] = (n + 1, total + price)


def run(log: Log, state_dir: Path, wanted: Model) -> Model:
    """Run until the store answers what is wanted, at most 60 s; return what it answers then."""
    app = lf.App("kernels", log=log)
    grouped = app.stream("events", Event, key=str).filter(col.user != "nobody").group_by_key()
    windows = grouped.window(lf.tumbling(seconds=10, grace=lf.hours(1)))
    windows.aggregate(n=lf.count(), total=lf.sum(col.price), name="sums").to("out")
    engine = Engine(app.plan(), log, EngineOptions(state_dir=state_dir, commit_interval_ms=30))
    found: Model = {}
    engine.start()
    try:
        deadline = time.monotonic() + 60
        while found != wanted and time.monotonic() < deadline:
            assert not engine.has_ended
            found = {key: entry.state for key, entry in engine.store("sums").range() if entry.state is not None}
            time.sleep(0.05)
    finally:
        engine.stop()
    return found


def last_values(log: Log, topic: str) -> dict[bytes, bytes]:
    """Return the last committed value of each key."""
    consumer = log.consumer(read_committed=True)
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    ends = log.admin().end_offsets(partitions, read_committed=True)
    consumer.assign(partitions)
    rows: dict[bytes, bytes] = {}
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=0.2):
            rows |= {k: v for k, v in zip(chunk.keys(), chunk.values(), strict=True) if k is not None and v is not None}
    consumer.close()
    return rows


def test_results_and_changelogs_are_right_and_survive_the_loss_of_the_disk(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernel_loader().load()
    taken_over: list[Store] = []
    take_over = Store.use_columns

    def note(store: Store, *args: Any, **more: Any) -> Any:
        taken_over.append(store)
        return take_over(store, *args, **more)

    monkeypatch.setattr(Store, "use_columns", note)
    model: Model = {}
    for first in (0, BLOCK, 2 * BLOCK):
        send(log, first, model)
        assert run(log, tmp_path / "state", model) == model
        assert last_values(log, "out") == {k: msgspec.json.encode({"n": n, "total": total}) for k, (n, total) in model.items()}
        if first == BLOCK:
            shutil.rmtree(tmp_path / "state")
    assert len(taken_over) == 3 * PARTITIONS
    decode = EntryCodec((Column("n", BIGINT), Column("total", DOUBLE))).decode
    assert {key: decode(value).state for key, value in last_values(log, "kernels-sums-changelog").items()} == model
