"""Tables for people: what a notebook shows of a store or a query, once or again and again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from logflume.log import InvalidInput, LogflumeError

from .rows import StoredRow, WindowedKey

ROWS_MAX = 20
_TEXT_MAX = 200
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a notebook shows: a table in HTML, and as text where there is no HTML."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def table_page(names: Sequence[str], rows: Sequence[Sequence[Any]], *, notes: Sequence[str] = ()) -> Page:
    """Return rows as a table, notes below it.

    >>> table_page(["ID"], [["a<b"]], notes=["1 row"])
    ID
    a<b
    1 row
    """
    cells = [[_cut(cell) for cell in row] for row in rows]
    lines = [_line(names, "th"), *(_line(row, "td") for row in cells)]
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    text = "\n".join([*("\t".join(row) for row in (names, *cells)), *notes])
    return Page(f"<table>{''.join(lines)}</table>{below}", text)


def stored_page(rows: Sequence[StoredRow], *, has_more: bool) -> Page:
    """Return rows of a store as a table: the key (of a window its bounds too), the columns of the values, the time.

    >>> stored_page([StoredRow("pen", {"pieces": 7}, 0)], has_more=False).html.partition("</tr>")[2]
    '<tr><td>pen</td><td>7</td><td>1970-01-01 00:00:00</td></tr></table>'
    """
    names = list(dict.fromkeys(name for row in rows for name in (row.value if isinstance(row.value, Mapping) else ("value",))))
    cells = []
    for row in rows:
        values = row.value if isinstance(row.value, Mapping) else {"value": row.value}
        cells.append((_key(row.key), *(values.get(name, "") for name in names), _time(row.timestamp_ms)))
    return table_page(("key", *names, "time"), cells, notes=[f"the first {len(rows)} of more"] if has_more else [])


def show(page: Page) -> Callable[[Page], None]:
    """Show a page in a notebook; return what replaces it there. Raises InvalidInput: this is no notebook."""
    place = _notebook().display(page, display_id=True)
    return lambda page: None if place is None else place.update(page)


def show_live(read: Callable[[], Page], every_s: float, sleep: Callable[[float], None], looks_max: int | None) -> None:
    """Show a page in a notebook and replace it by what it has become, again and again, until interrupted.

    While it can't be read for a moment, what was shown last stays.

    Raises:
        InvalidInput: this is no notebook.
    """
    _notebook()
    update = show(read())
    look = 1
    try:
        while looks_max is None or look < looks_max:
            sleep(every_s)
            look += 1
            try:
                update(read())
            except LogflumeError as error:
                if not error.is_retriable:
                    raise
    except KeyboardInterrupt:  # the notebook's stop: the table stays as it is
        return


def _notebook() -> Any:
    """Return what shows things in a notebook. Raises InvalidInput: this is none."""
    try:
        return importlib.import_module("IPython.display")
    except ImportError as error:
        raise InvalidInput("show() is for notebooks (IPython); elsewhere print rows(), or go through follow()") from error


def _cut(cell: Any) -> str:
    text = str(cell)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _line(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _key(key: Any) -> str:
    if isinstance(key, WindowedKey):
        return f"{key.key}, {_time(key.start_ms)} to {_time(key.end_ms)}"
    return str(key)


def _time(time_ms: int) -> str:
    try:
        return str(datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None))
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
