"""The exact form of an expression: a Python function over the rows of a batch, given as one list per column.

What a row raises is reported with its place and gives null (False for a condition); the others are not concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import expr as e
from ..columns.batch import ColumnId
from .expressions import ExpressionWriter, Fragment, Namespace

Report = Callable[[int, Exception], None]
Rows = Callable[[Sequence[list[Any]], int, Report], list[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """An expression over rows. `run(columns, count, report)` takes the lists of `columns`, in that order."""

    columns: tuple[ColumnId, ...]
    run: Rows


def exact(expr: e.Expr, *, is_truth: bool = False) -> Exact:
    """Compile the exact form of an expression; of a condition it gives True or False, null counting as False."""
    namespace = Namespace()
    columns = tuple(sorted(e.columns_used(expr)))
    names = {column: f"c{i}" for i, column in enumerate(columns)}
    namespace.is_taken = lambda name: name in _RESERVED or name in names.values()

    def resolve(ref: e.ColumnRef) -> Fragment:
        return Fragment(names[ref.side, ref.name], is_nullable=True, is_atom=True)

    writer = ExpressionWriter(namespace)
    found = writer.predicate(expr, resolve) if is_truth else writer.value(expr, resolve)
    if not is_truth and isinstance(expr, e.ColumnRef):
        return Exact(columns, lambda lists, count, report: lists[0])
    scope = dict(namespace.values)
    exec(compile(_text(list(names.values()), found, is_truth), "<expression>", "exec"), scope)
    return Exact(columns, scope["run"])


_RESERVED = frozenset({"run", "columns", "count", "report", "row", "out", "add", "error", "zip", "range", "list", "Exception"})


def _text(names: list[str], found: Fragment, is_truth: bool) -> str:
    """Return the text of `run`."""
    if len(names) == 1:
        target, source = names[0], "columns[0]"
    elif names:
        target, source = ", ".join(names), "zip(*columns)"
    else:
        target, source = "_", "range(count)"
    lines = ["def run(columns, count, report):"]
    if not found.can_fail:
        return "\n".join([*lines, f"    return [{found.code} for {target} in {source}]\n"])
    lines += [
        "    out = []",
        "    add = out.append",
        f"    for {target} in {source}:",
        "        try:",
        f"            add({found.code})",
        "        except Exception as error:",
        "            report(len(out), error)",
        f"            add({'False' if is_truth else 'None'})",
        "    return out\n",
    ]
    return "\n".join(lines)
