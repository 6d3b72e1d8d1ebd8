"""Typed objects as rows: columns from a msgspec.Struct, dataclass, TypedDict, NamedTuple or Pydantic class, and back.

| Python | column |
|---|---|
| bool, int, float, str, bytes | BOOLEAN, BIGINT, DOUBLE, STRING, BYTES |
| decimal.Decimal | DECIMAL(38, 9); another one by `Annotated[Decimal, decimal(10, 2)]` |
| datetime, date, time | TIMESTAMP (naive is taken as UTC, read back aware), DATE, TIME |
| list[T], dict[str, T] | ARRAY, MAP |
| tuple[T, ...], set[T], frozenset[T] | ARRAY |
| an Enum | its values' type: STRING or BIGINT |
| uuid.UUID | STRING |
| another such class | STRUCT |
| X or None, Optional[X] | the type of X: every column may be null |
| Literal of strings | STRING |
| Any, and unions | ANY |

`Annotated[T, <DataType>]` names the column type itself, e.g. `Annotated[int, INTEGER]`.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal as decimal_module
import enum
import types
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from logflume.log.errors import InvalidInput

from .serdes import Row
from .types import (
    ANY,
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    Kind,
    array,
    decimal,
    map_of,
    struct,
)

Convert = Callable[[Any], Any]

_PLAIN: dict[Any, DataType] = {
    bool: BOOLEAN,
    int: BIGINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
    decimal_module.Decimal: decimal(38, 9),
    datetime.datetime: TIMESTAMP,
    datetime.date: DATE,
    datetime.time: TIME,
    Any: ANY,
    object: ANY,
    list: ANY,
    dict: ANY,
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ClassField:
    """A field of a class, and its column.

    Attributes:
        to_column, from_column: between values of the field and of the column; None: they are the same.
        is_nullable: whether None is among its values.
        may_be_absent: whether it has a default, or is a key that a TypedDict may lack.
        default: None too where there is none.
        make_default: what makes a default for each object; None: all have the same.
    """

    name: str
    hint: Any
    type: DataType
    to_column: Convert | None
    from_column: Convert | None
    is_nullable: bool
    may_be_absent: bool
    default: Any
    make_default: Callable[[], Any] | None


@dataclass(frozen=True, slots=True)
class ObjectCodec:
    """Objects of one class as rows. `to_row` and `from_row` map None to None; `from_columns` makes the objects of whole columns.

    In `from_row` a null goes to the field's default when the field has one and does not allow None.
    """

    type: type[Any]
    columns: tuple[Column, ...]
    to_row: Callable[[Any], Row | None]
    from_row: Callable[[Row | None], Any]
    from_columns: Callable[[list[list[Any]]], list[Any]]


def columns_of(cls: type[Any]) -> tuple[Column, ...]:
    """Return the columns of a class, in the order of its fields.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Flight:
    ...     carrier: str
    ...     dep_delay: float | None = None
    >>> [f"{c.name} {c.type}" for c in columns_of(Flight)]
    ['carrier STRING', 'dep_delay DOUBLE']
    """
    return tuple(Column(field.name, field.type) for field in class_fields(cls))


def object_codec(cls: type[Any]) -> ObjectCodec:
    """Return the conversion between objects of the class and rows of `columns_of(cls)`.

    >>> import msgspec
    >>> class Airline(msgspec.Struct):
    ...     carrier: str
    ...     name: str
    >>> codec = object_codec(Airline)
    >>> codec.to_row(Airline("AA", "American"))
    ('AA', 'American')
    >>> codec.from_row(("AA", None))
    Airline(carrier='AA', name=None)
    """
    fields = class_fields(cls)
    from_row = _object_maker(cls, fields)
    return ObjectCodec(cls, columns_of(cls), _row_maker(cls, fields), from_row, _objects_maker(cls, fields, from_row))


def required_fields(cls: type[Any]) -> frozenset[str]:
    """Return the names of the fields that have neither a default nor None among their values."""
    return frozenset(field.name for field in class_fields(cls) if not (field.may_be_absent or field.is_nullable))


def is_object_class(cls: Any) -> bool:
    """Return whether the class has named, typed fields: Struct, dataclass, TypedDict, NamedTuple or Pydantic model."""
    if not isinstance(cls, type):
        return False
    is_record = issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls) or typing.is_typeddict(cls)
    return is_record or hasattr(cls, "_fields") or is_model_class(cls)


def has_named_tuples(hint: Any) -> bool:
    """Return whether values of a type may hold NamedTuples that it names."""
    if any(has_named_tuples(arg) for arg in typing.get_args(hint)):
        return True
    if not is_object_class(hint):
        return False
    return hasattr(hint, "_fields") or any(has_named_tuples(field.hint) for field in class_fields(hint))


def is_model_class(cls: type[Any]) -> bool:
    """Return whether the class is a Pydantic model; Pydantic itself is not needed to know."""
    return isinstance(getattr(cls, "model_fields", None), dict) and hasattr(cls, "model_validate")


def class_fields(cls: type[Any]) -> tuple[ClassField, ...]:
    """Return the fields of a class, in order. Raises InvalidInput: it has none, or one that no column fits."""
    if not is_object_class(cls):
        raise InvalidInput(f"expected a msgspec.Struct, dataclass, TypedDict, NamedTuple or Pydantic class, found {cls!r}")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"{cls.__name__}: a field's type cannot be resolved: {error}; define it at module level") from None
    defaults = _defaults(cls, hints)
    names = tuple(hints)
    if issubclass(cls, msgspec.Struct):
        names = cls.__struct_fields__
    elif is_model_class(cls):
        names = tuple(cls.model_fields)
    elif dataclasses.is_dataclass(cls):
        names = tuple(field.name for field in dataclasses.fields(cls))
    if not names:
        raise InvalidInput(f"{cls.__name__} has no fields")
    return tuple(_field(name, hints[name], defaults, f"{cls.__name__}.{name}") for name in names)


def _defaults(cls: type[Any], hints: dict[str, Any]) -> dict[str, tuple[Any, Callable[[], Any] | None]]:
    """Return the default of each field that may be absent, or what makes one."""
    if issubclass(cls, msgspec.Struct):
        return {
            f.name: _default(f.default, f.default_factory, msgspec.NODEFAULT)
            for f in msgspec.structs.fields(cls)
            if not f.required
        }
    if dataclasses.is_dataclass(cls):
        none, found = dataclasses.MISSING, dataclasses.fields(cls)
        with_default = [f for f in found if f.default is not none or f.default_factory is not none]
        return {f.name: _default(f.default, f.default_factory, none) for f in with_default}
    if is_model_class(cls):
        return {name: _model_default(field) for name, field in cls.model_fields.items() if not field.is_required()}
    if typing.is_typeddict(cls):
        return {name: (None, None) for name, hint in hints.items() if _may_be_absent(cls, name, hint)}
    return {name: (value, None) for name, value in getattr(cls, "_field_defaults", {}).items()}


def _default(default: Any, factory: Any, none: Any) -> tuple[Any, Callable[[], Any] | None]:
    if default is none:
        return None, factory
    return (None if default is msgspec.UNSET else default), None


def _model_default(field: Any) -> tuple[Any, Callable[[], Any] | None]:
    if field.default_factory is None:
        return field.default, None
    return None, partial(field.get_default, call_default_factory=True, validated_data={})


def _may_be_absent(cls: Any, name: str, hint: Any) -> bool:
    """Return whether a TypedDict may lack a key: what it says of that itself does not know hints that are written as text."""
    said = typing.get_origin(hint)
    return said is typing.NotRequired or (name in cls.__optional_keys__ and said is not typing.Required)


def _field(name: str, hint: Any, defaults: dict[str, tuple[Any, Callable[[], Any] | None]], where: str) -> ClassField:
    type, to_column, from_column = column_of_hint(hint, where)
    default, make = defaults.get(name, (None, None))
    return ClassField(name, hint, type, to_column, from_column, _is_nullable(hint), name in defaults, default, make)


def _is_nullable(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired):
        return _is_nullable(typing.get_args(hint)[0])
    return hint is Any or hint is None or types.NoneType in typing.get_args(hint)


def column_of_hint(hint: Any, where: str) -> tuple[DataType, Convert | None, Convert | None]:
    """Return the column type of a type hint and the conversions to and from its values (None: the value is the column value).

    `where` is told in errors. Raises InvalidInput: there is no column type for it.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, dict) and not args:  # typing's List and Dict alone
        return column_of_hint(origin, where)
    if origin in (typing.Required, typing.NotRequired):
        return column_of_hint(args[0], where)
    if origin is typing.Annotated:
        named = next((a for a in args[1:] if isinstance(a, DataType)), None)
        inferred = column_of_hint(args[0], where)
        return inferred if named is None else _named(named, inferred)
    if origin in (typing.Union, types.UnionType):
        rest = [a for a in args if a is not types.NoneType]
        return column_of_hint(rest[0], where) if len(rest) == 1 else (ANY, None, None)
    if origin is typing.Literal and all(isinstance(a, str) for a in args):
        return STRING, None, None
    if origin is list:
        element, to, back = column_of_hint(args[0], f"{where}[]")
        return array(element), _each(to), _each(back)
    if origin in (tuple, set, frozenset) and args and (origin is not tuple or args[1:] == (...,)):
        element, to, back = column_of_hint(args[0], f"{where}[]")
        return array(element), _each(to) or list, _into(origin, _each(back))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _members(hint, where)
    if hint is uuid.UUID:
        return STRING, str, uuid.UUID
    if origin is dict:
        if args[0] is not str:
            raise InvalidInput(f"{where}: keys of a map must be str, found {args[0]!r}")
        element, to, back = column_of_hint(args[1], f"{where}{{}}")
        return map_of(STRING, element), _each_value(to), _each_value(back)
    if hint in (datetime.datetime, datetime.date, datetime.time):
        return _PLAIN[hint], *_TIMES[hint]
    if hint is decimal_module.Decimal:
        return _named(_PLAIN[hint], (ANY, None, None))
    if hint in _PLAIN:
        return _PLAIN[hint], None, None
    if is_object_class(hint):
        return _nested(hint)
    raise InvalidInput(f"{where}: no column type for {hint!r}; use Any, or Annotated[..., <column type>]")


def _named(
    type: DataType, inferred: tuple[DataType, Convert | None, Convert | None]
) -> tuple[DataType, Convert | None, Convert | None]:
    if type.kind is not Kind.DECIMAL:
        return type, inferred[1], inferred[2]
    from .coerce import fit_decimal, shortest_decimal

    return (
        type,
        lambda value: fit_decimal(decimal_module.Decimal(value), type, str(type)),
        lambda value: decimal_module.Decimal(shortest_decimal(value)),
    )


def _nested(cls: type[Any]) -> tuple[DataType, Convert, Convert]:
    codec = object_codec(cls)
    names = [column.name for column in codec.columns]

    def to(value: Any) -> Any:
        row = codec.to_row(value)
        return None if row is None else dict(zip(names, row, strict=True))

    return struct(*codec.columns), to, lambda value: codec.from_row(tuple(value.get(name) for name in names))


def _members(cls: type[enum.Enum], where: str) -> tuple[DataType, Convert, Convert]:
    """An Enum goes by the values of its members, which are of one type."""
    kinds = {type(member.value) for member in cls}
    found = {frozenset({str}): STRING, frozenset({int}): BIGINT}.get(frozenset(kinds))
    if found is None:
        raise InvalidInput(f"{where}: the members of {cls.__name__} must have text or whole numbers as values")
    return found, (lambda value: cls(value).value), cls


def _into(cls: type[Any], convert: Convert | None) -> Convert:
    return cls if convert is None else (lambda items: cls(convert(items)))


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: [None if item is None else convert(item) for item in items]


def _each_value(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda items: {key: None if item is None else convert(item) for key, item in items.items()}


def _timestamp_ms(value: datetime.datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // _MILLISECOND


def _time_ms(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def _time_of(ms: int) -> datetime.time:
    return (datetime.datetime.min + ms * _MILLISECOND).time()


_TIMES: dict[Any, tuple[Convert, Convert]] = {
    datetime.datetime: (_timestamp_ms, lambda ms: _EPOCH + ms * _MILLISECOND),
    datetime.date: (lambda day: day.toordinal() - _EPOCH_DAY, lambda days: datetime.date.fromordinal(days + _EPOCH_DAY)),
    datetime.time: (_time_ms, _time_of),
}


def _row_maker(cls: type[Any], fields: tuple[ClassField, ...]) -> Callable[[Any], Row | None]:
    names = [field.name for field in fields]
    converts = [(i, field.to_column) for i, field in enumerate(fields) if field.to_column is not None]
    take: Callable[[Any], Row]
    if typing.is_typeddict(cls):
        take = lambda value: tuple([value.get(name) for name in names])  # noqa: E731
    elif issubclass(cls, msgspec.Struct):
        take = msgspec.structs.astuple
    else:
        take = lambda value: tuple([getattr(value, name) for name in names])  # noqa: E731

    def to_row(value: Any) -> Row | None:
        if value is None:
            return None
        row = take(value)
        if not converts:
            return row
        out = list(row)
        for i, convert in converts:
            if out[i] is not None:
                out[i] = convert(out[i])
        return tuple(out)

    return to_row


def _object_maker(cls: type[Any], fields: tuple[ClassField, ...]) -> Callable[[Row | None], Any]:
    names = [field.name for field in fields]
    converts = [(i, field.from_column) for i, field in enumerate(fields) if field.from_column is not None]
    optional = [i for i, field in enumerate(fields) if field.may_be_absent and not field.is_nullable]
    is_by_name, make = _takes_names(cls, fields), cls
    if is_model_class(cls):
        make = lambda **values: cls.model_validate(values, by_name=True)  # type: ignore[assignment]  # noqa: E731

    def converted(row: Row) -> list[Any]:
        out = list(row)
        for i, convert in converts:
            if out[i] is not None:
                out[i] = convert(out[i])
        return out

    def from_row(row: Row | None) -> Any:
        if row is None:
            return None
        values = converted(row) if converts else row
        if is_by_name or (optional and any(values[i] is None for i in optional)):
            skip = {i for i in optional if values[i] is None}
            return make(**{name: value for i, (name, value) in enumerate(zip(names, values, strict=True)) if i not in skip})
        return cls(*values)

    return from_row


def _takes_names(cls: type[Any], fields: tuple[ClassField, ...]) -> bool:
    """Return whether a class takes its fields by name only."""
    names = tuple(field.name for field in fields)
    return typing.is_typeddict(cls) or is_model_class(cls) or bool(getattr(cls, "__match_args__", names) != names)


def _objects_maker(
    cls: type[Any], fields: tuple[ClassField, ...], from_row: Callable[[Row | None], Any]
) -> Callable[[list[list[Any]]], list[Any]]:
    """Return what makes objects of columns: the class itself over all rows, where it takes its fields by position."""
    converts = [(i, field.from_column) for i, field in enumerate(fields) if field.from_column is not None]
    optional = [i for i, field in enumerate(fields) if field.may_be_absent and not field.is_nullable]
    is_by_name = _takes_names(cls, fields)

    def from_columns(columns: list[list[Any]]) -> list[Any]:
        if is_by_name or not columns or any(None in columns[i] for i in optional):
            return list(map(from_row, zip(*columns, strict=True)))
        parts = list(columns)
        for i, convert in converts:
            parts[i] = [None if value is None else convert(value) for value in parts[i]]
        return list(map(cls, *parts))

    return from_columns
