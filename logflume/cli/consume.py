"""`logflume consume`: read records of a topic, from the beginning unless told otherwise."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, seconds, text_of
from logflume.cli.places import PLACES, Offsets, offsets_at
from logflume.log import InvalidInput, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from logflume.log import Admin, Consumer, Log, Record

app = make_app("")


Headers = Sequence[tuple[str, bytes | None]]
Show = Callable[[bytes | None, Headers, str], object]
"""How the key or the value of a record is shown: its bytes, the record's headers, "key" or "value"."""


@app.command()
def consume(
    topic: str,
    from_: Annotated[str, typer.Option("--from", metavar="WHERE", help=f"{PLACES}.")] = "beginning",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more at the end; else stop there.")] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", help="Wait for more, and stop once S seconds brought none.", callback=seconds),
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only this partition; may be repeated.")] = None,
    group: Annotated[str | None, typer.Option(help="Read as a member of this consumer group and commit offsets.")] = None,
    uncommitted: Annotated[bool, typer.Option("--uncommitted", help="Records of open and aborted transactions too.")] = False,
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Show what was written with a registered schema (Avro, Protobuf, JSON Schema) decoded."),
    ] = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Print records, one per line; says on stderr where it starts and how many it read.

    Example: logflume consume flights --from -5 --json --bootstrap 127.0.0.1:9092

    Example: logflume consume orders --registry http://127.0.0.1:8081
    """
    if follow and timeout_s is not None:
        raise InvalidInput("give either --follow, which never ends, or --timeout, not both")
    show = plain if registry is None else registered_reader(registry)
    patience_s = math.inf if follow else timeout_s or 0.0
    with open_log(data, bootstrap) as log:
        count = 0
        for record in read(log, topic, from_, partition, group, patience_s, not uncommitted, limit):
            print(json_line(record, show) if as_json else text_line(record, show), flush=patience_s > 0)
            count += 1
    print(f"{count} record{'' if count == 1 else 's'}", file=sys.stderr)


def read(
    log: Log,
    topic: str,
    start: str,
    only: list[int] | None,
    group: str | None,
    patience_s: float,
    committed: bool,
    limit: int | None,
) -> Iterator[Record]:
    """Yield records up to the end offsets of this moment, then what comes until `patience_s` brought none; at most `limit`.

    As a group it commits what was taken, that is the records after which the next one was asked for, however it ends.
    """
    admin = log.admin()
    count = admin.describe_topics([topic])[topic].partitions
    partitions = [TopicPartition(topic, p) for p in (only if only else range(count))]
    for tp in partitions:
        if tp.partition >= count:
            raise InvalidInput(f"topic {topic} has partitions 0 to {count - 1}, not {tp.partition}")
    consumer = log.consumer(group_id=group, read_committed=committed)
    taken: dict[TopicPartition, OffsetAndMetadata] = {}
    left = sys.maxsize if limit is None else limit
    try:
        ends = admin.end_offsets(partitions, read_committed=committed)
        if group:
            consumer.subscribe([topic])
            print(f"reading {topic} as group {group}, from its committed offsets", file=sys.stderr)
        else:
            first = admin.start_offsets(partitions)
            places = offsets_at(start, first, ends, admin, option="--from")
            if start.startswith("-") and places != ends:
                places = last_records(consumer, admin, first, ends, -int(start), committed=committed)
            consumer.assign(partitions)
            for tp, offset in places.items():
                consumer.seek(tp, max(offset, first[tp]))
            print(f"reading {topic} from {start}", file=sys.stderr)
        idle_since = time.monotonic()
        while True:
            chunks = consumer.poll(timeout_s=0.5)
            for chunk in chunks:
                for record in chunk.records():
                    tp = TopicPartition(topic, record.partition)
                    if patience_s or group or record.offset < ends[tp]:
                        yield record
                        taken[tp] = OffsetAndMetadata(record.offset + 1)
                        left -= 1
                        if not left:
                            return
            if group and chunks:
                consumer.commit()
                taken = {}
            if chunks:
                idle_since = time.monotonic()
            held = consumer.assignment() if group else partitions
            wait_s = patience_s if held else max(patience_s, 30.0)
            if time.monotonic() - idle_since >= wait_s:
                if all(consumer.position(tp) >= ends.get(tp, 0) for tp in held):
                    return
                if not chunks:
                    ends = lowered(ends, admin, committed=committed)
    finally:
        try:
            if group and taken:
                consumer.commit(taken)
        finally:
            consumer.close()


def lowered(ends: Offsets, admin: Admin, *, committed: bool) -> Offsets:
    """Return the ends, lower where the log has lost records since: an end that is gone would be waited for without end."""
    now = admin.end_offsets(list(ends), read_committed=committed)
    return {tp: min(end, now[tp]) for tp, end in ends.items()}


def last_records(consumer: Consumer, admin: Admin, starts: Offsets, ends: Offsets, count: int, *, committed: bool) -> Offsets:
    """Return where the last `count` records of each partition begin: a transaction's marker, and what compaction took, is none.

    Looks back eight times as far wherever there were too few.
    """
    found: Offsets = {}
    reach = count
    while left := [tp for tp in starts if tp not in found]:
        first = {tp: max(starts[tp], ends[tp] - reach) for tp in left}
        seen = {tp: deque[int](maxlen=count) for tp in left}
        consumer.assign(left)
        for tp, offset in first.items():
            consumer.seek(tp, offset)
        while any(consumer.position(tp) < ends[tp] for tp in left):
            chunks = consumer.poll(timeout_s=0.5)
            if not chunks:
                ends = lowered(ends, admin, committed=committed)
            for chunk in chunks:
                tp = TopicPartition(chunk.topic, chunk.partition)
                seen[tp].extend(offset for offset in chunk.offsets.tolist() if offset < ends[tp])
        for tp in left:
            if len(seen[tp]) == count or first[tp] == starts[tp]:
                found[tp] = seen[tp][0] if seen[tp] else ends[tp]
        reach *= 8
    return found


def plain(data: bytes | None, headers: Headers, side: str) -> object:
    """Show bytes as text."""
    return text_of(data)


@dataclass(frozen=True, slots=True)
class WindowedKey:
    """A key as topologies and SQL write it for a window: the key, then the window's start, of a session end and start."""

    key: bytes
    start_ms: int
    end_ms: int | None = None

    def fields(self, show: Show) -> dict[str, object]:
        end = {} if self.end_ms is None else {"window_end": iso_time(self.end_ms)}
        return {"key": show(self.key, (), "key"), "window_start": iso_time(self.start_ms), **end}

    def text(self, show: Show) -> str:
        end = "" if self.end_ms is None else f"/{iso_time(self.end_ms)}"
        return f"{as_text(show(self.key, (), 'key'))}@{iso_time(self.start_ms)}{end}"


# Years 2000 to 2100: what times of windows are taken to be.
_WINDOW_MIN_MS, _WINDOW_MAX_MS = 946_684_800_000, 4_102_444_800_000


def windowed_key(data: bytes | None) -> WindowedKey | None:
    """Return a key that is no text, has no schema id and ends in the time of a window; None for any other.

    >>> windowed_key(b"UA" + (1795305600000).to_bytes(8, "big"))
    WindowedKey(key=b'UA', start_ms=1795305600000, end_ms=None)
    """
    if data is None or len(data) <= 8 or data[:1] == b"\x00" or b"\x00" not in data[-8:]:
        return None
    last, before = int.from_bytes(data[-8:], "big"), int.from_bytes(data[-16:-8], "big")
    if not _WINDOW_MIN_MS <= last < _WINDOW_MAX_MS:
        return None
    if len(data) > 16 and last <= before < _WINDOW_MAX_MS:
        return WindowedKey(data[:-16], last, before)
    return WindowedKey(data[:-8], last)


def iso_time(ms: int) -> str:
    """Return a time in ms as ISO 8601.

    >>> iso_time(1795305600000)
    '2026-11-22T00:00:00.000Z'
    """
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"


def registered_reader(registry: str) -> Show:
    """Return what shows keys and values by the schema that they were written with; other bytes as text, saying once why."""
    from logflume.log import DecodeError
    from logflume.log.schemas import SCHEMA_ID_HEADERS, SchemaReader

    reader = SchemaReader(registry)
    told: set[str] = set()

    def show(data: bytes | None, headers: Headers, side: str) -> object:
        if data is None or (data[:1] != b"\x00" and not any(name == SCHEMA_ID_HEADERS[side] for name, _ in headers)):
            return text_of(data)
        try:
            return reader.read(data, headers, side)
        except DecodeError as error:
            if str(error) not in told:
                told.add(str(error))
                print(f"shown as bytes: {error}", file=sys.stderr)
            return text_of(data)

    return show


def json_line(record: Record, show: Show) -> str:
    """Return a record as one JSON object."""
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": show(record.key, record.headers, "key"),
        "value": show(record.value, record.headers, "value"),
    }
    windowed = windowed_key(record.key)
    if windowed is not None:
        fields |= windowed.fields(show)
    if record.headers:
        fields["headers"] = [[name, text_of(value)] for name, value in record.headers]
    return json.dumps(fields)


def text_line(record: Record, show: Show) -> str:
    """Return a record as `partition:offset  key  value`."""
    windowed = windowed_key(record.key)
    key = as_text(show(record.key, record.headers, "key")) if windowed is None else windowed.text(show)
    value = as_text(show(record.value, record.headers, "value"))
    return f"{record.partition}:{record.offset}\t{'' if key is None else key}\t{'<null>' if value is None else value}"


def as_text(found: object) -> str | None:
    return found if found is None or isinstance(found, str) else json.dumps(found)
