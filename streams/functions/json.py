"""Functions of JSON kept as text. Numbers keep their digits; text that is not JSON gives null."""

from __future__ import annotations

import base64
import json as _json
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from logflume.log.schemas import DataType, Kind, java_double_text

from ..java_time import format_date, format_iso_timestamp, format_time_ms
from .scalar import Scalar, gives, over, scalar

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


def write(value: Any) -> str:
    """Write compact JSON of a parsed value."""
    if isinstance(value, _Number):
        return str.__str__(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json.dumps(k, ensure_ascii=False)}:{write(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    return _json.dumps(value, ensure_ascii=False)


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
    """Whether the whole text is JSON."""
    if text is None or not text.strip():
        return False
    try:
        _, end = _DECODER.raw_decode(text.strip())
    except (ValueError, RecursionError):
        return False
    return end == len(text.strip())


def json_array_length(text: str) -> int | None:
    is_json, value = _maybe(text)
    return len(value) if is_json and isinstance(value, list) else None


def json_array_contains(text: str, sought: Any) -> bool:
    """Whether a JSON array holds a value of the same type: text, number, boolean or null."""
    is_json, value = _maybe(text)
    if not is_json or not isinstance(value, list):
        return False
    return any(_is_same(item, sought) for item in value)


def json_array_contains_null(text: str | None, sought: Any) -> bool:
    return text is not None and json_array_contains(text, sought)


def _is_same(item: Any, sought: Any) -> bool:
    if isinstance(item, _Number):
        if isinstance(sought, bool) or not isinstance(sought, int | float | Decimal):
            return False
        is_whole = re.fullmatch(r"-?\d+", item) is not None
        return is_whole == isinstance(sought, int) and Decimal(str(item)) == Decimal(str(sought))
    return type(item) is type(sought) and bool(item == sought)


def json_concat(*texts: str | None) -> str | None:
    """Objects merged (later keys win), arrays in a row; mixed or scalar arguments become an array. Null when one is not JSON."""
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
    result = values[0]
    for value in values[1:]:
        if isinstance(result, dict) and isinstance(value, dict):
            result = {**result, **value}
        else:
            left = result if isinstance(result, list) else [result]
            result = left + (value if isinstance(value, list) else [value])
    return write(result)


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
        "Whether a JSON array holds a value of the same type.",
        gives(True, '[1, "a"]', "a"),
        over("(STRING, T) -> BOOLEAN", json_array_contains_null, handles_null=True),
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
