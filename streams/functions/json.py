"""Functions of JSON kept as text. Numbers keep their digits; text that is not JSON gives null."""

from __future__ import annotations

import base64
import json as _json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from logflume.log.schemas import DataType, Kind, java_double_text

from ..java_time import format_date, format_iso_timestamp, format_time_ms
from .scalar import Scalar, gives, over, scalar

PLAIN_MAX_DIGITS = 1_000
_INDEX = re.compile(r"[0-9]{1,9}\Z")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d+|'[^']*'|\"[^\"]*\")\]")


class _Number(str):
    """A JSON number with the digits it was written with; an exponent stands as Java writes those of decimals: 1E+3."""

    __slots__ = ()


def parse(text: str) -> Any:
    """Read the first JSON value of a text, numbers as written; what follows it is ignored. Raises ValueError."""
    stripped = text.lstrip()
    value, _ = _DECODER.raw_decode(stripped)
    return value


def write(value: Any, *, is_plain: bool = False) -> str:
    """Write compact JSON of a parsed value; `is_plain`: numbers without an exponent."""
    if isinstance(value, _Number):
        return _plain(value) if is_plain else str.__str__(value)
    if isinstance(value, dict):
        fields = (f"{_json.dumps(k, ensure_ascii=False)}:{write(v, is_plain=is_plain)}" for k, v in value.items())
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(write(item, is_plain=is_plain) for item in value) + "]"
    return _json.dumps(value, ensure_ascii=False)


def _plain(number: _Number) -> str:
    """Write a number without an exponent, unless that were longer than any number should be."""
    try:
        decimal = Decimal(str.__str__(number)) if "E" in number or "e" in number else None
    except ArithmeticError:  # an exponent beyond 18 digits
        decimal = None
    if decimal is None or abs(decimal.adjusted()) > PLAIN_MAX_DIGITS:
        return str.__str__(number)
    return format(decimal, "f")


def _fraction(text: str) -> _Number:
    try:
        return _Number(Decimal(text))
    except ArithmeticError:  # an exponent beyond 18 digits
        return _Number(text)


_DECODER = _json.JSONDecoder(parse_int=_Number, parse_float=_fraction)


def _maybe(text: str) -> tuple[bool, Any]:
    try:
        return True, parse(text)
    except (ValueError, RecursionError):
        return False, None


@lru_cache(maxsize=256)
def _steps(path: str) -> tuple[str, ...]:
    if not path.startswith("$"):
        raise ValueError(f"a JSON path starts with '$', found {path!r}")
    steps: list[str] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ValueError(f"cannot read the JSON path {path!r} from {path[position:]!r} on")
        name, index = match.groups()
        steps.append(name if name is not None else index[1:-1] if index[0] in "'\"" else index)
        position = match.end()
    return tuple(steps)


def extract_json_field(text: str, path: str) -> str | None:
    """What stands at `$.a.b[0]` or `$.a.b.0`: text as it is, anything else as JSON, null too; null where nothing is."""
    is_json, value = _maybe(text)
    if not is_json:
        return None
    for step in _steps(path):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _INDEX.match(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value if type(value) is str else write(value)


def is_json_string(text: str | None) -> bool:
    """Whether a text begins with a JSON value; what follows an object, an array or a string does not matter."""
    if text is None or not text.strip():
        return False
    stripped = text.lstrip()
    try:
        _, end = _DECODER.raw_decode(stripped)
    except (ValueError, RecursionError):
        return False
    return stripped[0] in '{["' or not stripped[end : end + 1] or stripped[end].isspace()


def json_array_length(text: str) -> int | None:
    is_json, value = _maybe(text)
    return len(value) if is_json and isinstance(value, list) else None


def json_array_contains(text: str | None, sought: Any) -> bool | None:
    """Whether a JSON array holds a value of the same type: text, INTEGER or BIGINT, DOUBLE, boolean or null.

    What is behind the value that is found does not matter, even if it is no JSON.
    """
    if text is None:
        return None
    return any(_is_same(item, sought) for item in _items(text.lstrip()))


def _items(text: str) -> Iterator[Any]:
    """Yield the items of a JSON array, as far as it is one."""
    if not text.startswith("["):
        return
    position = 0
    while position == 0 or text[position : position + 1] == ",":
        position = _blanks(text, position + 1)
        try:
            item, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield item
        position = _blanks(text, position)


def _blanks(text: str, position: int) -> int:
    while text[position : position + 1].isspace():
        position += 1
    return position


def _is_same(item: Any, sought: Any) -> bool:
    if isinstance(item, _Number):
        if isinstance(sought, bool) or not isinstance(sought, int | float):
            return False
        is_whole = re.fullmatch(r"-?\d+", item) is not None
        return is_whole == isinstance(sought, int) and Decimal(str(item)) == Decimal(str(sought))
    return type(item) is type(sought) and bool(item == sought)


def json_concat(*texts: str | None) -> str | None:
    """Objects merged, later keys win; if not all are objects arrays in a row, others as one item. Null when one is not JSON."""
    values: list[Any] = []
    for text in texts:
        if text is None:
            return None
        is_json, value = _maybe(text)
        if not is_json:
            return None
        values.append(value)
    if not values:
        return None
    if all(isinstance(value, dict) for value in values):
        return write({name: item for value in values for name, item in value.items()}, is_plain=True)
    if len(values) == 1:
        return write(values[0], is_plain=True)
    return write([item for value in values for item in (value if isinstance(value, list) else [value])], is_plain=True)


def json_items(text: str) -> list[str] | None:
    is_json, value = _maybe(text)
    return [write(item) for item in value] if is_json and isinstance(value, list) else None


def json_keys(text: str) -> list[str] | None:
    is_json, value = _maybe(text)
    return list(value) if is_json and isinstance(value, dict) else None


def json_records(text: str) -> dict[str, str] | None:
    """The entries of an object; text as it is, any other value as JSON."""
    is_json, value = _maybe(text)
    if not is_json or not isinstance(value, dict):
        return None
    return {k: v if type(v) is str else write(v) for k, v in value.items()}


def to_json_string(value: Any, type: DataType) -> str:
    """Write a value of a column type as JSON; times in ISO form, names in order."""
    if value is None:
        return "null"
    match type.kind:
        case Kind.ARRAY:
            assert type.element is not None
            return "[" + ",".join(to_json_string(item, type.element) for item in value) + "]"
        case Kind.MAP:
            assert type.element is not None
            named = {"null" if key is None else str(key): item for key, item in value.items()}
            items = (f"{_json.dumps(k, ensure_ascii=False)}:{to_json_string(named[k], type.element)}" for k in sorted(named))
            return "{" + ",".join(items) + "}"
        case Kind.STRUCT:
            ordered = sorted(type.fields, key=lambda f: f.name)
            fields = (f"{_json.dumps(f.name, ensure_ascii=False)}:{to_json_string(value[f.name], f.type)}" for f in ordered)
            return "{" + ",".join(fields) + "}"
        case Kind.DOUBLE:
            return java_double_text(value)
        case Kind.DECIMAL:
            return format(value, "f")
        case Kind.BYTES:
            return _json.dumps(base64.b64encode(value).decode())
        case Kind.DATE:
            return _json.dumps(format_date(value, "yyyy-MM-dd"))
        case Kind.TIME:
            return _json.dumps(format_time_ms(value))
        case Kind.TIMESTAMP:
            return _json.dumps(format_iso_timestamp(value))
    return _json.dumps(value, ensure_ascii=False)


def _type_of_argument(types: Sequence[DataType], result: DataType) -> tuple[Any, ...]:
    return (types[0],)


FUNCTIONS: tuple[Scalar, ...] = (
    scalar(
        "EXTRACTJSONFIELD",
        "What stands at a path such as $.a.b[0]: text as it is, anything else as JSON.",
        gives("1.20", '{"a": [{"b": 1.20}]}', "$.a[0].b"),
        over("(STRING, STRING) -> STRING", extract_json_field),
    ),
    scalar(
        "IS_JSON_STRING",
        "Whether text is JSON.",
        gives(True, "[1]"),
        over("(STRING) -> BOOLEAN", is_json_string, handles_null=True),
    ),
    scalar(
        "JSON_ARRAY_LENGTH",
        "The number of items of a JSON array.",
        gives(3, "[1, 2, 3]"),
        over("(STRING) -> INTEGER", json_array_length),
    ),
    scalar(
        "JSON_ARRAY_CONTAINS",
        "Whether a JSON array holds a value of the same type; numbers with a fraction are of type DOUBLE (2.5E0), not DECIMAL.",
        gives(True, '[1, "a"]', "a"),
        over("(STRING, T) -> BOOLEAN", json_array_contains, handles_null=True),
    ),
    scalar(
        "JSON_CONCAT",
        "Objects merged, arrays in a row.",
        gives('{"a":1,"b":2}', '{"a": 1}', '{"b": 2}'),
        over("(STRING...) -> STRING", json_concat, handles_null=True),
    ),
    scalar(
        "JSON_ITEMS",
        "The items of a JSON array as text.",
        gives(["1", "[2]"], "[1, [2]]"),
        over("(STRING) -> ARRAY<STRING>", json_items),
    ),
    scalar(
        "JSON_KEYS",
        "The keys of a JSON object.",
        gives(["a", "b"], '{"a": 1, "b": 2}'),
        over("(STRING) -> ARRAY<STRING>", json_keys),
    ),
    scalar(
        "JSON_RECORDS",
        "The entries of a JSON object as text.",
        gives({"a": "1"}, '{"a": 1}'),
        over("(STRING) -> MAP<STRING, STRING>", json_records),
    ),
    scalar(
        "TO_JSON_STRING",
        "Any value as JSON text.",
        gives("[1,2]", [1, 2]),
        over("(T) -> STRING", to_json_string, handles_null=True, extra=_type_of_argument),
    ),
)
