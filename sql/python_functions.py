"""Functions of SQL written in Python: what `@scalar`, `@aggregate` and `@table` make of a function or a class.

    @scalar
    def area(width: float, height: float) -> float:
        \"\"\"The area of a rectangle.\"\"\"
        return width * height

Types are those of the annotations, or texts of the dialect in the decorator: the result's first, then the arguments'. A null
argument gives null without a call, unless its annotation allows None. A call that raises, or gives what is not of the result's
type, fails as a call of a function of logflume's own does. What is decorated stays as it is, and can be called and tested.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from logflume.log import InvalidInput
from logflume.log.schemas import DataType
from logflume.streams.functions import Pattern, Signature, State

from .python_types import Convert, is_whole, pattern_of, shown, to_column, to_python, type_of_hint, type_of_text
from .words import RESERVED

ATTRIBUTE = "__logflume_function__"
"""Of what is decorated: its `Declaration`."""

FunctionKind = Literal["scalar", "table", "aggregate"]
_Declared = TypeVar("_Declared", bound=Callable[..., Any])
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """A function as it was declared.

    Attributes:
        name: as SQL writes it.
        signatures: one for each number of arguments that it takes.
        takes_null: it is called with nulls too.
        calls: over values of columns, by part: "call", or of an aggregate "add", "result" and perhaps "merge" and "undo".
        type: of the result; of a table function, of one row.
        state: types of an aggregate's state, and what it begins with.
    """

    kind: FunctionKind
    name: str
    doc: str
    signatures: tuple[Signature, ...]
    takes_null: bool
    calls: Mapping[str, Callable[..., Any]]
    type: DataType
    state: tuple[DataType, ...] = ()
    initial: State = ()


@overload
def scalar(result: _Declared, /) -> _Declared: ...
@overload
def scalar(result: str | None = None, /, *arguments: str, name: str | None = None) -> Callable[[_Declared], _Declared]: ...
def scalar(result: Any = None, /, *arguments: str, name: str | None = None) -> Any:
    """Declare a function that gives one value for each call."""
    return _decorator(result, lambda function, text: _over_values("scalar", function, text, arguments, name))


@overload
def table(result: _Declared, /) -> _Declared: ...
@overload
def table(result: str | None = None, /, *arguments: str, name: str | None = None) -> Callable[[_Declared], _Declared]: ...
def table(result: Any = None, /, *arguments: str, name: str | None = None) -> Any:
    """Declare a function that gives several rows for each call: a list, or what yields them. `result` is the type of one."""
    return _decorator(result, lambda function, text: _over_values("table", function, text, arguments, name))


@overload
def aggregate(result: _Declared, /) -> _Declared: ...
@overload
def aggregate(
    result: str | None = None, /, *arguments: str, state: str | None = None, name: str | None = None
) -> Callable[[_Declared], _Declared]: ...
def aggregate(result: Any = None, /, *arguments: str, state: str | None = None, name: str | None = None) -> Any:
    """Declare an aggregate: a class with `start`, its state of nothing, and static methods.

    `add(state, *values)` gives the next state; `result(state)` the result, where that is not the state; `merge(state, state)`, of
    session windows and partial aggregates; `undo(state, *values)` takes out again, so that it works over tables. The state is
    stored: its type is that of the first argument of `add`, a tuple of types being several columns, or `state`.
    """
    return _decorator(result, lambda made, text: _over_states(made, text, arguments, state, name))


def _decorator(result: Any, declare: Callable[[Any, str | None], Declaration]) -> Any:
    """Return what is decorated, or where the decorator has arguments what decorates."""

    def decorated(made: Any, text: str | None = None) -> Any:
        setattr(made, ATTRIBUTE, declare(made, text))
        return made

    return (lambda made: decorated(made, result)) if result is None or isinstance(result, str) else decorated(result)


# ------------------------------------------------------------------------------------------------ what is declared


@dataclass(frozen=True, slots=True)
class _Parameter:
    type: DataType
    is_nullable: bool
    has_default: bool
    is_variadic: bool
    convert: Convert


def _over_values(kind: FunctionKind, function: Any, text: str | None, arguments: Sequence[str], name: str | None) -> Declaration:
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise InvalidInput(f"@{kind} is for a plain function, found {function!r}")
    sql_name = _sql_name(function, name)
    hints = _hints(function)
    parameters = _parameters(function, hints, arguments)
    returned = hints.get("return")
    type = _type(
        text, _row_hint(returned, sql_name) if kind == "table" and text is None else returned, f"the result of {sql_name}"
    )[0]
    made = to_column(type, "the result")
    give = made if kind == "scalar" else lambda rows: None if rows is None else [made(row) for row in rows]
    required = sum(not each.has_default for each in parameters)
    counts = [len(parameters)] if required == len(parameters) else range(required, len(parameters) + 1)
    takes_null = any(each.is_nullable for each in parameters)

    def call(*values: Any) -> Any:
        given = _given(parameters, values)
        return None if given is None else give(function(*given))

    signatures = tuple(_signature(parameters[:count], type) for count in counts)
    return Declaration(kind, sql_name, _doc(function), signatures, takes_null, {"call": call}, type)


def _over_states(made: Any, text: str | None, arguments: Sequence[str], state: str | None, name: str | None) -> Declaration:
    sql_name = _sql_name(made, name)
    add = getattr(made, "add", None)
    if not inspect.isclass(made) or not inspect.isfunction(add) or not hasattr(made, "start"):
        raise InvalidInput(f"@aggregate is for a class with `start` and a static method `add(state, value)`, found {made!r}")
    hints = _hints(add)
    parameters = _parameters(add, hints, arguments, skipped=1)
    if any(each.has_default or each.is_variadic for each in parameters):
        raise InvalidInput(f"{sql_name}.add takes a state and a fixed number of values, without defaults")
    first = hints.get(next(iter(inspect.signature(add).parameters), ""))
    is_tuple = state is None and typing.get_origin(first) is tuple
    where = f"the state of {sql_name}"
    parts = [_type(None, each, where) for each in typing.get_args(first)] if is_tuple else [_type(state, first, where)]
    load = [to_python(type, where) for type, _ in parts]
    keep = [_kept(type, is_nullable, where) for type, is_nullable in parts]

    def loaded(columns: State) -> Any:
        values = tuple(convert(value) for convert, value in zip(load, columns, strict=True))
        return values if is_tuple else values[0]

    def kept(value: Any) -> State:
        if is_tuple and not isinstance(value, tuple):
            raise TypeError(f"{where} is a tuple of {len(keep)}, found {shown(value)}")
        return tuple([convert(part) for convert, part in zip(keep, value if is_tuple else (value,), strict=True)])

    def change(function: Callable[..., Any]) -> Callable[..., State]:
        def changed(columns: State, *values: Any) -> State:
            given = _given(parameters, values)
            return columns if given is None else kept(function(loaded(columns), *given))

        return changed

    result = getattr(made, "result", None)
    if result is None and is_tuple:
        raise InvalidInput(f"{sql_name} has a state of {len(parts)} parts: a static method `result(state)` has to make one value")
    returned = _hints(result).get("return") if result is not None else None
    type = parts[0][0] if result is None and text is None else _type(text, returned, f"the result of {sql_name}")[0]
    out = to_column(type, "the result")
    calls: dict[str, Callable[..., Any]] = {"add": change(add)}
    calls["result"] = lambda columns: out(loaded(columns) if result is None else result(loaded(columns)))
    if (merge := getattr(made, "merge", None)) is not None:
        calls["merge"] = lambda left, right: kept(merge(loaded(left), loaded(right)))
    if (undo := getattr(made, "undo", None)) is not None:
        calls["undo"] = change(undo)
    try:
        initial = kept(made.start)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{sql_name}.start: {error}") from None
    takes_null = any(each.is_nullable for each in parameters)
    signature = _signature(parameters, type)
    types = tuple(each for each, _ in parts)
    return Declaration("aggregate", sql_name, _doc(made), (signature,), takes_null, calls, type, types, initial)


def _given(parameters: Sequence[_Parameter], values: Sequence[Any]) -> list[Any] | None:
    """Return the arguments of a call as Python has them; None: one is null that may not be."""
    given = []
    for index, value in enumerate(values):
        parameter = parameters[min(index, len(parameters) - 1)]
        if value is None and not parameter.is_nullable:
            return None
        given.append(parameter.convert(value))
    return given


def _kept(type: DataType, is_nullable: bool, where: str) -> Convert:
    """Return `to_column` of a part of a state, which may be null only where it says so: a forgotten `return` is told."""
    convert = to_column(type, where)

    def checked(value: Any) -> Any:
        if value is None and not is_nullable:
            raise TypeError(f"{where} became None, which its type does not allow")
        return convert(value)

    return checked


def _parameters(function: Any, hints: Mapping[str, Any], texts: Sequence[str], *, skipped: int = 0) -> tuple[_Parameter, ...]:
    """Return the parameters of a function behind the first `skipped` ones."""
    found = list(inspect.signature(function).parameters.values())[skipped:]
    if len(texts) > len(found):
        raise InvalidInput(f"{function.__name__} has {len(found)} arguments, found {len(texts)} types for them")
    parameters = []
    for index, each in enumerate(found):
        where = f"{function.__name__}({each.name})"
        is_variadic = each.kind is inspect.Parameter.VAR_POSITIONAL
        if not is_variadic and each.kind not in _POSITIONAL:
            raise InvalidInput(f"{where}: SQL gives arguments by position, not by name")
        type, is_nullable = _type(texts[index] if index < len(texts) else None, hints.get(each.name), where, is_result=False)
        has_default = each.default is not inspect.Parameter.empty
        parameters.append(_Parameter(type, is_nullable, has_default, is_variadic, to_python(type, where)))
    if any(each.is_variadic for each in parameters) and any(each.has_default for each in parameters):
        raise InvalidInput(f"{function.__name__}: defaults do not go with arguments of any number")
    return tuple(parameters)


def _type(text: str | None, hint: Any, where: str, *, is_result: bool = True) -> tuple[DataType, bool]:
    """Return the type that a text or else an annotation means, and whether the annotation allows None."""
    if text is None and hint is None:
        raise InvalidInput(f"{where} has no type: annotate it, or give a type of SQL in the decorator")
    is_nullable = type(None) in typing.get_args(hint)
    found = type_of_hint(hint, where)[0] if text is None else type_of_text(text)
    if is_result and not is_whole(found):
        raise InvalidInput(f"{where}: a Decimal needs its digits: give its type as text in the decorator, 'DECIMAL(10, 2)' say")
    return found, is_nullable


def _row_hint(hint: Any, name: str) -> Any:
    """Return the annotation of one row of what a table function gives."""
    args = typing.get_args(hint)
    if not args or typing.get_origin(hint) is dict:
        raise InvalidInput(f"the result of {name} is many rows: expected list[...] or Iterator[...], found {hint!r}")
    return args[0]


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidInput(
            f"{function.__name__}: an annotation means no type ({error}); a type of SQL is given as text in the decorator"
        ) from None


def _signature(parameters: Sequence[_Parameter], result: DataType) -> Signature:
    variadic = next((index for index, each in enumerate(parameters) if each.is_variadic), None)
    return Signature(tuple(pattern_of(each.type) for each in parameters), variadic, Pattern("type", result))


def _sql_name(made: Any, name: str | None) -> str:
    found = name or str(made.__name__)
    if not _NAME.fullmatch(found) or found.upper() in RESERVED:
        raise InvalidInput(f"{found!r} cannot be the name of a function in SQL: expected letters, digits and _, and no keyword")
    return found.upper()


def _doc(made: Any) -> str:
    return (inspect.getdoc(made) or "").partition("\n")[0]
