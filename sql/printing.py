"""PRINT: the records of a topic as they are, whatever is registered of it: from now on, or from its beginning, then followed."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

from logflume.log import LogflumeError, TopicPartition, near_matches
from logflume.log.interfaces import Consumer, Log
from logflume.log.schemas import BIGINT, INTEGER, STRING, Column, SchemaReader

from . import ast
from .errors import StatementError
from .results import BUFFERED_ROWS_MAX, PushQuery, PushRow, watch_function

COLUMNS = (
    Column("ROWTIME", BIGINT),
    Column("PARTITION", INTEGER),
    Column("OFFSET", BIGINT),
    Column("KEY", STRING),
    Column("VALUE", STRING),
)
_POLL_S = 0.2
_STOP_TIMEOUT_S = 10.0


def start_print(s: ast.Print, log: Log, registry: str) -> PushQuery:
    """Start to read a topic, of the name that `find_topic` gave; where it starts is fixed on return."""
    admin = log.admin()
    partitions = [TopicPartition(s.topic, n) for n in range(admin.describe_topics([s.topic])[s.topic].partitions)]
    starts = admin.start_offsets(partitions) if s.from_beginning else admin.end_offsets(partitions)
    consumer = log.consumer()
    consumer.assign(starts)
    for partition, offset in starts.items():
        consumer.seek(partition, offset)
    rows: queue.Queue[PushRow] = queue.Queue(BUFFERED_ROWS_MAX)
    over, failed = threading.Event(), list[BaseException]()
    put = watch_function(rows, over.is_set)

    def read() -> None:
        try:
            for number, (row, timestamp_ms) in enumerate(_rows(consumer, SchemaReader(registry), over)):
                if number % s.interval == 0:
                    put(None, row, timestamp_ms)
        except LogflumeError as error:
            failed.append(error)
        finally:
            consumer.close()

    thread = threading.Thread(target=read, name="sql-print", daemon=True)

    def stop() -> None:
        over.set()
        thread.join(_STOP_TIMEOUT_S)

    thread.start()
    return PushQuery("PRINT", COLUMNS, rows, limit=s.limit, check=lambda: failed[0] if failed else None, stop=stop)


def find_topic(name: str, log: Log, span: ast.Span) -> str:
    """Return the topic of a name; one that was written without quotes may differ in case.

    Raises:
        StatementError: there is none, with near matches.
    """
    known = log.admin().list_topics(include_internal=True)
    if name in known:
        return name
    same = [topic for topic in known if topic.upper() == name.upper()]
    if len(same) == 1:
        return same[0]
    near = same or near_matches(name, known)
    hint = f" Did you mean {' or '.join(near)}?" if near else " SHOW TOPICS lists what there is."
    raise StatementError(f"Could not find topic '{name}', or the SQL user does not have permissions to list it.{hint}", span)


def _rows(consumer: Consumer, schemas: SchemaReader, over: threading.Event) -> Iterator[tuple[tuple[Any, ...], int]]:
    while not over.is_set():
        for chunk in consumer.poll(timeout_s=_POLL_S):
            for record in chunk.records():
                key, value = _shown(record.key, schemas), _shown(record.value, schemas)
                yield (record.timestamp_ms, record.partition, record.offset, key, value), record.timestamp_ms


def _shown(data: bytes | None, schemas: SchemaReader) -> str | None:
    """Return bytes as text: by their registered schema where they name one, as UTF-8, as a number of 4 or 8 bytes, or as hex."""
    if data is None:
        return None
    if data[:1] == b"\0" and len(data) > 5:
        try:
            return json.dumps(schemas.read(data), ensure_ascii=False)
        except LogflumeError:  # no schema of this registry: bytes that only look like it
            pass
    try:
        text = data.decode()
        if all(c.isprintable() or c in "\t\r\n" for c in text):
            return text
    except UnicodeDecodeError:
        pass
    return str(int.from_bytes(data, "big", signed=True)) if len(data) in (4, 8) else f"0x{data.hex()}"
