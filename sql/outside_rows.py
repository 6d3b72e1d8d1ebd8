"""Rows from outside, by INSERT VALUES or as JSON: made into records and sent to the disk, not under the lock of statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logflume.log import LogflumeError
from logflume.log.registry import EVERYTHING, Rights

from . import ast
from .binding.context import Context
from .catalog import SourceInfo
from .errors import StatementError
from .following import Following
from .inserts import PendingWrites, RecordWriter, values_records, writable_source
from .results import Result, inserted
from .rights import check_topics
from .row_records import RecordMakers, ValuesRecord, now_ms


class OutsideRows:
    """See the module. Thread-safe."""

    def __init__(self, following: Following, writer: RecordWriter, makers: RecordMakers) -> None:
        self._following, self._writer, self._makers = following, writer, makers

    def insert_values(self, s: ast.InsertValues, context: Context, text: str, writes: PendingWrites) -> Result:
        """Add the rows of a statement to what is written together."""
        records = values_records(s, context, self._makers)
        writes.add(text, records)
        return inserted(len(records))

    def pending_writes(self) -> PendingWrites:
        """Return what holds the rows of INSERT VALUES that follow each other."""
        return PendingWrites(self._writer)

    def target(self, name: str, *, rights: Rights = EVERYTHING) -> SourceInfo:
        """Return the stream or table of a name that takes rows from outside; quoted names keep their case.

        Raises:
            StatementError: there is none, it takes none, or none of this user.
        """
        wanted = name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in '`"' else name.upper()
        if wanted not in self._following.catalog.sources:
            self._following.catch_up()
        source = writable_source(wanted, self._following.catalog)
        if source.headers:
            raise StatementError(f"Cannot insert into {source.name} because it has header columns")
        check_topics(rights, writes=(source.topic,))
        return source

    def send(self, name: str, rows: Sequence[bytes]) -> Callable[[], list[Exception | None]]:
        """Send rows, a JSON object in a stripped line each; return what waits for the disk and tells what each was refused for.

        Raises:
            StatementError: no such stream or table, or one that takes none.
        """
        source = self.target(name)
        makers, stamp = self._makers.of(source), now_ms()
        columns = makers.columns_of_json(rows, stamp)
        if columns is not None:
            return self._writer.send_columns(columns).outcomes
        refused: list[Exception | None] = []
        records: list[ValuesRecord] = []
        for row in rows:
            try:
                records.append(makers.record_of_json(row, stamp))
                refused.append(None)
            except LogflumeError as error:
                refused.append(error)
        sending = self._writer.send(records)

        def outcomes() -> list[Exception | None]:
            written = iter(sending.outcomes())
            return [next(written) if error is None else error for error in refused]

        return outcomes
