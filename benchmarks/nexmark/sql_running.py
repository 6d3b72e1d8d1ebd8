"""A script of `statements` run by the test driver over the same records, its queries one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logflume.log.records import Chunk
from logflume.log.schemas import serde
from logflume.sql import ast
from logflume.sql.binding.context import Context
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.definitions import apply_definition, new_query_id
from logflume.sql.parser import parse_script
from logflume.sql.planner import plan_create_as
from logflume.streams.testing import TopologyTestDriver
from logflume.streams.windows import bounds_of_key, key_suffix_bytes

from .events import Events
from .running import DEPTH, chunks
from .statements import QUERIES, SOURCES

Records = list[tuple[str, list[bytes | None], list[bytes | None], list[int]]]
"""Runs of records of one topic: keys, values, times."""


def run(name: str, events: Events) -> Any:
    """Return a script's result as `batch` gives it."""
    records: Records = [(topic, *_columns(chunk)) for topic, chunk in chunks(events)]
    context = Context(Catalog(), properties={"ksql.streams.cache.max.bytes.buffering": "0"})
    for _, statement in parse_script(SOURCES + QUERIES[name]):
        if not isinstance(statement, ast.CreateAs):
            context = replace(context, catalog=apply_definition(statement, context))
            continue
        planned = plan_create_as(statement, context, query_id=new_query_id(statement, context.catalog))
        assert planned.sink is not None
        driver = TopologyTestDriver(planned.topology, commits_each_record=False, goes_together=True)
        for topic, keys, values, times in records:
            if topic in {context.catalog.sources[source].topic for source in planned.plan.sources}:
                driver.process_together(topic, keys, values, times, [()] * len(keys))
        for _ in range(DEPTH):
            driver.commit()
        written = driver.output(planned.sink.topic).raw
        records.append((planned.sink.topic, [r[0] for r in written], [r[1] for r in written], [r[2] for r in written]))
        context = replace(context, catalog=context.catalog.with_query(planned.query).with_source(planned.sink))
    return _result(planned.sink, records[-1])


def _columns(chunk: Chunk) -> tuple[list[bytes | None], list[bytes | None], list[int]]:
    found = list(chunk.records())
    return [r.key for r in found], [r.value for r in found], [r.timestamp_ms for r in found]


def _result(sink: SourceInfo, records: tuple[str, list[bytes | None], list[bytes | None], list[int]]) -> Any:
    _, keys, values, _ = records
    decode = serde(sink.value_format, sink.value).decode
    rows = [None if value is None else _row(sink, decode(value)) for value in values]
    if not sink.is_table:
        return rows
    found: dict[Any, Any] = {}
    for data, row in zip(keys, rows, strict=True):
        assert data is not None
        key = _key(sink, data)
        if row is None:
            found.pop(key, None)
        else:
            found[key] = row
    return found


def _row(sink: SourceInfo, values: Any) -> dict[str, Any]:
    return {column.name.lower(): value for column, value in zip(sink.value, values, strict=True)}


def _key(sink: SourceInfo, data: bytes) -> tuple[Any, ...]:
    decode = serde(sink.key_format, sink.key).decode
    if sink.window is None:
        return tuple(decode(data) or ())
    kind = sink.window.of_key()
    return (*(decode(data[: -key_suffix_bytes(kind)]) or ()), *bounds_of_key(kind, data))
