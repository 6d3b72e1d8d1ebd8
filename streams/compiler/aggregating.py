"""How aggregate states change: inlined for the standard functions on numbers, a call of `add` for all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from logflume.log.schemas import Kind

from .. import graph as g
from ..expr import Side
from ..functions import arithmetic
from ..functions.aggregate import first
from ..functions.folds import Fold, Reduce
from ..functions.totals import mean_of
from .expressions import Fragment, identifier
from .flow import ColumnId
from .generator import Generator

_INLINE_KINDS = (Kind.BIGINT, Kind.DOUBLE)


def new_state(
    generator: Generator, node: g.Aggregate, states: list[list[str]], args: list[list[Fragment]], *, is_first: bool
) -> None:
    """Write the new state of each aggregation into its locals; with `is_first` they start from the initial state."""
    for aggregation, names, values in zip(node.aggregations, states, args, strict=True):
        aggregator = aggregation.aggregator
        inline = _INLINE.get(aggregator.kernel or "")
        if inline is not None and all(c.type.kind in _INLINE_KINDS for c in aggregator.state_columns if c.name != "count"):
            inline(generator, aggregator, names, values, is_first)
        else:
            _call(generator, node, aggregation, names, values, is_first)


def _start(generator: Generator, aggregator: g.Aggregator, names: list[str]) -> None:
    for name, value in zip(names, aggregator.initial, strict=True):
        generator.writer.line(f"{name} = {constant(generator, value)}")


def constant(generator: Generator, value: object) -> str:
    """Return a start value as text."""
    if value is None or value.__class__ in (int, float, str, bool):
        return repr(value)
    return generator.namespace.add("initial", value)


def _count(generator: Generator, aggregator: g.Aggregator, names: list[str], args: list[Fragment], is_first: bool) -> None:
    writer = generator.writer
    nullable = [f"{a.code} is not None" for a in args if a.is_nullable]
    if is_first:
        writer.line(f"{names[0]} = {f'1 if {nullable[0]} else 0' if nullable else '1'}")
    elif nullable:
        with writer.block(f"if {nullable[0]}:"):
            writer.line(f"{names[0]} += 1")
    else:
        writer.line(f"{names[0]} += 1")


def _sum(generator: Generator, aggregator: g.Aggregator, names: list[str], args: list[Fragment], is_first: bool) -> None:
    _guarded(generator, aggregator, names, args[0], is_first, lambda: _add(generator, aggregator, names[0], args[0], is_first))


def _mean(generator: Generator, aggregator: g.Aggregator, names: list[str], args: list[Fragment], is_first: bool) -> None:
    def change() -> None:
        _add(generator, aggregator, names[0], args[0], is_first)
        generator.writer.line(f"{names[1]} = 1" if is_first else f"{names[1]} += 1")

    _guarded(generator, aggregator, names, args[0], is_first, change)


def _add(generator: Generator, aggregator: g.Aggregator, name: str, arg: Fragment, is_first: bool) -> None:
    writer = generator.writer
    initial = aggregator.initial[0]
    type = aggregator.state_columns[0].type
    if is_first:
        writer.line(f"{name} = {initial!r} + {arg.code}" if initial is not None else f"{name} = {arg.code}")
    elif initial is None:
        writer.line(f"{name} = {arg.code} if {name} is None else {name} + {arg.code}")
    else:
        writer.line(f"{name} += {arg.code}")
    if type.kind is Kind.BIGINT and not is_first:
        wrap = generator.namespace.add("wrap64", arithmetic.wrap64)
        with writer.block(f"if not {-(2**63)} <= {name} <= {2**63 - 1}:"):
            writer.line(f"{name} = {wrap}({name})")


Change = Callable[[Generator, g.Aggregator, list[str], list[Fragment], bool], None]


def _extreme(symbol: str) -> Change:
    def write(generator: Generator, aggregator: g.Aggregator, names: list[str], args: list[Fragment], is_first: bool) -> None:
        name, arg = names[0], args[0]
        if is_first:
            generator.writer.line(f"{name} = {arg.code}")
            return
        test = f"{name} is None or {arg.code} {symbol} {name}"
        if arg.is_nullable:
            test = f"{arg.code} is not None and ({test})"
        with generator.writer.block(f"if {test}:"):
            generator.writer.line(f"{name} = {arg.code}")

    return write


def _guarded(
    generator: Generator, aggregator: g.Aggregator, names: list[str], arg: Fragment, is_first: bool, change: Callable[[], None]
) -> None:
    """Write the change for a value that is not null; a null one leaves the state."""
    writer = generator.writer
    if not arg.is_nullable:
        change()
        return
    if is_first:
        with writer.block(f"if {arg.code} is None:"):
            _start(generator, aggregator, names)
        with writer.block("else:"):
            change()
    else:
        with writer.block(f"if {arg.code} is not None:"):
            change()


def is_fold(aggregator: g.Aggregator) -> bool:
    """Return whether a plain callable changes the state: what that raises drops the record."""
    return isinstance(aggregator.add, Fold | Reduce)


def _call(
    generator: Generator, node: g.Aggregate, aggregation: g.Aggregation, names: list[str], args: list[Fragment], is_first: bool
) -> None:
    """Write a call of `add`; what it raises is reported and leaves the state as it was."""
    writer, aggregator = generator.writer, aggregation.aggregator
    add = generator.namespace.add(f"add_{identifier(aggregation.name)}", aggregator.add)
    if is_first:
        _start(generator, aggregator, names)
    targets = f"{', '.join(names)}{',' if len(names) == 1 else ''}"
    nullable = [f"{a.code} is not None" for a in args if a.is_nullable] if aggregator.skips_null else []
    if nullable:
        writer.line(f"if {' and '.join(nullable)}:")
        writer.depth += 1
    with writer.block("try:"):
        writer.line(f"{targets} = {add}(({', '.join(names)},){''.join(', ' + a.code for a in args)})")
    with writer.block("except Exception as error:"):
        generator.report_failure(node.name, is_callable=is_fold(aggregator))
    if nullable:
        writer.depth -= 1


def results(generator: Generator, node: g.Aggregate, states: list[list[str]]) -> dict[ColumnId, Fragment]:
    """Return the result of each aggregation from its state locals."""
    found: dict[ColumnId, Fragment] = {}
    for aggregation, names in zip(node.aggregations, states, strict=True):
        aggregator = aggregation.aggregator
        nullable = aggregator.initial[0] is None
        if aggregator.result is first:
            fragment = Fragment(names[0], is_nullable=nullable, is_atom=True)
        else:
            target = generator.writer.local(identifier(aggregation.name))
            if aggregator.result is mean_of:
                code = Fragment(f"{names[0]} / {names[1]} if {names[1]} else None")
            else:
                result = generator.namespace.add(f"result_{identifier(aggregation.name)}", aggregator.result)
                code = Fragment(f"{result}(({', '.join(names)},))", can_fail=True)
            generator.fallible(target, code, node.name)
            fragment = Fragment(target, is_atom=True)
        found[Side.VALUE, aggregation.name] = fragment
    return found


_INLINE: Mapping[str, Change] = MappingProxyType(
    {"count": _count, "sum": _sum, "mean": _mean, "min": _extreme("<"), "max": _extreme(">")}
)
