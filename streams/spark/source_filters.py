"""Filters of Spark over topic, partition, offset and time, applied before anything is read: `LogflumeTables` is the data source.

A class of its own because Spark refuses a reader that takes filters unless `spark.sql.python.filterPushdown.enabled` is true;
`use_logflume` (`tables.py`) sets that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from logflume.log import connect

from .ranges import OffsetRange
from .source import LogflumeDataSource, RangeReader
from .source_options import Edge, SourceOptions, offsets_at

PLACES = ("topic", "partition", "offset")
NO_TIME_MS = 1 << 63
"""Beyond the last time there is."""
ALWAYS = ("timestamp_ms", *PLACES)
"""Columns that are never null."""
_COMPARED = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class LogflumeTables(LogflumeDataSource):
    """`format("logflume")` with filters.

    `of_table`: the options of a table, which a class of its own has: Spark forgets those of a table when it reads it.
    """

    of_table: ClassVar[Mapping[str, str] | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options if self.of_table is None else dict(self.of_table))

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(*self.asked(schema))


class FilteringReader(RangeReader):
    """Batch reading of what filters leave: other offsets are not read at all."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._filters: list[tuple[str, Filter]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            path: tuple[str, ...] = getattr(each, "attribute", ())
            name = path[0] if len(path) == 1 else ""
            if name in ALWAYS and isinstance(each, (*_COMPARED, In)):
                self._filters.append((name, each))
            is_done = name in ALWAYS and isinstance(each, IsNotNull)
            if not is_done and not is_exact(name, each):
                yield each

    def ranges(self) -> list[OffsetRange]:
        wholes = [whole for whole in super().ranges() if self._is_wanted(whole)]
        times = [first_time(each) for name, each in self._filters if name == "timestamp_ms"]
        times = [time_ms for time_ms in times if 0 < time_ms < NO_TIME_MS]  # others leave nothing out, or cannot be asked for
        firsts = {each.topic_partition: each.start for each in wholes}
        if times:
            with connect(self.options.where) as log:
                firsts = offsets_at(log, Edge(time_ms=max(times)), list(firsts), "")
        return [self._narrowed(whole, firsts[whole.topic_partition]) for whole in wholes]

    def _is_wanted(self, whole: OffsetRange) -> bool:
        values = {"topic": whole.topic, "partition": whole.partition}
        return all(holds(each, values[name]) for name, each in self._filters if name in values)

    def _narrowed(self, whole: OffsetRange, first: int) -> OffsetRange:
        start, end = max(whole.start, first), whole.end
        for name, each in self._filters:
            if name == "offset":
                least, limit = span_of(each)
                start, end = max(start, least), end if limit is None else min(end, limit)
        return OffsetRange(*whole.topic_partition, start, max(start, end))


def is_exact(name: str, each: Filter) -> bool:
    """Return whether nothing is left to Spark: a time only says where to begin, for later records may be older."""
    return (name in PLACES and isinstance(each, _COMPARED)) or (name in ("topic", "partition") and isinstance(each, In))


def holds(each: Filter, value: Any) -> bool:
    """Return whether a value passes.

    >>> holds(GreaterThan(("partition",), 3), 3), holds(In(("topic",), ("a", "b")), "b")
    (False, True)
    """
    match each:
        case EqualTo():
            return bool(value == each.value)
        case In():
            return value in each.value
        case GreaterThan():
            return bool(value > each.value)
        case GreaterThanOrEqual():
            return bool(value >= each.value)
        case LessThan():
            return bool(value < each.value)
        case LessThanOrEqual():
            return bool(value <= each.value)
    return True


def span_of(each: Filter) -> tuple[int, int | None]:
    """Return [first, end) of what passes, None without an end.

    >>> span_of(EqualTo(("offset",), 4)), span_of(GreaterThan(("offset",), 4)), span_of(In(("offset",), (2, None, 9)))
    ((4, 5), (5, None), (2, 10))
    """
    match each:
        case EqualTo():
            return each.value, each.value + 1
        case In():
            numbers = list(_numbers(each))
            return min(numbers, default=0), max(numbers, default=-1) + 1
        case GreaterThan():
            return each.value + 1, None
        case GreaterThanOrEqual():
            return each.value, None
        case LessThan():
            return 0, max(each.value, 0)
        case LessThanOrEqual():
            return 0, max(each.value + 1, 0)
    return 0, None


def first_time(each: Filter) -> int:
    """Return the first time that passes; 0 where there is none, or where records without a time (-1) pass too."""
    return max(span_of(each)[0], 0)


def _numbers(each: In) -> Iterator[int]:
    return (int(value) for value in each.value if value is not None)
