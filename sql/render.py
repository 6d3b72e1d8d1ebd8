"""Results as text: boxes that fit the terminal, lines of a running query, JSON, and errors with their place."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from logflume.log import LogflumeError
from logflume.log.schemas import STRING, Column, DataType, Kind
from logflume.streams.texts import to_text

from .errors import StatementError
from .results import Message, PushQuery, PushRow, Rows

_NUMERIC = (Kind.INTEGER, Kind.BIGINT, Kind.DOUBLE, Kind.DECIMAL)
_COLUMN_MIN_CHARS = 4
_COLUMN_MAX_CHARS = 60
# More rows than anybody scrolls through; pipes and --json get all.
TABLE_ROWS_MAX = 1_000
_TIMES = ("ROWTIME", "WINDOWSTART", "WINDOWEND")
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def cell_text(value: Any, column: Column) -> str:
    """Write a value as people read it: numbers without exponents, times of records and windows as ISO 8601; null as `null`.

    >>> cell_text(13966874.91, Column("CENTS", DataType(Kind.DOUBLE)))
    '13966874.91'
    >>> cell_text(1795305600000, Column("WINDOWSTART", DataType(Kind.BIGINT)))
    '2026-11-22T00:00:00.000Z'
    """
    if value is None:
        return "null"
    if _is_time(column):
        return _time_text(value)
    if column.type.kind is Kind.DOUBLE and math.isfinite(value) and 1e-6 <= abs(value) < 1e16:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    return to_text(value, column.type)


def _is_time(column: Column) -> bool:
    return column.name in _TIMES and column.type.kind is Kind.BIGINT


def _time_text(ms: int) -> str:
    """Return a time in ms as ISO 8601; one that no calendar has as the number."""
    try:
        return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"
    except (OverflowError, ValueError, OSError):
        return str(ms)


def json_value(value: Any, type: DataType) -> Any:
    """Return a value as `to_json` takes it: decimals stay, for numbers; bytes as base64, times as ISO text, NaN and infinities
    as text."""
    if value is None or type.kind in (Kind.INTEGER, Kind.BIGINT, Kind.STRING, Kind.BOOLEAN):
        return value
    match type.kind:
        case Kind.DECIMAL:
            return value if isinstance(value, Decimal) and value.is_finite() else str(value)
        case Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            return to_text(value, type)
        case Kind.BYTES:
            return base64.b64encode(value).decode()
        case Kind.ARRAY if type.element is not None:
            return [json_value(v, type.element) for v in value]
        case Kind.MAP if type.element is not None:
            return {str(k): json_value(v, type.element) for k, v in value.items()}
        case Kind.STRUCT:
            return {f.name: json_value(value[f.name], f.type) for f in type.fields}
        case Kind.DOUBLE if not math.isfinite(value):
            return to_text(value, type)
    return str(value) if isinstance(value, Decimal) else value


def to_json(content: Any) -> bytes:
    """Return JSON; a Decimal is a number with all of its digits."""
    return _ENCODER.encode(content)


def row_json(columns: Sequence[Column], values: Sequence[Any]) -> str:
    """Write one row as a JSON object on one line; times of records and windows as `cell_text` does.

    >>> row_json([Column("ROWTIME", DataType(Kind.BIGINT)), Column("N", DataType(Kind.BIGINT))], [1795305600000, 2])
    '{"ROWTIME":"2026-11-22T00:00:00.000Z","N":2}'
    """
    fields = {
        column.name: _time_text(value) if value is not None and _is_time(column) else json_value(value, column.type)
        for column, value in zip(columns, values, strict=True)
    }
    return to_json(fields).decode()


def change_json(columns: Sequence[Column], row: PushRow) -> str:
    """Write one row of a running query as a JSON object; one that is gone, what is told of it, under `tombstone`."""
    shown = row_json(columns, row.values)
    return f'{{"tombstone":{shown}}}' if row.is_tombstone else shown


RowText: TypeAlias = Callable[[Sequence[Column], Sequence[Any]], str]
"""Writes one row as a line."""


def change_text(columns: Sequence[Column], row: PushRow, row_text: RowText) -> str:
    """Write one row of a running query as a line; one that is gone as this alone: its columns could be those of any row."""
    return "(removed)" if row.is_tombstone else row_text(columns, row.values)


def row_tabbed(columns: Sequence[Column], values: Sequence[Any]) -> str:
    """Write one row for a pipe: whole cells between tabs, null as nothing, tabs and line ends as escapes."""
    cells = ("" if v is None else cell_text(v, c) for v, c in zip(values, columns, strict=True))
    return "\t".join(cell.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n") for cell in cells)


def row_csv(columns: Sequence[Column], values: Sequence[Any]) -> str:
    """Write one row as CSV (RFC 4180): null as nothing, quotes where they are needed."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(
        "" if v is None else cell_text(v, c) for v, c in zip(values, columns, strict=True)
    )
    return line.getvalue()


def names_text(columns: Sequence[Column], row_text: RowText) -> str:
    """Write the names of columns as their rows are written."""
    return row_text([Column(column.name, STRING) for column in columns], [column.name for column in columns])


def print_rows(console: Console, result: Rows, *, is_json: bool, row_text: RowText | None = None) -> None:
    """Print a finished result; a plan as plain lines; with `row_text` as lines of it."""
    if row_text is not None and not is_json and result.title != "EXPLAIN":
        print(names_text(result.columns, row_text), file=console.file)
        for row in result.rows:
            print(row_text(result.columns, row), file=console.file)
        console.file.flush()
        return
    if is_json:
        for row in result.rows:
            print(row_json(result.columns, row), file=console.file)
        console.file.flush()
        return
    if result.title == "EXPLAIN":
        for (line,) in result.rows:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    _print_table(console, result)


def _print_table(console: Console, result: Rows) -> None:
    """Print a box of the rows, up to a cap that is told; columns with nothing in them (SHOW's) are left out."""
    table = Table(title=Text(result.title), box=ROUNDED, title_justify="left", header_style="bold")
    shown = result.rows[:TABLE_ROWS_MAX]
    columns = filled_columns(result.columns, shown)
    for column in (result.columns[i] for i in columns):
        justify = "right" if column.type.kind in _NUMERIC else "left"
        is_statement = result.title == "QUERIES" and column.name == "STATEMENT"
        overflow = "ellipsis" if is_statement else "fold"
        table.add_column(Text(column.name), justify=justify, overflow=overflow, no_wrap=is_statement)  # type: ignore[arg-type]
    for row in shown:
        table.add_row(*(_cell(row[i], result.columns[i]) for i in columns))
    console.print(table)
    advice = "narrow it with WHERE or LIMIT, or take all with --json or through a pipe"
    console.print(Text(count_text(result, len(shown), advice), style="dim"))


def filled_columns(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[int]:
    """Return the places of the columns that have something in them in some row; all where there are no rows."""
    return [i for i in range(len(columns)) if not rows or any(row[i] != "" for row in rows)]


def count_text(result: Rows, shown: int, advice: str) -> str:
    """Return what stands below a table: how many rows, whence, and where the first are shown how to see the others.

    >>> count_text(Rows("T", (), ((), (), ())), 2, "narrow it")
    '3 rows; shown are the first 2: narrow it'
    """
    count = len(result.rows)
    note = f"; {result.note}" if result.note else ""
    if result.has_more:
        note += f"; there are more than {shown:,}: {advice}"
    elif count > shown:
        note += f"; shown are the first {shown:,}: {advice}"
    return f"{count:,} row{'' if count == 1 else 's'}{note}"


def left_out_text(query: PushQuery) -> str:
    """Return how many records a query has left out and why; nothing if it has none."""
    counts = ", ".join(f"{reason} {count}" for reason, count in query.dropped().items() if count)
    return f"records left out: {counts}" if counts else ""


def _cell(value: Any, column: Column) -> Text:
    return Text("null", style="dim italic") if value is None else Text(cell_text(value, column))


def print_message(console: Console, message: Message, *, is_json: bool) -> None:
    """Print what was done."""
    if is_json:
        fields = {"message": message.text} | ({"query_id": message.query_id} if message.query_id else {})
        console.print(to_json(fields).decode(), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(Text(message.text))


class RowLines:
    """Lays out the rows of a running query in columns that fit the terminal; widths come from the first rows."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        self._columns = columns
        self._width = max(width, 20)
        self._widths: list[int] = []

    def start(self, first: Sequence[PushRow]) -> Iterator[str]:
        """Fix the widths; yield the header lines."""
        wanted = [len(c.name) for c in self._columns]
        for row in first:
            for i, value in enumerate(row.values):
                wanted[i] = max(wanted[i], len(cell_text(value, self._columns[i])))
        self._widths = fit_widths(wanted, self._width)
        yield self._line([c.name for c in self._columns])
        yield "-+-".join("-" * w for w in self._widths)

    def line(self, row: PushRow) -> str:
        """Return one row; a removed one as `(removed)`."""
        if row.is_tombstone:
            return "(removed)"
        return self._line([cell_text(v, c) for v, c in zip(row.values, self._columns, strict=True)])

    def _line(self, cells: Sequence[str]) -> str:
        parts = []
        for cell, width, column in zip(cells, self._widths, self._columns, strict=True):
            flat = cell.replace("\n", " ")
            shown = flat if len(flat) <= width else flat[: width - 1] + "…"
            parts.append(shown.rjust(width) if column.type.kind in _NUMERIC else shown.ljust(width))
        return " | ".join(parts).rstrip()


def fit_widths(wanted: Sequence[int], total: int) -> list[int]:
    """Return column widths that fit `total` characters: the widest give way first.

    >>> fit_widths([5, 40, 10], 40)
    [5, 19, 10]
    """
    widths = [min(max(w, _COLUMN_MIN_CHARS), _COLUMN_MAX_CHARS) for w in wanted]
    room = total - 3 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _COLUMN_MIN_CHARS:
        widths[widths.index(max(widths))] -= 1
    return widths


def error_text(error: LogflumeError) -> str:
    """Return an error as a user sees it: where, why, and the line at fault with a marker under it."""
    if isinstance(error, StatementError) and error.pointer():
        return f"{error}\n\n{_indented(error.pointer())}"
    return str(error)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
