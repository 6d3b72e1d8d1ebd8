"""What names mean at one place of a query: columns of its sources and pseudo-columns; near matches for those that are neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logflume.log import near_matches
from logflume.log.schemas import BIGINT, INTEGER, DataType
from logflume.sql import ast
from logflume.sql.errors import StatementError
from logflume.sql.format import expression_text, name_text
from logflume.sql.tree import rewrite
from logflume.streams.expr import ColumnRef, Expr, Meta, Side

PSEUDO_COLUMNS = {Meta.ROWTIME: BIGINT, Meta.ROWPARTITION: INTEGER, Meta.ROWOFFSET: BIGINT}
WINDOW_COLUMNS = {Meta.WINDOWSTART: BIGINT, Meta.WINDOWEND: BIGINT}
RESERVED_COLUMNS = frozenset([*PSEUDO_COLUMNS, *WINDOW_COLUMNS])


@dataclass(frozen=True, slots=True)
class Visible:
    """A column that a name can mean: `expr` reads it from the edge at hand. `is_pseudo`: not part of SELECT *."""

    source: str
    name: str
    expr: Expr
    is_key: bool = False
    is_pseudo: bool = False

    @property
    def type(self) -> DataType:
        return self.expr.type

    @property
    def ast_name(self) -> ast.Name:
        return ast.Name(self.name, self.source)


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns that can be named, in order."""

    columns: tuple[Visible, ...]

    @property
    def aliases(self) -> list[str]:
        return list(dict.fromkeys(c.source for c in self.columns if c.source))

    @property
    def is_joined(self) -> bool:
        return len(self.aliases) > 1

    def find(self, name: ast.Name) -> Visible | None:
        """Return the column, None when there is none. Raises StatementError when several sources have it."""
        found = [c for c in self.columns if c.name == name.name and name.source in (None, c.source)]
        if len(found) > 1:
            choices = " or ".join(f"{c.source}.{c.name}" for c in found)
            raise StatementError(f"Column '{name_text(name.name)}' is ambiguous. Could be {choices}.", name.span)
        return found[0] if found else None

    def resolve(self, name: ast.Name, clause: str) -> Visible:
        """Return the column.

        Raises:
            StatementError: unknown, with near matches, or ambiguous.
        """
        found = self.find(name)
        if found is None:
            raise StatementError(self._unknown(name, clause), name.span)
        return found

    def _unknown(self, name: ast.Name, clause: str) -> str:
        shown = expression_text(name)
        reason = f"{clause} column '{shown}' cannot be resolved."
        if clause == "PARTITION BY":
            reason += f" '{shown}' must be a column in the source schema since PARTITION BY is applied on the input."
        if name.source is not None and name.source not in self.aliases:
            return (
                f"{reason} '{name.source}' is not a valid stream/table name or alias. This query reads {', '.join(self.aliases)}."
            )
        names = [c.name for c in self.columns if name.source in (None, c.source)]
        near = near_matches(name.name, names)
        if near:
            return f"{reason} Did you mean {' or '.join(map(name_text, near))}?"
        is_long = self.is_joined and name.source is None
        columns = [c for c in self.columns if not c.is_pseudo and name.source in (None, c.source)]
        known = ", ".join(f"{c.source}.{name_text(c.name)}" if is_long else name_text(c.name) for c in columns)
        if clause == "VALUES":
            return f"Unsupported column reference in insert value: {shown}. Write a literal, or a function of literals."
        if not known:
            return f"{reason} There are no columns here: write a literal, or a function of literals."
        text = f" Text is written in single quotes: '{name.name}'." if shown.startswith("`") and name.source is None else ""
        return f"{reason}{text} The columns are {known}."

    def of_source(self, alias: str, span: ast.Span) -> list[Visible]:
        """Return the columns that `alias.*` stands for."""
        if alias not in self.aliases:
            raise StatementError(
                f"'{alias}' is not a valid stream/table name or alias. This query reads {', '.join(self.aliases)}.", span
            )
        return [c for c in self.columns if c.source == alias and not c.is_pseudo]

    def shown(self, e: ast.Expression) -> ast.Expression:
        """Return an expression as messages show it: bare names, or SOURCE_NAME behind a join."""

        def change(node: ast.Expression) -> ast.Expression | None:
            if isinstance(node, ast.Name) and node.source:
                return ast.Name(f"{node.source}_{node.name}" if self.is_joined else node.name)
            return None

        return rewrite(e, change)

    def plain(self) -> list[Visible]:
        """Return the columns that * stands for."""
        return [c for c in self.columns if not c.is_pseudo]


def pseudo_columns(alias: str, *, is_windowed: bool) -> Sequence[Visible]:
    """Return ROWTIME, ROWPARTITION, ROWOFFSET, and the window bounds where there are windows."""
    wanted = {**PSEUDO_COLUMNS, **(WINDOW_COLUMNS if is_windowed else {})}
    return [Visible(alias, meta.value, ColumnRef(Side.META, meta.value, type), is_pseudo=True) for meta, type in wanted.items()]
