"""Archives as tables of Delta Lake and Iceberg: the files of `archives.py`, listed by a table that others can query.

    delta:PATH                      a Delta table PATH/<topic> for each topic; PATH is a directory or a URI (s3://...)
    iceberg:CATALOG/NAMESPACE       an Iceberg table NAMESPACE.<topic>, in a catalog that pyiceberg's configuration names

A file and [start, end) of its partition become part of the table in one commit: what no commit names is not in the archive.
Others may compact and sort the data: rows are found by `partition` and `offset`, not by the names of files. Tables of which rows
were deleted in place are refused. Only the planning process opens tables; executors read the data files that it names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from logflume.log import InvalidInput, LogflumeError

from .ranges import OffsetRange

DELTA, ICEBERG = "delta:", "iceberg:"
METRICS = {"write.metadata.metrics.default": "none"} | {
    f"write.metadata.metrics.column.{name}": "full" for name in ("partition", "offset", "timestamp_ms")
}
"""Columns whose bounds an Iceberg table notes: those of which our files have statistics. pyiceberg warns of all others."""


class TableUnreadable(LogflumeError):
    """A table of an archive cannot be opened or read, or nothing says which offsets it holds; names it."""

    code = "ARCHIVE_UNREADABLE"


class ArchiveConflict(LogflumeError):
    """Another process has changed the table meanwhile: nothing of this was archived, the next try goes on behind what it did."""

    code = "ARCHIVE_CONFLICT"
    is_retriable = True


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file, and the least and the largest partition and offset of its rows, as the table says; None: it does not."""

    path: str
    partitions: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None

    def may_hold(self, wanted: OffsetRange) -> bool:
        """Return False if no row of it can be of this range."""
        if self.partitions is not None and not self.partitions[0] <= wanted.partition <= self.partitions[1]:
            return False
        return self.offsets is None or (self.offsets[0] < wanted.end and self.offsets[1] >= wanted.start)


@dataclass(frozen=True, slots=True)
class Contents:
    """The data files of a table, and how many rows they have; None: some do not say."""

    files: tuple[DataFile, ...]
    rows: int | None


class TopicTable(Protocol):
    """The table of a topic."""

    @property
    def location(self) -> str:
        """Where data files are written: a directory or a URI."""
        ...

    def spans(self) -> Mapping[int, tuple[int, int]]:
        """Return [start, end) of each partition that is archived."""
        ...

    def archived(self) -> int:
        """Return how many records were archived."""
        ...

    def contents(self) -> Contents:
        """Return what it consists of now."""
        ...

    def add(self, path: str, held: OffsetRange, start: int, *, records: int, size_bytes: int) -> None:
        """Commit a file of that location, and that its partition is archived from `start` to its end.

        Raises:
            ArchiveConflict: the table has been changed since it was opened.
        """
        ...


def is_table(root: str) -> bool:
    """Return whether an archive is said to be tables."""
    return root.startswith((DELTA, ICEBERG))


def open_table(root: str, topic: str, *, schema: Any = None) -> TopicTable | None:
    """Return the table of a topic, None if there is none; with a pyarrow schema it is made.

    Raises:
        InvalidInput: no such catalog, or a package is missing.
        TableUnreadable: it is there and cannot be opened.
    """
    if root == DELTA:
        raise InvalidInput(f"an archive in Delta Lake is {DELTA}PATH, found {root!r}")
    kind = DELTA if root.startswith(DELTA) else ICEBERG
    with _told(f"{root} ({topic})"):
        if kind == DELTA:
            return _DeltaTable.open(root.removeprefix(DELTA), topic, schema)
        return _IcebergTable.open(root.removeprefix(ICEBERG), topic, schema)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say what a library says about a table, in words of our own."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"this archive needs the package {error.name}; install it with: pip install 'logflume[tables]'"
        ) from None
    except LogflumeError:
        raise
    except Exception as error:  # each library has its own tree of errors
        raise TableUnreadable(f"cannot use the archive's table {what}: {error}") from error


@contextmanager
def _conflict_told(location: str, conflict: type[Exception]) -> Iterator[None]:
    try:
        yield
    except conflict as error:
        raise ArchiveConflict(
            f"another process has changed {location} meanwhile; one archives a topic at a time: {error}"
        ) from error


def _is_there(location: str) -> bool:
    from deltalake import DeltaTable

    return DeltaTable.is_deltatable(location)


@dataclass(frozen=True, slots=True)
class _DeltaTable:
    """A Delta table. Which offsets it holds is in transactions of applications, which a commit carries."""

    topic: str
    location: str
    table: Any

    @classmethod
    def open(cls, path: str, topic: str, schema: Any) -> _DeltaTable | None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        location = f"{path.rstrip('/')}/{topic}"
        if "://" not in location:
            location = str(Path(location).expanduser().resolve())
        if not _is_there(location):
            if schema is None:
                return None
            try:
                return cls(topic, location, DeltaTable.create(location, Schema.from_arrow(schema), name=topic))
            except DeltaError:
                if not _is_there(location):  # else another process has made it meanwhile
                    raise
        return cls(topic, location, DeltaTable(location))

    def _said(self, what: str) -> int | None:
        found = self.table.transaction_version(f"logflume/{self.topic}/{what}")
        return None if found is None else int(found)

    def spans(self) -> Mapping[int, tuple[int, int]]:
        with _told(self.location):
            return _spans_of(self._said)

    def archived(self) -> int:
        with _told(self.location):
            return self._said("records") or 0

    def contents(self) -> Contents:
        import pyarrow as pa

        with _told(self.location):
            if "deletionVectors" in (self.table.protocol().reader_features or ()):
                raise TableUnreadable(
                    f"rows of the archive's table {self.location} may be deleted: deletion vectors are not read"
                )
            if parted := self.table.metadata().partition_columns:
                raise TableUnreadable(
                    f"the archive's table {self.location} is partitioned by {', '.join(parted)}: its files lack what they are "
                    "partitioned by, and are read by themselves; write it without partitions, or archive anew elsewhere"
                )
            added = pa.table(self.table.get_add_actions()).to_pylist()
            rows = None if any(each["num_records"] is None for each in added) else sum(each["num_records"] for each in added)
            uris = {uri.rpartition("/")[2]: uri for uri in self.table.file_uris()}
            return Contents(tuple(_delta_file(uris[each["path"].rpartition("/")[2]], each) for each in added), rows)

    def add(self, path: str, held: OffsetRange, start: int, *, records: int, size_bytes: int) -> None:
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, Transaction

        edges = {"partition": held.partition, "offset": held.start}
        most = edges | {"offset": max(held.start, held.end - 1)}
        stats = json.dumps({"numRecords": records, "minValues": edges, "maxValues": most, "nullCount": dict.fromkeys(edges, 0)})
        name = path.rsplit("/", 1)[-1]
        action = AddAction(name, size_bytes, {}, int(time.time() * 1000), True, stats)
        totals = _edges(self.spans(), held, start) | {"records": self.archived() + records}
        said = [Transaction(f"logflume/{self.topic}/{what}", at) for what, at in totals.items()]
        with _told(self.location), _conflict_told(self.location, CommitFailedError):
            properties = CommitProperties(app_transactions=said)
            self.table.create_write_transaction([action], "append", self.table.schema(), commit_properties=properties)
            self.table.update_incremental()


def _delta_file(uri: str, added: Mapping[str, Any]) -> DataFile:
    def bounds(name: str) -> tuple[int, int] | None:
        least, most = ((added.get(each) or {}).get(name) for each in ("min", "max"))
        return None if least is None or most is None else (least, most)

    return DataFile(uri, bounds("partition"), bounds("offset"))


@dataclass(slots=True)
class _IcebergTable:
    """An Iceberg table. Which offsets it holds is in its properties, which a commit carries."""

    topic: str
    table: Any

    @classmethod
    def open(cls, place: str, topic: str, schema: Any) -> _IcebergTable | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        name, _, namespace = place.partition("/")
        if not name or not namespace:
            raise InvalidInput(f"an archive in Iceberg is iceberg:CATALOG/NAMESPACE, found {ICEBERG + place!r}")
        catalog = load_catalog(name)
        levels = tuple(namespace.split("."))
        try:
            return cls(topic, catalog.load_table((*levels, topic)))
        except NoSuchTableError:
            if schema is None:
                return None
        catalog.create_namespace_if_not_exists(levels)
        return cls(topic, catalog.create_table_if_not_exists((*levels, topic), schema=schema, properties=METRICS))

    @property
    def location(self) -> str:
        return f"{str(self.table.location()).rstrip('/')}/data"

    def spans(self) -> Mapping[int, tuple[int, int]]:
        properties = self.table.properties

        def said(what: str) -> int | None:
            found = properties.get(f"logflume.{what}")
            return None if found is None else int(found)

        return _spans_of(said)

    def archived(self) -> int:
        return int(self.table.properties.get("logflume.records", 0))

    def contents(self) -> Contents:
        with _told(self.location):
            tasks = list(self.table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise TableUnreadable(f"rows of the archive's table {self.location} may be deleted: delete files are not read")
        return Contents(tuple(self._file(task.file) for task in tasks), sum(task.file.record_count for task in tasks))

    def _file(self, file: Any) -> DataFile:
        from pyiceberg.conversions import from_bytes

        schema = self.table.schema()

        def bounds(name: str) -> tuple[int, int] | None:
            if name not in schema.column_names:
                return None
            column = schema.find_field(name)
            found = [(each or {}).get(column.field_id) for each in (file.lower_bounds, file.upper_bounds)]
            least, most = (None if each is None else int(from_bytes(column.field_type, each)) for each in found)
            return None if least is None or most is None else (least, most)

        return DataFile(str(file.file_path), bounds("partition"), bounds("offset"))

    def add(self, path: str, held: OffsetRange, start: int, *, records: int, size_bytes: int) -> None:
        from pyiceberg.exceptions import CommitFailedException

        totals = _edges(self.spans(), held, start) | {"records": self.archived() + records}
        # tried again behind another's commit, it would say what was true before that; not told to the catalog
        self.table.metadata.properties["commit.retry.num-retries"] = "0"
        with _told(self.location), _conflict_told(self.location, CommitFailedException), self.table.transaction() as commit:
            commit.set_properties({f"logflume.{what}": str(at) for what, at in totals.items()})
            if not records:  # a snapshot all the same: properties alone are written over what another has said meanwhile
                commit.append(self.table.schema().as_arrow().empty_table())
            else:
                commit.add_files([f"{self.location}/{path.rsplit('/', 1)[-1]}"], check_duplicate_files=False)


def _spans_of(said: Callable[[str], int | None]) -> dict[int, tuple[int, int]]:
    """Return [start, end) of each partition from what a table says of its offsets."""
    found: dict[int, tuple[int, int]] = {}
    for partition in range(said("partitions") or 0):
        start, end = said(f"{partition}/start"), said(f"{partition}/end")
        if start is not None and end is not None:
            found[partition] = (start, end)
    return found


def _edges(spans: Mapping[int, tuple[int, int]], held: OffsetRange, start: int) -> dict[str, int]:
    """Return what a table says of its offsets with a file more."""
    partition = held.partition
    return {"partitions": max([partition, *spans]) + 1, f"{partition}/start": start, f"{partition}/end": held.end}


def check_spans(root: str, topic: str, table: TopicTable, contents: Contents) -> Mapping[int, tuple[int, int]]:
    """Return the spans of a table.

    Raises:
        TableUnreadable: it has files, and nothing says which offsets it holds; or rows are gone, or there are more.
    """
    spans = table.spans()
    if contents.files and not spans:
        raise TableUnreadable(
            f"the table of {topic} in {root} does not say which offsets it holds; make one with: logflume archive {topic}"
        )
    if contents.rows is not None and contents.rows != table.archived():
        raise TableUnreadable(
            f"the table of {topic} in {root} has {contents.rows} rows, and {table.archived()} were archived: rows were "
            "taken away (DELETE) or added; restore an older version of the table, or archive anew elsewhere"
        )
    return spans
