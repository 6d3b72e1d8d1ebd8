"""The JSON serde: msgspec for what fits as it is, `coerce` for the rest; both give the same rows (a property test).

Decoding: a msgspec Struct is made from the columns, so that only their fields are looked at. Each column whose name has no
lower-case letter has a second field with its lower-case name, because unquoted SQL names are upper-case and JSON rarely is. A
record goes through the exact path when a field has another type than its column, is missing, or is spelled in mixed case.
"""

from __future__ import annotations

import copy
import json
import marshal
import re
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from logflume.log.errors import DecodeError, InvalidInput

from . import coerce
from .serdes import FormatSpec, Row
from .types import Column, DataType, Kind

Decode = Callable[[bytes | None], Row | None]
Encode = Callable[[Row | None], bytes | None]

_SCALARS: dict[Kind, Any] = {
    Kind.BOOLEAN: bool,
    Kind.DOUBLE: float,
    Kind.STRING: str,
    Kind.BYTES: bytes,
    Kind.DECIMAL: Decimal,
    **{kind: Annotated[int, Meta(ge=low, le=high)] for kind, (low, high) in coerce.INT_RANGES.items()},
}


def make_decode(spec: FormatSpec, columns: tuple[Column, ...]) -> Decode:
    """Return the decoder of rows of these columns."""
    exact = _exact_decoder(spec, columns)
    if not spec.is_wrapped and len(columns) == 1:
        return _bare_decoder(columns[0], exact)
    return _object_decoder(columns, exact)


def make_encode(spec: FormatSpec, columns: tuple[Column, ...]) -> Encode:
    """Return the encoder of rows of these columns: nulls explicit, bytes as base64, decimals as exact plain numbers."""
    prepare = [preparer(column.type, is_plain=spec.is_plain) for column in columns]
    needs_preparation = [(i, f) for i, f in enumerate(prepare) if f is not None]

    def prepared(row: Row) -> list[Any]:
        values = list(row)
        for i, function in needs_preparation:
            if values[i] is not None:
                values[i] = function(values[i])
        return values

    if not spec.is_wrapped and len(columns) == 1:

        def encode_bare(row: Row | None) -> bytes | None:
            if row is None or row[0] is None:
                return None
            return _dumps(any_json, prepared(row)[0])

        return encode_bare

    doubles = [i for i, column in enumerate(columns) if column.type.kind is Kind.DOUBLE]
    is_plain_but_doubles = len(doubles) == len(needs_preparation)

    def needs_it(row: Row) -> bool:
        """Whether a value must be prepared: always with decimals and nested values, else only NaN and infinity."""
        if not is_plain_but_doubles:
            return True
        for i in doubles:
            value = row[i]
            if value is not None and value - value != 0:
                return True
        return False

    fields = [(f"f{i}", object) for i in range(len(columns))]
    names = {f"f{i}": column.name for i, column in enumerate(columns)}
    holder: Any = msgspec.defstruct("Row", fields, rename=names, gc=False)

    of_any_type = [i for i, column in enumerate(columns) if _holds_any(column.type)]

    def encode(row: Row | None) -> bytes | None:
        if row is None:
            return None
        try:
            values = prepared(row) if needs_it(row) else row
            data = _write(holder(*values))
            if of_any_type and _BRACKET in data and not all(_is_built_in(values[i]) for i in of_any_type):
                values = [_with_names(value) if i in of_any_type else value for i, value in enumerate(values)]
                data = _write(holder(*values))
            if of_any_type and b"null" in data:
                return _write(holder(*(_without_specials(v) if i in of_any_type else v for i, v in enumerate(values))))
            return data
        except (TypeError, ValueError, msgspec.MsgspecError, OverflowError) as error:
            raise InvalidInput(f"the row cannot be written as JSON with columns {[c.name for c in columns]}: {error}") from None

    return encode


def any_object(value: Any) -> Any:
    """Return an object that msgspec does not know in a form that it knows: the `enc_hook` of values of any class."""
    if isinstance(value, deque):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(f"objects of type {type(value).__qualname__} cannot be written as JSON")


_write = msgspec.json.Encoder(decimal_format="number", enc_hook=any_object).encode


def any_json(value: Any) -> bytes:
    """Return a value of any type as JSON: NamedTuples as objects; NaN and infinities as texts, for JSON has no such numbers.

    Raises:
        TypeError, ValueError, OverflowError, msgspec.MsgspecError: it has no form in JSON.

    >>> any_json({"ratio": float("inf"), "cents": [1, None]})
    b'{"ratio":"Infinity","cents":[1,null]}'
    """
    return _finished(value, _write(value))


def any_json_rows(values: Sequence[Any]) -> list[bytes | None]:
    """Return many values as `any_json` of each, None for None. Raises what that raises for any of them."""
    rows = [None if value is None else _write(value) for value in values]
    written = b"".join(filter(None, rows))
    if _BRACKET not in written and b"null" not in written:  # a look at all of them costs a tenth of one at each
        return rows
    return [None if row is None else _finished(value, row) for value, row in zip(values, rows, strict=True)]


def _finished(value: Any, data: bytes) -> bytes:
    """Return what msgspec wrote of a value, or, where it wrote something else than `any_json` gives, that."""
    if _BRACKET in data and not _is_built_in(value) and (named := _with_names(value)) is not value:
        value, data = named, _write(named)
    return _write(_without_specials(value)) if b"null" in data else data  # as which msgspec writes specials


_BRACKET = ord("[")


def _is_built_in(value: Any) -> bool:
    """Return whether a value is of built-in types alone, all the way down: a third of what looking at its items here costs."""
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True


_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_IS_PLAIN = _PLAIN.issuperset


def _with_names(value: Any) -> Any:
    """Return a value with objects by field names in place of NamedTuples, wherever they are; itself where it has none."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, dict):
        if _IS_PLAIN(map(type, value.values())):
            return value
        named = {key: _with_names(item) for key, item in value.items()}
        return value if all(named[key] is item for key, item in value.items()) else named
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _with_names(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple | set | frozenset | deque):
        if _IS_PLAIN(map(type, value)):
            return value
        items = [_with_names(item) for item in value]
        return value if all(made is item for made, item in zip(items, value, strict=True)) else items
    if hasattr(value, "model_dump"):
        return _with_names(value.model_dump())
    names: tuple[str, ...] = getattr(kind, "__struct_fields__", ()) or tuple(getattr(kind, "__dataclass_fields__", ()))
    changed = {name: made for name in names if (made := _with_names(item := getattr(value, name))) is not item}
    return _copied(value, changed) if changed else value


def _copied(value: Any, changed: dict[str, Any]) -> Any:
    """Return an object with other values in some fields, of whatever type, and nothing of its class called."""
    made = copy.copy(value)
    for name, item in changed.items():
        (msgspec.structs.force_setattr if isinstance(made, msgspec.Struct) else object.__setattr__)(made, name, item)
    return made


def _without_specials(value: Any) -> Any:
    return _spelled(msgspec.to_builtins(value, enc_hook=_parsed_object, builtin_types=(Decimal,), str_keys=True))


def _parsed_object(value: Any) -> Any:
    return parse_exactly(bytes(value)) if isinstance(value, msgspec.Raw) else any_object(value)


def _holds_any(type: DataType) -> bool:
    parts = [type.key, type.element, *(field.type for field in type.fields)]
    return type.kind is Kind.ANY or any(_holds_any(part) for part in parts if part is not None)


def _spelled(value: Any) -> Any:
    match value:
        case dict():
            return {name: _spelled(item) for name, item in value.items()}
        case list() | tuple():
            return [_spelled(item) for item in value]
        case float() if value - value != 0:
            return coerce.java_double_text(value)
    return value


NESTING_MAX = 256
"""Levels of objects and arrays in a value of any type: states are encoded by functions that call themselves for each level."""
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.S)


def check_nesting(data: bytes) -> None:
    """Refuse JSON nested too deeply. Costs nothing for short records, and a count of brackets for others.

    Raises:
        TooDeep: deeper than NESTING_MAX.
    """
    if len(data) < 2 * NESTING_MAX or data.count(b"[") + data.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    for mark in _MARKS.finditer(data):
        first = data[mark.start()]
        if first == 0x22:
            continue
        depth += 1 if first in b"[{" else -1
        if depth > NESTING_MAX:
            raise TooDeep(f"JSON nested deeper than {NESTING_MAX} levels (starts with {bytes(data[:40])!r})")


class TooDeep(DecodeError, msgspec.ValidationError):
    """JSON is nested too deeply; the fast decoders leave it to the exact one, which says so."""


def parse_exactly(data: bytes) -> Any:
    """Return JSON as Python objects, numbers with a fraction or exponent as Decimal.

    Raises:
        DecodeError: not JSON, or nested too deeply.
    """
    check_nesting(data)
    try:
        return _exact_parser().decode(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error} (starts with {bytes(data[:40])!r})") from None


@cache
def _exact_parser() -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _dumps(dumps: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return dumps(value)
    except (TypeError, ValueError, msgspec.MsgspecError, OverflowError) as error:
        raise InvalidInput(f"the value cannot be written as JSON: {error}") from None


def _exact_decoder(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[bytes], Row | None]:
    read = make_read(spec, columns)
    return lambda data: read(parse_exactly(data))


def make_read(spec: FormatSpec, columns: tuple[Column, ...]) -> Callable[[Any], Row | None]:
    """Return what makes a row of JSON that was parsed exactly."""

    def read_bare(value: Any) -> Row | None:
        return None if value is None else (coerce.from_json(value, columns[0].type, "$"),)

    def read_object(value: Any) -> Row | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise DecodeError(f"expected a JSON object with {[c.name for c in columns]}, found {str(value)[:40]!r}")
        return tuple(coerce.struct_from_json(value, columns, "$").values())

    return read_bare if not spec.is_wrapped and len(columns) == 1 else read_object


def _bare_decoder(column: Column, exact: Callable[[bytes], Row | None]) -> Decode:
    if column.type.kind is Kind.ANY:
        return _any_decoder
    annotation = _annotation(column.type)
    if annotation is None or _fitter(column.type) is not None:
        return lambda data: None if data is None else exact(data)
    loads = msgspec.json.Decoder(annotation).decode

    def decode(data: bytes | None) -> Row | None:
        if data is None:
            return None
        try:
            value = loads(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return exact(data)
        return None if value is None else (value,)

    return decode


def _any_decoder(data: bytes | None) -> Row | None:
    if data is None:
        return None
    try:
        check_nesting(data)
        return (msgspec.json.decode(data),)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return (coerce.plain(parse_exactly(data)),)


def _object_decoder(columns: tuple[Column, ...], exact: Callable[[bytes], Row | None]) -> Decode:
    """Try what the last record looked like first: all names as declared, all in lower case, or a mixture.

    The three give the same rows; which one comes first changes nothing but the time.
    """
    annotations = [_annotation(column.type) for column in columns]
    if any(annotation is None for annotation in annotations):
        return lambda data: None if data is None else exact(data)
    fitters = [(i, f) for i, f in ((i, _fitter(column.type)) for i, column in enumerate(columns)) if f is not None]
    attempts = [_as_declared(columns, annotations), _all_lower(columns, annotations), _mixture(columns, annotations)]
    ways = [attempt for attempt in attempts if attempt is not None]
    holds_any = any(column.type.kind is Kind.ANY for column in columns)
    first = ways[0]

    def decode(data: bytes | None) -> Row | None:
        nonlocal first
        if data is None:
            return None
        try:
            if holds_any:
                check_nesting(data)
            row: Row | None = first(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _OtherSpelling):
            row = decode_otherwise(data)
        return _fit(row, fitters) if fitters and row is not None else row

    def decode_otherwise(data: bytes) -> Row | None:
        nonlocal first
        for way in ways:
            if way is first:
                continue
            try:
                row = way(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _OtherSpelling):
                continue
            first = way
            return row
        return exact(data)

    return decode


class _OtherSpelling(Exception):
    """The record's names are not spelled the way this decoder takes them."""


Attempt = Callable[[bytes], Row | None]


def _as_declared(columns: tuple[Column, ...], annotations: list[Any]) -> Attempt:
    """Return the decoder of records that hold every column under its very name."""
    fields = [(f"f{i}", annotation) for i, annotation in enumerate(annotations)]
    rename = {f"f{i}": column.name for i, column in enumerate(columns)}
    loads = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=rename, gc=False)).decode
    astuple = msgspec.structs.astuple
    return lambda data: astuple(loads(data))


def _all_lower(columns: tuple[Column, ...], annotations: list[Any]) -> Attempt | None:
    """Return the decoder of records that hold every column in lower case and none under its very name."""
    names = [column.name for column in columns]
    if not all(_is_folded(name, names) for name in names) or not names:
        return None
    count = len(columns)
    fields: list[Any] = [(f"g{i}", annotation) for i, annotation in enumerate(annotations)]
    fields += [(f"f{i}", Any, UNSET) for i in range(count)]
    rename = {f"f{i}": name for i, name in enumerate(names)} | {f"g{i}": name.lower() for i, name in enumerate(names)}
    loads = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=rename, gc=False)).decode
    astuple = msgspec.structs.astuple
    none_of_them = (UNSET,) * count

    def decode(data: bytes) -> Row:
        values = astuple(loads(data))
        if values[count:] != none_of_them:
            raise _OtherSpelling
        return values[:count]

    return decode


def _mixture(columns: tuple[Column, ...], annotations: list[Any]) -> Attempt:
    """Return the decoder that takes each column under its very name, else in lower case."""
    count = len(columns)
    names = [column.name for column in columns]
    folded = [(i, name.lower()) for i, name in enumerate(names) if _is_folded(name, names)]
    fields: list[Any] = [(f"f{i}", annotation | msgspec.UnsetType, UNSET) for i, annotation in enumerate(annotations)]
    fields += [(f"g{i}", annotations[i] | msgspec.UnsetType, UNSET) for i, _ in folded]
    rename = {f"f{i}": name for i, name in enumerate(names)} | {f"g{i}": name for i, name in folded}
    loads = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=rename, gc=False)).decode
    astuple = msgspec.structs.astuple
    lower_slots = {i: count + slot for slot, (i, _) in enumerate(folded)}

    def decode(data: bytes) -> Row | None:
        values = astuple(loads(data))
        row = list(values[:count])
        for i, value in enumerate(row):
            if value is UNSET:
                found = values[lower_slots[i]] if i in lower_slots else UNSET
                if found is UNSET and names[i] == names[i].upper():
                    raise _OtherSpelling
                row[i] = None if found is UNSET else found
        return tuple(row)

    return decode


def _is_folded(name: str, names: list[str]) -> bool:
    """Whether a column is also looked for in lower case: its name has none, and no other column has that name."""
    return name == name.upper() and name != name.lower() and name.lower() not in names


def _fit(row: Row, fitters: list[tuple[int, Callable[[Any], Any]]]) -> Row:
    values = list(row)
    for i, fit in fitters:
        if values[i] is not None:
            values[i] = fit(values[i])
    return tuple(values)


def _annotation(type: DataType) -> Any:
    """Return what msgspec decodes to exactly our value, or None when only the exact path can."""
    if type.kind in _SCALARS:
        return _SCALARS[type.kind] | None
    if type.kind is Kind.ANY:
        return Any
    if type.kind is Kind.ARRAY and type.element is not None and type.element.kind in _SCALARS:
        return None if type.element.kind is Kind.DECIMAL else list[_annotation(type.element)] | None  # type: ignore[misc]
    if type.kind is Kind.MAP and type.element is not None and type.element.kind in _SCALARS:
        return None if type.element.kind is Kind.DECIMAL else dict[str, _annotation(type.element)] | None  # type: ignore[misc]
    return None


def _fitter(type: DataType) -> Callable[[Any], Any] | None:
    """DECIMAL arrives exactly but with its own scale."""
    if type.kind is not Kind.DECIMAL:
        return None
    return lambda value: coerce.fit_decimal(value, type, "$")


def preparer(type: DataType, *, is_plain: bool) -> Callable[[Any], Any] | None:
    """Return what must be done to a value of `type` before msgspec writes it; None: nothing."""
    match type.kind:
        case Kind.TIMESTAMP | Kind.DATE | Kind.TIME if is_plain:
            return coerce.moment_text(type.kind)
        case Kind.DECIMAL if is_plain:
            return _shortest_decimal
        case Kind.DOUBLE:
            return _finite_or_text
        case Kind.DECIMAL:
            return _plain_decimal
        case Kind.ARRAY if type.element is not None and (f := preparer(type.element, is_plain=is_plain)) is not None:
            each = f
            return lambda value: [None if item is None else each(item) for item in value]
        case Kind.MAP if type.element is not None:
            item_of = preparer(type.element, is_plain=is_plain)
            if item_of is None:
                return _with_text_keys
            each = item_of
            return lambda value: {key: None if item is None else each(item) for key, item in _with_text_keys(value).items()}
        case Kind.STRUCT:
            by_name = {field.name: preparer(field.type, is_plain=is_plain) for field in type.fields}
            return lambda value: {
                name: item if (item := value.get(name)) is None or f is None else f(item) for name, f in by_name.items()
            }
    return None


def _shortest_decimal(value: Decimal) -> Any:
    return msgspec.Raw(coerce.shortest_decimal(value).encode())


def _with_text_keys(value: dict[Any, Any]) -> dict[Any, Any]:
    """A null key is written as `null`, as ksqlDB does."""
    return {"null" if key is None else key: item for key, item in value.items()} if None in value else value


def _finite_or_text(value: float) -> Any:
    """JSON has no NaN or infinity: they are written as text, which reads back as DOUBLE."""
    return value if value - value == 0 else coerce.java_double_text(value)


def _plain_decimal(value: Decimal) -> Any:
    return msgspec.Raw(format(value, "f").encode())
