"""Pull queries that differ in their keys alone: bound once, then answered from the state of this process by their keys' text.

Only where no literal but the keys can change what the query means: columns are selected as they are, and WHERE compares the only
key column with literals of its own type and asks for nothing else. Everything else is bound anew each time (`pull.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log.schemas import INT_RANGES, Column, Kind
from logflume.streams import expr as x

from . import ast
from .pull import KeptTable, Pull, roles
from .results import Rows
from .table_state import TableShape
from .templates import Token, unquoted


@dataclass(frozen=True, slots=True)
class PointPull:
    """A bound query.

    Attributes:
        slots: which literals of the text are the keys, in order.
        fixed: the other literals, which must be as they were.
        bounds: of a whole number that can be a key; None: keys are text.
        picked: which places of a page's row are selected.
    """

    pull: Pull
    columns: tuple[Column, ...]
    roles: Mapping[str, str]
    slots: tuple[int, ...]
    fixed: tuple[tuple[int, str], ...]
    bounds: tuple[int, int] | None
    picked: tuple[int, ...]

    def rows(self, tokens: Sequence[Token], table: KeptTable) -> Rows | None:
        """Return the answer for other keys; None: these are none. Raises NotHeld."""
        if any(tokens[n].text != text for n, text in self.fixed):
            return None
        texts = [tokens[n].text for n in self.slots]
        values: list[Any] = [unquoted(text) for text in texts] if self.bounds is None else [int(text) for text in texts]
        if self.bounds is not None and not all(self.bounds[0] <= value <= self.bounds[1] for value in values):
            return None
        picked = self.picked
        found = table.read(table.shape.encoded([(value,) for value in values]))
        rows = tuple([tuple([row[i] for i in picked]) for row in found])
        return Rows(self.pull.source.name, self.columns, rows, f"read from {len(values)} key(s) of its state", self.roles)


def point_pull(pull: Pull, shape: TableShape, tokens: Sequence[Token]) -> PointPull | None:
    """Return a query as it is answered for other keys; None: something else of it depends on its literals."""
    if not pull.compared or pull.rest or pull.limit is not None or len(pull.source.key) != 1:
        return None
    kind = pull.source.key[0].type.kind
    wanted: tuple[type[ast.Node], str] = (ast.StringLiteral, "STRING") if kind is Kind.STRING else (ast.IntegerLiteral, "INTEGER")
    places = {(token.start, token.stop): n for n, token in enumerate(tokens) if token.kind == wanted[1]}
    slots = [places.get((e.span.start, e.span.stop)) for e in pull.compared if isinstance(e, wanted[0])]
    picked = [_place(e, shape) for _, e in pull.columns]
    if len(slots) != len(pull.compared) or None in slots or None in picked or not (kind is Kind.STRING or kind in INT_RANGES):
        return None
    found = tuple(n for n in slots if n is not None)
    taken = set(found)
    return PointPull(
        pull=pull,
        columns=tuple(Column(name, e.type) for name, e in pull.columns),
        roles=roles(pull),
        slots=found,
        fixed=tuple((n, token.text) for n, token in enumerate(tokens) if n not in taken),
        bounds=None if kind is Kind.STRING else INT_RANGES[kind],
        picked=tuple(place for place in picked if place is not None),
    )


def _place(e: x.Expr, shape: TableShape) -> int | None:
    """Return where a page's row has a column; None: it is no column, or a row has none of it."""
    return dict(_places(shape)).get((e.side, e.name)) if isinstance(e, x.ColumnRef) else None


def _places(shape: TableShape) -> Iterator[tuple[tuple[x.Side, str], int]]:
    yield (x.Side.META, x.Meta.ROWTIME), 0
    if shape.window is not None:
        yield (x.Side.META, x.Meta.WINDOWSTART), 1
        yield (x.Side.META, x.Meta.WINDOWEND), 2
    for place, column in enumerate(shape.result_key, 3):
        yield (x.Side.KEY, column.name), place
    for place, column in enumerate(shape.value, 3 + len(shape.key)):
        yield (x.Side.VALUE, column.name), place
