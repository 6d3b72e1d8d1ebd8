"""Python values that JSON-like encodings cannot hold, as MessagePack extensions, so that they come back as what they were.

Columns of type ANY hold the state of a user's plain callables. Only values whose type is known and closed are taken: nothing read
from disk or from a changelog may name a class or run code (never pickle). MessagePack: github.com/msgpack/msgpack, spec.md.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any

import msgspec

from logflume.log import InvalidInput

_TUPLE, _SET, _FROZENSET, _BIG_INT, _DECIMAL, _DATETIME, _DATE, _TIME, _DURATION, _UUID = range(1, 11)
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_IS_PLAIN = _PLAIN.issuperset


def to_wire(value: Any, *, has_big_ints: bool = True) -> Any:
    """Return `value` with every tuple, set, large int, decimal, date, time and UUID wrapped as an extension.

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
        return [to_wire(item, has_big_ints=has_big_ints) for item in value]
    if kind is dict:
        return {_hashable(key): to_wire(item, has_big_ints=has_big_ints) for key, item in value.items()}
    return _wrapped(value)


def _wrapped(value: Any) -> Any:
    """Return a value that MessagePack does not know as an extension."""
    kind = type(value)
    if kind in (tuple, set, frozenset):
        code = _TUPLE if kind is tuple else _SET if kind is set else _FROZENSET
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode([to_wire(item) for item in value]))
    if kind is decimal.Decimal:
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    if kind in (dt.datetime, dt.date, dt.time):
        code = _DATETIME if kind is dt.datetime else _DATE if kind is dt.date else _TIME
        return msgspec.msgpack.Ext(code, value.isoformat().encode())
    if kind is dt.timedelta:
        return msgspec.msgpack.Ext(_DURATION, msgspec.msgpack.encode([value.days, value.seconds, value.microseconds]))
    if kind is uuid.UUID:
        return msgspec.msgpack.Ext(_UUID, value.bytes)
    raise InvalidInput(
        f"state of class {kind.__module__}.{kind.__qualname__} cannot be stored; expected None, bool, int, float, str, bytes, "
        "list, dict, tuple, set, Decimal, a date, time or UUID: turn it into one of these in the aggregator"
    )


def _hashable(key: Any) -> Any:
    if type(key) in (str, int, bool, float, bytes, type(None)):
        return key
    raise InvalidInput(f"a dict key of class {type(key).__qualname__} cannot be stored as state; use str, int, float or bytes")


def from_wire(code: int, data: memoryview) -> Any:
    """Return the value of one extension (the inverse of `to_wire`, as msgspec's `ext_hook`)."""
    if code in (_TUPLE, _SET, _FROZENSET):
        items = msgspec.msgpack.decode(data, ext_hook=from_wire)
        return {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[code](items)
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
    raise InvalidInput(f"state written by a newer logflume: unknown value kind {code}")
