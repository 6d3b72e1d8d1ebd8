"""Python values that JSON-like encodings cannot hold, as MessagePack extensions, so that they come back as what they were.

Columns of type ANY hold the state of a user's plain callables. Only values whose type is known and closed are taken, and objects
of the classes that the topology itself names (`classes`): nothing read from disk or from a changelog brings in a class or runs
code (never pickle). MessagePack: github.com/msgpack/msgpack, spec.md.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import Any

import msgspec

from logflume.log import InvalidInput, UnknownName
from logflume.streams.columns.batch import row_class

_TUPLE, _SET, _FROZENSET, _BIG_INT, _DECIMAL, _DATETIME, _DATE, _TIME, _DURATION, _UUID = range(1, 11)
_COUNTER, _DEQUE, _ROW, _OBJECT, _MEMBER = range(11, 16)
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_IS_PLAIN = _PLAIN.issuperset
_encode = msgspec.msgpack.Encoder().encode
Classes = Mapping[str, type[Any]]
"""Classes of objects in states, by the name that stands for them in what is written."""
_Wrapper = Callable[[Any, Classes | None], Any]


def class_name(cls: type[Any]) -> str:
    """Return the name of a class in what is written."""
    return f"{cls.__module__}.{cls.__qualname__}"


def to_wire(value: Any, classes: Classes | None = None, *, has_big_ints: bool = True) -> Any:
    """Return `value` with everything that MessagePack has no form for wrapped as an extension. `classes` None: any class.

    `has_big_ints` False: ints are left as they are, which saves looking at each; the encoder says where one does not fit.

    Raises:
        InvalidInput: a value of a class that cannot be read back as itself (the message names it).
    """
    kind = type(value)
    if kind in _PLAIN:
        is_big = has_big_ints and kind is int and not -(2**63) <= value < 2**63
        return msgspec.msgpack.Ext(_BIG_INT, str(value).encode()) if is_big else value
    if kind is list:
        if not has_big_ints and _IS_PLAIN(map(type, value)):
            return value
        return [to_wire(item, classes, has_big_ints=has_big_ints) for item in value]
    if kind is dict:
        return {_hashable(key): to_wire(item, classes, has_big_ints=has_big_ints) for key, item in value.items()}
    return _wrapped(value, classes)


def column_to_wire(values: Sequence[Any], classes: Classes) -> Sequence[Any]:
    """Return `to_wire` of many values, without a look at ints: objects of one class at once. Raises OverflowError: a big int."""
    kinds = set(map(type, values))
    kind = next(iter(kinds)) if len(kinds) == 1 else type(None)
    if issubclass(kind, msgspec.Struct) and class_name(kind) in classes:
        fields = list(map(msgspec.structs.astuple, values))
        if _IS_PLAIN(map(type, chain.from_iterable(fields))):
            written: Any = values if _writes_fields(kind) else map(msgspec.structs.asdict, values)
            packed = map(_encode, zip(repeat(class_name(kind), len(values)), written, strict=True))
            return list(map(partial(msgspec.msgpack.Ext, _OBJECT), packed))
    if is_plain(values):
        return values
    return [to_wire(value, classes, has_big_ints=False) for value in values]


def is_plain(values: Sequence[Any]) -> bool:
    """Return whether there is nothing but plain values in values, however deep: what lies at one depth is looked at together."""
    for _ in range(_MAX_DEPTH):
        kinds = set(map(type, values)) - _PLAIN
        if not kinds:
            return True
        if not kinds <= {dict, list} or len(values) > _MAX_TOGETHER:
            return False
        dicts = [value for value in values if type(value) is dict]
        if not _IS_PLAIN(map(type, chain.from_iterable(dicts))):
            return False
        lists = [value for value in values if type(value) is list]
        values = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    return False


_MAX_DEPTH, _MAX_TOGETHER = 6, 100_000
"""Deeper or wider ones are looked at one by one: they might hold themselves."""


@lru_cache(maxsize=1024)
def _writes_fields(kind: type[Any]) -> bool:
    """Return whether msgspec writes objects of a Struct's class as all their fields by name, in order."""
    config = kind.__struct_config__
    is_renamed = kind.__struct_encode_fields__ != kind.__struct_fields__
    return not (is_renamed or config.array_like or config.omit_defaults or config.tag is not None)


def _wrapped(value: Any, classes: Classes | None) -> Any:
    """Return a value that MessagePack does not know as an extension."""
    return _WRAPPERS.get(type(value), _object_to_wire)(value, classes)


def _items_to_wire(code: int) -> _Wrapper:
    return lambda value, classes: _packed(code, [to_wire(item, classes) for item in value])


def _text_to_wire(code: int, text: Callable[[Any], str]) -> _Wrapper:
    return lambda value, classes: msgspec.msgpack.Ext(code, text(value).encode())


def _counter_to_wire(value: Any, classes: Classes | None) -> msgspec.msgpack.Ext:
    return _packed(_COUNTER, [[to_wire(key, classes), to_wire(item, classes)] for key, item in value.items()])


def _deque_to_wire(value: Any, classes: Classes | None) -> msgspec.msgpack.Ext:
    return _packed(_DEQUE, [value.maxlen, [to_wire(item, classes) for item in value]])


def _packed(code: int, parts: list[Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encode(parts))


def _object_to_wire(value: Any, classes: Classes | None) -> Any:
    """Wrap an object of a class, or a row of no class."""
    kind = type(value)
    name, is_row, is_member, is_struct = _form_of(kind)  # type: ignore[arg-type]  # mypy takes type[Any] for unhashable
    if is_row:
        return _packed(_ROW, [kind._fields, [to_wire(item, classes) for item in value]])
    if classes is not None and name not in classes:
        raise InvalidInput(
            f"state of class {name} cannot be stored: the topology does not name it. Annotate the function's result "
            f"(def add(aggregate, value) -> {kind.__name__}), or keep None, bool, int, float, str, bytes, list, dict, tuple, "
            "set, Counter, deque, Decimal, a date, time or UUID"
        )
    if is_member:
        return _packed(_MEMBER, [name, value.name])
    fields: dict[str, Any] = (
        msgspec.structs.asdict(value) if is_struct else {field: getattr(value, field) for field in object_fields(kind)}
    )
    if _IS_PLAIN(map(type, fields.values())):
        try:
            return msgspec.msgpack.Ext(_OBJECT, _encode([name, fields]))
        except OverflowError:  # an int of more than 64 bits
            pass
    return _packed(_OBJECT, [name, {field: to_wire(item, classes) for field, item in fields.items()}])


_WRAPPERS: Mapping[type[Any], _Wrapper] = {
    tuple: _items_to_wire(_TUPLE),
    set: _items_to_wire(_SET),
    frozenset: _items_to_wire(_FROZENSET),
    Counter: _counter_to_wire,
    deque: _deque_to_wire,
    decimal.Decimal: _text_to_wire(_DECIMAL, str),
    dt.datetime: _text_to_wire(_DATETIME, dt.datetime.isoformat),
    dt.date: _text_to_wire(_DATE, dt.date.isoformat),
    dt.time: _text_to_wire(_TIME, dt.time.isoformat),
    dt.timedelta: lambda value, _: _packed(_DURATION, [value.days, value.seconds, value.microseconds]),
    uuid.UUID: lambda value, _: msgspec.msgpack.Ext(_UUID, value.bytes),
}


@lru_cache(maxsize=1024)
def _form_of(kind: type[Any]) -> tuple[str, bool, bool, bool]:
    """Return a class' name, whether it is of rows of no class, of the members of an Enum, and of msgspec's."""
    is_row = issubclass(kind, tuple) and hasattr(kind, "_fields") and kind is row_class(kind._fields)
    return class_name(kind), is_row, issubclass(kind, enum.Enum), issubclass(kind, msgspec.Struct)


def object_fields(cls: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields that are an object's state. Raises InvalidInput: the class has none that are known."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    fields = getattr(cls, "_fields", None) or getattr(cls, "model_fields", None)
    if not fields:
        raise InvalidInput(
            f"state of class {class_name(cls)} cannot be stored; expected a msgspec.Struct, dataclass, NamedTuple, Pydantic "
            "model or Enum, or plain values"
        )
    return tuple(fields)


def _object_of(cls: type[Any], fields: Mapping[str, Any]) -> Any:
    """Return an object with these fields; what its class has no more is left out, what is new has its default."""
    if issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
        return cls(**{name: fields[name] for name in object_fields(cls) if name in fields})
    return cls.model_validate(dict(fields), by_name=True)


def _hashable(key: Any) -> Any:
    if type(key) in (str, bool, float, bytes, type(None)) or (type(key) is int and -(2**63) <= key < 2**64):
        return key
    raise InvalidInput(
        f"a dict key of class {type(key).__qualname__}, {key!r:.40}, cannot be stored as state; use str, int (64 bits), float or "
        "bytes"
    )


def reader_of(classes: Classes) -> Callable[[int, memoryview], Any]:
    """Return the inverse of `to_wire`, as msgspec's `ext_hook`."""

    def from_wire(code: int, data: memoryview) -> Any:
        if code in _PLAIN_CODES:
            return _plain_from_wire(code, data)
        found = msgspec.msgpack.decode(data, ext_hook=from_wire)
        match code:
            case 11:
                return Counter(dict(found))
            case 12:
                return deque(found[1], maxlen=found[0])
            case 13:
                return row_class(tuple(found[0]))._make(found[1])
            case 14 | 15:
                if found[0] not in classes:
                    raise UnknownName("class of the state that the topology names", found[0], classes)
                cls: Any = classes[found[0]]
                return _object_of(cls, found[1]) if code == _OBJECT else cls[found[1]]
        if code in (_TUPLE, _SET, _FROZENSET):
            return {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[code](found)
        raise InvalidInput(f"state written by a newer logflume: unknown value kind {code}")

    return from_wire


_PLAIN_CODES = frozenset(range(_BIG_INT, _UUID + 1))


def _plain_from_wire(code: int, data: memoryview) -> Any:
    """Return a value that holds no others."""
    if code == _DURATION:
        days, seconds, microseconds = msgspec.msgpack.decode(data)
        return dt.timedelta(days=days, seconds=seconds, microseconds=microseconds)
    if code == _UUID:
        return uuid.UUID(bytes=bytes(data))
    text = bytes(data).decode()
    match code:
        case 4:
            return int(text)
        case 5:
            return decimal.Decimal(text)
        case 6:
            return dt.datetime.fromisoformat(text)
        case 7:
            return dt.date.fromisoformat(text)
        case 8:
            return dt.time.fromisoformat(text)
    raise AssertionError(f"{code} is one of the plain values")
