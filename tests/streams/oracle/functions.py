"""The functions of recorded cases: predicates, mappers, reducers, aggregators, mergers and joiners over JSON values.

Keys are strings, null, or windowed: a tuple-like key has the inner key first and knows its `window_start`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Json = Any


def number(x: Json) -> int:
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return 0
    if isinstance(x, int):
        return x
    if isinstance(x, list):
        return sum(number(item) for item in x)
    for name in ("v", "sum"):
        if name in x:
            return number(x[name])
    return number(x.get("l")) + number(x.get("r")) if "l" in x or "r" in x else 0


def text(x: Json) -> str:
    if x is None:
        return "null"
    if isinstance(x, str):
        return x
    if isinstance(x, dict) and "s" in x:
        return text(x["s"])
    return json.dumps(x, sort_keys=True, separators=(",", ":"))


def key_text(key: Any) -> str | None:
    if key is None or isinstance(key, str):
        return key
    return f"{key[0]}@{key.window_start}"


def member(x: Json, name: str) -> Json:
    return x.get(name) if isinstance(x, dict) else None


def predicate(spec: Json) -> Callable[[Any, Json], bool]:
    match spec["fn"]:
        case "gt":
            return lambda key, value: number(value) > spec["n"]
        case "mod":
            return lambda key, value: number(value) % spec["m"] == spec["r"]
        case "key_in":
            return lambda key, value: key_text(key) in spec["keys"]
        case "value_is_null":
            return lambda key, value: value is None
        case "key_is_null":
            return lambda key, value: key is None
        case "field_eq":
            return lambda key, value: (
                member(value, spec["field"]) is not None and text(member(value, spec["field"])) == spec["text"]
            )
        case "not":
            inner = predicate(spec["of"])
            return lambda key, value: not inner(key, value)
        case "and":
            parts = [predicate(part) for part in spec["of"]]
            return lambda key, value: all(part(key, value) for part in parts)
    raise ValueError(f"predicate {spec['fn']}")


def value_function(spec: Json) -> Callable[[Any, Json], Json]:
    match spec["fn"]:
        case "identity":
            return lambda key, value: value
        case "add":
            return lambda key, value: _added(value, spec["n"])
        case "project":
            return lambda key, value: {f: value.get(f) for f in spec["fields"]} if isinstance(value, dict) else value
        case "from_key":
            return lambda key, value: {"k": key_text(key), "v": number(value)}
        case "concat":
            return lambda key, value: text(value) + spec["suffix"]
        case "key_concat":
            return lambda key, value: (key_text(key) or "null") + spec["sep"] + text(value)
        case "field":
            return lambda key, value: member(value, spec["field"])
        case "num":
            return lambda key, value: number(value)
        case "wrap":
            return lambda key, value: {"v": number(value)}
        case "null_if":
            test = predicate(spec["pred"])
            return lambda key, value: None if test(key, value) else value
    raise ValueError(f"value function {spec['fn']}")


def _added(value: Json, n: int) -> Json:
    if isinstance(value, int):
        return value + n
    if isinstance(value, dict) and isinstance(value.get("v"), int):
        return {**value, "v": value["v"] + n}
    return value


def key_function(spec: Json) -> Callable[[Any, Json], Any]:
    match spec["fn"]:
        case "key":
            return lambda key, value: key
        case "field":
            return lambda key, value: None if (found := member(value, spec["field"])) is None else text(found)
        case "mod":
            return lambda key, value: f"{spec['prefix']}{number(value) % spec['m']}"
        case "key_prefix":
            return lambda key, value: None if key is None else spec["prefix"] + str(key_text(key))
        case "const":
            return lambda key, value: spec["key"]
        case "key_text":
            return lambda key, value: key_text(key)
        case "inner_key":
            return lambda key, value: key[0]
        case "null_if":
            test, other = predicate(spec["pred"]), key_function(spec["else"])
            return lambda key, value: None if test(key, value) else other(key, value)
    raise ValueError(f"key function {spec['fn']}")


def flat_function(spec: Json) -> Callable[[Any, Json], list[Any]]:
    match spec["fn"]:
        case "indexed":
            return lambda key, value: [(f"{key_text(key) or 'null'}#{i}", value) for i in range(number(value) % spec["m"])]
        case "words":
            return lambda key, value: [(w, {"k": key_text(key), "v": number(value)}) for w in _words(value)]
        case "repeat":
            return lambda key, value: [value] * (number(value) % spec["m"])
        case "split":
            return lambda key, value: _words(value)
    raise ValueError(f"flat function {spec['fn']}")


def _words(value: Json) -> list[str]:
    return [] if value is None else [word for word in text(value).split(" ") if word]


def reducer(spec: Json) -> Callable[[Json, Json], Json]:
    match spec["fn"]:
        case "sum":
            return lambda a, v: _replaced(a, number(a) + number(v))
        case "sub":
            return lambda a, v: _replaced(a, number(a) - number(v))
        case "max":
            return lambda a, v: v if number(v) > number(a) else a
        case "min":
            return lambda a, v: v if number(v) < number(a) else a
        case "last":
            return lambda a, v: v
        case "first":
            return lambda a, v: a
        case "concat":
            return lambda a, v: text(a) + spec["sep"] + text(v)
        case "sum_null":
            return lambda a, v: None if (s := number(a) + number(v)) % spec["m"] == 0 else s
    raise ValueError(f"reducer {spec['fn']}")


def _replaced(a: Json, s: int) -> Json:
    return {**a, "v": s} if isinstance(a, dict) and "v" in a else s


def aggregator(spec: Json) -> Callable[[Json, Json, Any], Json]:
    match spec["fn"]:
        case "collect":
            return lambda a, v, key: [*(a or []), number(v)]
        case "sum_count":
            return lambda a, v, key: {"sum": number(member(a, "sum")) + number(v), "count": number(member(a, "count")) + 1}
        case "uncollect":
            return lambda a, v, key: _without_first(a or [], number(v))
        case "sum_count_sub":
            return lambda a, v, key: {"sum": number(member(a, "sum")) - number(v), "count": number(member(a, "count")) - 1}
        case "append":
            return lambda a, v, key: ("" if a is None else text(a)) + spec["sep"] + text(v)
        case "append_key":
            return lambda a, v, key: ("" if a is None else text(a)) + spec["sep"] + (key_text(key) or "null")
        case "sum":
            return lambda a, v, key: number(a) + number(v)
        case "sub":
            return lambda a, v, key: number(a) - number(v)
        case "sum_null":
            return lambda a, v, key: None if (s := number(a) + number(v)) % spec["m"] == 0 else s
        case "last":
            return lambda a, v, key: v
    raise ValueError(f"aggregator {spec['fn']}")


def _without_first(items: list[int], item: int) -> list[int]:
    at = items.index(item) if item in items else len(items)
    return items[:at] + items[at + 1 :]


def joiner(spec: Json) -> Callable[[Any, Json, Json], Json]:
    match spec["fn"]:
        case "pair":
            return lambda key, left, right: {"l": left, "r": right}
        case "key_pair":
            return lambda key, left, right: {"k": key_text(key), "l": left, "r": right}
        case "sum":
            return lambda key, left, right: number(left) + number(right)
        case "sum_null":
            return lambda key, left, right: None if (s := number(left) + number(right)) % spec["m"] == 0 else s
        case "left":
            return lambda key, left, right: left
        case "right":
            return lambda key, left, right: right
        case "text":
            return lambda key, left, right: text(left) + "/" + text(right)
    raise ValueError(f"joiner {spec['fn']}")


def merger(spec: Json) -> Callable[[Json, Json], Json]:
    match spec["fn"]:
        case "lists":
            return lambda a, b: [*(a or []), *(b or [])]
        case "sum_counts":
            return lambda a, b: {name: number(member(a, name)) + number(member(b, name)) for name in ("sum", "count")}
        case "append":
            return lambda a, b: "".join("" if x is None else text(x) for x in (a, spec["sep"], b))
        case "sum":
            return lambda a, b: number(a) + number(b)
    raise ValueError(f"merger {spec['fn']}")
