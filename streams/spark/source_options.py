"""The options of `format("logflume")`, checked, and the offsets that they mean. Names go without their case, as Spark's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logflume.log import InvalidInput, Log, TopicPartition, UnknownName

from .values import VALUE_OPTIONS, ValueForm, value_form

OPTIONS = (
    "log",
    "topic",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "includeHeaders",
    "compression",
    *VALUE_OPTIONS,
)
RECORDS_PER_PARTITION = 1_000_000
EARLIEST, LATEST = -2, -1
"""Instead of an offset, as in Kafka's protocol."""
_KNOWN = frozenset(name.lower() for name in OPTIONS)
_OF_SPARK = frozenset(("path", "queryname", "checkpointlocation"))
"""What Spark keeps of a reader or a streaming query beside its options."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading begins or ends: an offset for all partitions (EARLIEST, LATEST), of each, or the first record of a time."""

    offset: int = LATEST
    each: Mapping[TopicPartition, int] | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked."""

    where: str
    topics: tuple[str, ...]
    start: Edge
    end: Edge
    records_per_partition: int
    records_per_trigger: int | None
    has_headers: bool
    compression: str
    given: Mapping[str, str]

    def value_form(self) -> ValueForm | None:
        """Return how values are read, None as bytes. Asks the registry; raises as `values.value_form`."""
        return value_form(self.given, self.topics)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options; raises InvalidInput or UnknownName for what cannot be right."""
    lower = {name.lower(): value for name, value in given.items()}
    for name in lower:
        if name not in _KNOWN | _OF_SPARK:
            raise UnknownName("option of the logflume data source", name, OPTIONS)
    for name in ("log", "topic"):
        if not lower.get(name):
            raise InvalidInput(f'the logflume data source needs option "{name}", for example .option("{name}", "flights")')
    topics = tuple(topic.strip() for topic in lower["topic"].split(",") if topic.strip())
    return SourceOptions(
        where=lower["log"],
        topics=topics,
        start=_edge(lower, "starting", topics, EARLIEST),
        end=_edge(lower, "ending", topics, LATEST),
        records_per_partition=_count(lower, "maxRecordsPerPartition") or RECORDS_PER_PARTITION,
        records_per_trigger=_count(lower, "maxOffsetsPerTrigger"),
        has_headers=_flag(lower, "includeHeaders"),
        compression=lower.get("compression", "none"),
        given=lower,
    )


def _count(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise InvalidInput(f'option "{name}" expects a whole number of at least {least}, found {text!r}')
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise InvalidInput(f'option "{name}" expects true or false, found {text!r}')
    return text == "true"


def _edge(options: Mapping[str, str], name: str, topics: Sequence[str], default: int) -> Edge:
    """Return what <name>Offsets or <name>Timestamp says."""
    words = {"earliest": EARLIEST, "latest": LATEST} if name == "starting" else {"latest": LATEST}
    time_ms, text = _count(options, f"{name}Timestamp", least=0), options.get(f"{name}offsets")
    if time_ms is not None and text is not None:
        raise InvalidInput(f'give option "{name}Offsets" or "{name}Timestamp", not both')
    if text is None or text.lower() in words:
        return Edge(default if text is None else words[text.lower()], None, time_ms)
    option = f'option "{name}Offsets"'
    try:
        value = json.loads(text)
        each = {TopicPartition(topic, int(p)): offset for topic, found in value.items() for p, offset in found.items()}
    except (ValueError, AttributeError) as error:
        expected = f'{", ".join(words)}, or JSON such as {{"flights": {{"0": 23, "1": -2}}}}'
        raise InvalidInput(f"{option} expects {expected}; found {text[:80]!r}: {error}") from None
    for tp, offset in each.items():
        if tp.topic not in topics:
            raise UnknownName(f"topic of {option}", tp.topic, topics)
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
            raise InvalidInput(f"{option} expects offsets, -1 for the latest or -2 for the earliest; found {offset!r} for {tp}")
    return Edge(default, each)


def offsets_at(log: Log, edge: Edge, every: Sequence[TopicPartition], option: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition at an edge; without a record of the time or later, the end.

    Raises:
        InvalidInput: partitions are named that are not there, or one is not named; `option` is said.
    """
    admin = log.admin()
    starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    ends = {tp: max(starts[tp], ends[tp]) for tp in every}
    if edge.time_ms is not None:
        found = admin.offsets_for_time(dict.fromkeys(every, edge.time_ms))
        return {tp: ends[tp] if (at := found[tp]) is None else at for tp in every}
    each = edge.each if edge.each is not None else dict.fromkeys(every, edge.offset)
    if each.keys() != set(every):
        odd = sorted(each.keys() ^ set(every))[0]
        what = "is named but is not there" if odd in each else "is not named"
        raise InvalidInput(f'option "{option}": {odd.topic}-{odd.partition} {what}; name each partition of the topics once')
    special: dict[int, Mapping[TopicPartition, int]] = {EARLIEST: starts, LATEST: ends}
    return {tp: special[offset][tp] if offset in special else offset for tp, offset in each.items()}


_NUMBERS = ("tinyint", "smallint", "int", "bigint", "void")
_BYTES = ("binary", "string", "void")
WRITTEN_TYPES = {"value": _BYTES, "key": _BYTES, "partition": _NUMBERS, "timestamp_ms": _NUMBERS}
"""Columns that are written -> types that they may have, as Spark names them."""
READ_ONLY = ("topic", "offset")
"""Columns of a frame that was read: where its records were, which says nothing of where they go."""
READ_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp_ms": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<name:string,value:binary>>",
}
"""Columns that are read -> their types; those of values that are decoded apart."""


def check_columns(types: Mapping[str, str]) -> None:
    """Raise InvalidInput unless a frame of these columns (name -> type) can be written, and nothing that it says would be lost.

    >>> check_columns({"topic": "string", "offset": "bigint", "key": "string", "value": "binary"})
    """
    if "value" not in types:
        raise InvalidInput(f"a write needs a column value (and key, partition, timestamp_ms); found {', '.join(types)}")
    if lost := [name for name in types if name not in (*WRITTEN_TYPES, *READ_ONLY)]:
        columns = ", ".join(WRITTEN_TYPES)
        raise InvalidInput(f"a write takes the columns {columns}; {', '.join(lost)} would be lost: drop or rename it")
    for name, taken in WRITTEN_TYPES.items():
        if types.get(name, "void") not in taken:
            *others, last = taken[:-1]
            raise InvalidInput(
                f"a write takes the column {name} as {', '.join(others)} or {last}, found {types[name]}: cast it, for example "
                f"CAST({name} AS {taken[-2]})"
            )


def check_read(types: Mapping[str, str], *, is_decoded: bool) -> None:
    """Raise InvalidInput for columns that a reader wants with another type than they have. `is_decoded`: values have columns of
    their own.

    >>> check_read({"key": "binary", "offset": "bigint"}, is_decoded=False)
    """
    for name, found in types.items():
        has = READ_TYPES.get(name, found)
        if found != has and not (name == "value" and is_decoded):
            raise InvalidInput(f"the column {name} is {has}, the reader's schema says {found}: read it as {has} and cast it then")
