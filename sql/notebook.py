"""Statements of a notebook's cell: results as tables, a running query live in one place; the last one may be kept as data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from logflume.log.schemas import Column
from logflume.streams.showing import Page, show, table_page

from .batch import StatementRunner
from .executor import Executor
from .render import cell_text, count_text, filled_columns, left_out_text
from .results import Message, PushQuery, PushRow, Rows

ROWS_SHOWN = 100
KEPT_ROWS_MAX = 100_000
"""Of a query that goes on; the last ones."""
SHOWN_EVERY_S = 0.5
_POLL_S = 0.1
_REMOVED = "(removed)"


class NotebookRunner(StatementRunner):
    """One session of a notebook with an engine or server, cell after cell."""

    def __init__(self, executor: Executor, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(executor)
        self._monotonic_s = monotonic_s
        self._shown_max, self._live_s, self._is_kept = ROWS_SHOWN, float("inf"), False
        self._last: tuple[Sequence[Column], Sequence[Sequence[Any]]] | None = None

    def run_cell(self, text: str, *, rows_max: int = ROWS_SHOWN, live_s: float = float("inf"), is_kept: bool = False) -> Any:
        """Execute a script and show what it gives; return the last rows as data if they are to be kept, None if there are none.

        `rows_max`: of a result that are shown. `live_s`: how long a query that goes on is followed.
        """
        self._shown_max, self._live_s, self._is_kept, self._last = rows_max, live_s, is_kept, None
        try:
            self.run_text(text)
            return None if self._last is None else data_of(*self._last)
        finally:
            self._last = None

    def rows_max(self) -> int | None:
        return None if self._is_kept else self._shown_max

    def show_rows(self, result: Rows) -> None:
        if self._is_kept:
            self._last = result.columns, result.rows
        if result.title == "EXPLAIN":
            for (line,) in result.rows:
                print(line)
            return
        shown = result.rows[: self._shown_max]
        note = count_text(result, len(shown), "narrow it with WHERE or LIMIT, show more with --rows, or take all under a name")
        show(_page(result.columns, shown, [note]))

    def show_message(self, result: Message) -> None:
        print(result.text)

    def follow(self, query: PushQuery) -> None:
        seen = _Seen(query.columns, self._shown_max, KEPT_ROWS_MAX if self._is_kept else self._shown_max)
        update = show(seen.page("following; interrupt the cell to stop the query"))
        ended = "the query failed"
        try:
            for row in self._rows(query):
                if row is not None:
                    seen.add(row)
                if seen.is_due(self._monotonic_s()):
                    update(seen.page("following; interrupt the cell to stop the query"))
            ended = "LIMIT is reached" if seen.count == query.limit else f"stopped after {self._live_s:g} s"
        except KeyboardInterrupt:  # the notebook's stop: of the query, not of the cell
            ended = "stopped"
        finally:
            query.close()
            update(seen.page(ended, left_out_text(query)))
        if self._is_kept:
            self._last = query.columns, [row.values for row in seen.rows]

    def _rows(self, query: PushQuery) -> Iterator[PushRow | None]:
        """Yield each row, None where there is none for a while, until LIMIT or until the time is over."""
        until_s, left = self._monotonic_s() + self._live_s, query.limit
        while left != 0 and not query.is_cancelled and self._monotonic_s() < until_s:
            row = query.poll(timeout_s=_POLL_S)
            left = left if row is None or left is None else left - 1
            yield row


class _Seen:
    """The last rows of a query that goes on, and when they were shown."""

    def __init__(self, columns: tuple[Column, ...], shown_max: int, kept_max: int) -> None:
        self._columns, self._shown_max = columns, shown_max
        self.rows: deque[PushRow] = deque(maxlen=max(shown_max, kept_max))
        self.count, self._shown_count, self._shown_at_s = 0, 0, float("-inf")

    def add(self, row: PushRow) -> None:
        self.rows.append(row)
        self.count += 1

    def is_due(self, now_s: float) -> bool:
        """Return whether there is something new to be shown, and the time for it."""
        is_due = self.count > self._shown_count and now_s >= self._shown_at_s + SHOWN_EVERY_S
        if is_due:
            self._shown_count, self._shown_at_s = self.count, now_s
        return is_due

    def page(self, *notes: str) -> Page:
        shown = list(self.rows)[-self._shown_max :]
        counted = f"{self.count:,} row{'' if self.count == 1 else 's'}"
        if len(shown) < self.count:
            counted += f", shown are the last {len(shown):,}"
        rows = [row.values for row in shown]
        gone = {n for n, row in enumerate(shown) if row.is_tombstone}
        return _page(self._columns, rows, ["; ".join([counted, *(note for note in notes if note)])], gone=gone)


def _page(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], notes: Sequence[str], *, gone: set[int] | None = None
) -> Page:
    """Return rows as a table; of those that are `gone`, by number, the key alone."""
    places = filled_columns(columns, rows)
    cells = [[cell_text(row[i], columns[i]) for i in places] for row in rows]
    for number in gone or ():
        cells[number] = [*(cell for cell in cells[number] if cell != "null"), _REMOVED]
    return table_page([columns[i].name for i in places], cells, notes=notes)


def data_of(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Any:
    """Return rows as a DataFrame; where pandas is missing as an Arrow table, and where that is too as a list of dicts.

    Whole numbers and booleans are of pandas' types that can be null, so that none loses digits beside a null.
    """
    if find_spec("pyarrow") is None:
        return [dict(zip((c.name for c in columns), row, strict=True)) for row in rows]
    import pyarrow as pa

    from logflume.log.arrow_values import arrow_type, to_arrow_values

    types = [arrow_type(column.type) for column in columns]
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [pa.array(to_arrow_values(list(each), type), type) for each, type in zip(values, types, strict=True)]
    table = pa.table(arrays, names=[column.name for column in columns])
    if find_spec("pandas") is None:
        return table
    import pandas as pd

    nullable = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=nullable.get, maps_as_pydicts="strict")
