"""Rows of a store as a table for people: what a notebook shows of a store, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from logflume.log import InvalidInput, LogflumeError

from .rows import StoredRow, WindowedKey

ROWS_MAX = 20
_TEXT_MAX = 200
"""Characters of a value that are shown."""


def html_table(rows: Sequence[StoredRow], *, has_more: bool) -> str:
    """Return rows as a table in HTML: the key (of a window its bounds too), the columns of the values, the time.

    >>> html_table([StoredRow("pen", {"pieces": 7}, 0)], has_more=False).partition("</tr>")[2]
    '<tr><td>pen</td><td>7</td><td>1970-01-01 00:00:00</td></tr></table>'
    """
    names = list(dict.fromkeys(name for row in rows for name in (row.value if isinstance(row.value, Mapping) else ("value",))))
    lines = [_line(("key", *names, "time"), "th")]
    for row in rows:
        values = row.value if isinstance(row.value, Mapping) else {"value": row.value}
        lines.append(_line((_key(row.key), *(values.get(name, "") for name in names), _time(row.timestamp_ms)), "td"))
    more = f"<p>the first {len(rows)} of more</p>" if has_more else ""
    return f"<table>{''.join(lines)}</table>{more}"


def show_live(read: Callable[[], str], every_s: float, sleep: Callable[[float], None], looks_max: int | None) -> None:
    """Show HTML in a notebook and replace it by what it has become, again and again, until interrupted.

    While it can't be read for a moment, what was shown last stays.

    Raises:
        InvalidInput: this is no notebook.
    """
    try:
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise InvalidInput("show() is for notebooks (IPython); elsewhere print rows(), or go through follow()") from error
    place = display(HTML(read()), display_id=True)
    look = 1
    try:
        while looks_max is None or look < looks_max:
            sleep(every_s)
            look += 1
            try:
                place.update(HTML(read()))
            except LogflumeError as error:
                if not error.is_retriable:
                    raise
    except KeyboardInterrupt:  # the notebook's stop: the table stays as it is
        return


def _line(cells: Sequence[Any], tag: str) -> str:
    texts = (str(cell) for cell in cells)
    shown = (text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..." for text in texts)
    return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in shown)}</tr>"


def _key(key: Any) -> str:
    if isinstance(key, WindowedKey):
        return f"{key.key}, {_time(key.start_ms)} to {_time(key.end_ms)}"
    return str(key)


def _time(time_ms: int) -> str:
    try:
        return str(datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None))
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
