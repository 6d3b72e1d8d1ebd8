"""A query run by the test driver over batches, and the same rows as chunks, for programs without a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.streams.testing import TopologyTestDriver, WindowedKey

from . import batch
from .events import Events
from .queries import QUERIES

BATCH = 5_000
DEPTH = 4
"""Task commits until all is through: one for each sub-topology."""
Input = tuple[str, list[tuple[Any, Any, int]]]


def inputs(events: Events) -> Iterator[Input]:
    """Yield runs of (key, row, time) of one topic each, in order of time: what came is there before what names it."""
    bids = [(None, bid, bid.at) for bid in events.bids]
    persons = [(person.id, person, person.at) for person in events.persons]
    auctions = [(auction.id, auction, auction.at) for auction in events.auctions]
    last_ms = max(bid.at for bid in events.bids)
    step_ms = BATCH * 10
    for low in range(events.persons[0].at, last_ms + 1, step_ms):
        for topic, rows in (("persons", persons), ("auctions", auctions), ("bids", bids)):
            part = [row for row in rows if low <= row[2] < low + step_ms]
            if part:
                yield topic, part


def run(name: str, events: Events) -> Any:
    """Return a query's result as `batch` gives it."""
    app = lf.App("nexmark")
    made = QUERIES[name](app)
    is_table = isinstance(made, lf.Table)
    (made.to_stream() if is_table else made).to("out")
    driver = TopologyTestDriver(app, commits_each_record=False)
    for topic, rows in inputs(events):
        if topic in driver.inputs:
            driver.input(topic).send_together(rows)
    for _ in range(DEPTH):
        driver.commit()
    records = driver.output("out").read()
    if not is_table:
        return [record.value for record in records]
    found: dict[Any, Any] = {}
    for record in records:
        key = key_fields(record.key)
        if record.value is None:
            found.pop(key, None)
        else:
            found[key] = record.value
    return found


def key_fields(key: Any) -> tuple[Any, ...]:
    if isinstance(key, WindowedKey):
        return (*key_fields(key.key), key.start_ms, key.end_ms)
    return tuple(key.values()) if isinstance(key, dict) else (key,)


def expected(name: str, events: Events) -> Any:
    return getattr(batch, name)(events)


def is_equal(found: Any, wanted: Any) -> bool:
    """Tell whether two results are one; rows of a stream may come in any order."""
    return bool(found == wanted if isinstance(wanted, dict) else sorted(map(_text, found)) == sorted(map(_text, wanted)))


def _text(row: Any) -> str:
    fields = row if isinstance(row, dict) else {name: getattr(row, name) for name in row.__struct_fields__}
    return repr(sorted(fields.items()))


def chunks(events: Events) -> list[tuple[str, Chunk]]:
    """Return the inputs as records of topics."""
    encode = msgspec.json.encode
    found = []
    for topic, rows in inputs(events):
        keys = [None if key is None else key.to_bytes(8, "big", signed=True) for key, _, _ in rows]  # as `key=int` is read
        found.append((topic, Chunk.from_columns(topic, keys, [encode(row) for _, row, _ in rows], [time for _, _, time in rows])))
    return found
