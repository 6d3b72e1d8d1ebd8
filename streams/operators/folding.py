"""The content of an aggregate, state by state: what operators share that decide row by row which states a row meets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from logflume.log.schemas import Column as Field
from logflume.log.schemas import Kind

from .. import graph as g
from ..columns import Batch, Column
from ..columns.evaluate import Evaluation
from ..functions import results_of
from ..functions.arithmetic import wrap64
from ..functions.folds import Fold, MergeObjects, Reduce, is_sized
from ..seams import State
from .operator import Errors, Reporter


class Folding:
    """Aggregations over state tuples. None is no state: for a bare result whose state is None, and where there is no entry.

    Attributes:
        add: (state, a row's arguments, row, report) -> the state with them; what cannot be added is reported and left out.
        subtract: the same without them.
        merge: (state, other state, row, report) -> both in one; None is that of nothing, from which merging begins.
        result: state -> the result row, None for None.
    """

    def __init__(self, node: g.Aggregate | g.TableAggregate, aggregations: Sequence[g.Aggregation]) -> None:
        self._aggregations = tuple(aggregations)
        self._args = [Evaluation(x) for a in aggregations for x in a.args]
        self._result = results_of(self._aggregations)
        self._is_bare = g.is_bare(node.schema)
        self.initial: State = tuple(value for a in aggregations for value in a.aggregator.initial)
        self.add, self.subtract, self.merge = _functions(self._aggregations, self.initial, is_bare=self._is_bare)

    def columns(self, batch: Batch, errors: Errors) -> list[Column]:
        """Return the arguments of all aggregations, one after the other."""
        return [each.column(batch, errors.of(each)) for each in self._args]

    def arguments(self, batch: Batch, errors: Errors) -> list[tuple[Any, ...]]:
        """Return the arguments of each row, those of all aggregations one after the other."""
        lists = [column.objects() for column in self.columns(batch, errors)]
        return list(zip(*lists, strict=True)) if lists else [()] * len(batch)

    def result(self, state: State | None) -> State | None:
        """Return the result row of a state; None for none."""
        return None if state is None else self._result(state)

    def before_first(self) -> State | None:
        """Return the result of nothing, where it is not null."""
        return None if self._is_bare and self.initial[0] is None else self._result(self.initial)


Change = Callable[[State | None, Sequence[Any], int, Reporter], State | None]
Both = Callable[[State | None, State | None, int, Reporter], State | None]


def _functions(aggregations: Sequence[g.Aggregation], initial: State, *, is_bare: bool) -> tuple[Change, Change, Both]:
    """Return what adds, subtracts and merges: straight lines of Python, because most of the time of a row is spent in them."""
    parts = [a.aggregator for a in aggregations]

    def of_all() -> State:
        return tuple(value for x in parts for value in (x.initial if x.start is None else x.start()))

    only = parts[0].start if len(parts) == 1 else None
    start = of_all if only is None else only
    scope: dict[str, Any] = {"initial": initial, "start": start, "wrap64": wrap64, "is_sized": is_sized}
    lines: dict[str, list[str]] = {"add": [], "undo": [], "merge": []}
    at = arg = 0
    for i, (aggregation, x) in enumerate(zip(aggregations, parts, strict=True)):
        scope |= {f"add{i}": x.add, f"undo{i}": x.undo, f"merge{i}": x.merge}
        own, at = [f"s{at + k}" for k in range(len(x.state_columns))], at + len(x.state_columns)
        args, arg = [f"a{arg + k}" for k in range(len(aggregation.args))], arg + len(aggregation.args)
        for what in ("add", "undo"):
            lines[what] += step(x, f"{what}{i}", own, args)
        others = [f"o{name[1:]}" for name in own]
        merged = f"{', '.join(own)}, = merge{i}(({', '.join(own)},), ({', '.join(others)},))"
        if isinstance(x.merge, MergeObjects):  # the same as its call
            merged = f"s{at - 1} = o{at - 1} if s{at - 1} is None else s{at - 1} if o{at - 1} is None else "
            merged += f"merge{i}.function(s{at - 1}, o{at - 1})"
        lines["merge"] += _guarded(merged)
    states, others_ = (", ".join(f"{letter}{k}" for k in range(at)) + "," for letter in "so")
    made = f"({states})" if not is_bare else f"None if s0 is None else ({states})"
    text = "".join(
        f"def {what}(state, args, row, report):\n    {states} = initial if state is None else state\n"
        + (f"    {', '.join(f'a{k}' for k in range(arg))}, = args\n" if arg else "")
        + "".join(f"    {line}\n" for line in lines[what])
        + f"    return {made}\n"
        for what in ("add", "undo")
    )
    text += f"""
def merge(left, right, row, report):
    if right is None:
        return left
    if left is None and {all(map(_begins_at_nothing, parts))}:
        return right
    {states} = start() if left is None else left
    {others_} = right
{"".join(f"    {line}" + chr(10) for line in lines["merge"])}
    return ({states})
"""
    exec(compile(text, "<folding>", "exec"), scope)
    return scope["add"], scope["undo"], scope["merge"]


def _begins_at_nothing(aggregator: g.Aggregator) -> bool:
    """Return whether a state merged into that of nothing is known to be itself."""
    return aggregator.kernel in ("min", "max") or (aggregator.kernel is not None and None not in aggregator.initial)


_SIGNS = {"add": "+", "undo": "-"}


def step(aggregator: g.Aggregator, function: str, own: Sequence[str], args: Sequence[str], *, on_error: str = "") -> list[str]:
    """Return the lines that change the state of one aggregation, the variables `own`, by a row's arguments.

    `function`: the name of its `add` or `undo` ("add0", "undo3"); `on_error`: what follows a report.
    """
    guards = [f"{name} is not None" for name in args] if aggregator.skips_null else []
    indent = "    " if guards else ""
    head = [f"if {' and '.join(guards)}:"] if guards else []
    sign = _SIGNS[function.rstrip("0123456789")]
    state = aggregator.state_columns[0].type.kind
    if aggregator.kernel == "count":
        return [*head, f"{indent}{own[0]} {sign}= 1"]
    if aggregator.kernel == "sum" and aggregator.initial[0] is not None and state is Kind.BIGINT:
        wrap = f"{indent}if not {-(2**63)} <= {own[0]} < {2**63}:"
        return [*head, f"{indent}{own[0]} {sign}= {args[0]}", wrap, f"{indent}    {own[0]} = wrap64({own[0]})"]
    states = f"{', '.join(own)},"
    change = aggregator.add if sign == "+" else aggregator.undo
    lines = [f"{states} = {function}(({states}){''.join(', ' + name for name in args)})"]
    if isinstance(change, Reduce):  # saves a call and two tuples a row
        lines = [f"{own[0]} = {args[0]} if {own[0]} is None else {function}.function({own[0]}, {args[0]})"]
    elif isinstance(change, Fold):  # the same as its call, with less of it
        lines = [
            f"aggregate = {function}.start() if {own[0]} is None else {own[0]}",
            "size = len(aggregate) if is_sized(type(aggregate)) else 0",
            f"made = {function}.add({', '.join(['aggregate', *args])})",
            "if made is None:",
            f"    {function}.refuse_emptied(aggregate, size)",
            f"{own[0]} = made",
        ]
    elif aggregator.kernel == "sum" and aggregator.initial[0] is not None and state is Kind.DOUBLE:
        lines = [f"{own[0]} {sign}= {args[0]}"]
    return [*head, *(indent + line for line in _guarded(*lines, on_error=on_error))]


def _guarded(*lines: str, on_error: str = "") -> list[str]:
    rest = [f"    {on_error}"] if on_error else []
    return ["try:", *(f"    {line}" for line in lines), "except Exception as error:", "    report(row, error)", *rest]


def state_fields(node: g.Aggregate | g.TableAggregate) -> tuple[Field, ...]:
    """Return the columns of an aggregate's state in its store."""
    return tuple(
        Field(a.name if len(a.aggregator.state_columns) == 1 else f"{a.name}_{c.name}", c.type)
        for a in node.aggregations
        for c in a.aggregator.state_columns
    )
