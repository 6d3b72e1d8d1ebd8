"""Conformance cases for operator semantics, from outside the repository: random topologies with the results of Kafka Streams.

The cases are found through STREAMS_CASES, or in `../shared/streams-cases` beside the repository. Operators that are not built yet
count as not supported, apart from passed and failed. So do cases that only differ by a rule that is chosen on purpose:
- fewer tombstones: a filter of a table sends none for a key whose row is known not to have passed before (Kafka Streams does
  where the table is not stored at the moment when the filter is created);
- no lost windows: a window whose results leave when it closes always gives them (Kafka Streams loses it when time jumps far).
Run as a program this prints the numbers per family.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logflume.streams as lf
from logflume.streams import col
from logflume.streams.testing import TopologyTestDriver, WindowedKey

CASES = Path(os.environ.get("STREAMS_CASES", Path(__file__).resolve().parents[2].parent / "shared" / "streams-cases"))
FAMILIES = ("stateless", "group_agg", "time_windows", "stream_table_join", "table_ops", "emit_on_close", "mixed", "traps")
Json = Any


class NotSupported(Exception):
    """The case uses an operator that is not built yet."""


# -- functions of the cases -----------------------------------------------------------------------------------------------


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
    raise NotSupported(f"predicate {spec['fn']}")


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
    raise NotSupported(f"value function {spec['fn']}")


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
    raise NotSupported(f"key function {spec['fn']}")


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
    raise NotSupported(f"flat function {spec['fn']}")


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
    raise NotSupported(f"reducer {spec['fn']}")


def _replaced(a: Json, s: int) -> Json:
    return {**a, "v": s} if isinstance(a, dict) and "v" in a else s


def aggregator(spec: Json) -> Callable[[Json, Json, Any], Json]:
    match spec["fn"]:
        case "collect":
            return lambda a, v, key: [*(a or []), number(v)]
        case "sum_count":
            return lambda a, v, key: {"sum": number(member(a, "sum")) + number(v), "count": number(member(a, "count")) + 1}
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
    raise NotSupported(f"aggregator {spec['fn']}")


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
    raise NotSupported(f"joiner {spec['fn']}")


# -- cases as topologies --------------------------------------------------------------------------------------------------


def build(case: Json) -> lf.App:
    if case.get("config", {}).get("emit_interval_ms"):
        raise NotSupported("throttled emission")
    app = lf.App("case")
    found: dict[str, Any] = {}
    for source in case["sources"]:
        if source["kind"] == "global_table" or "versioned_history_ms" in source:
            raise NotSupported(source["kind"])
        if source["kind"] == "table":
            found[source["id"]] = app.table(source["topic"], store=source.get("store"), name=source["id"])
        else:
            found[source["id"]] = app.stream(source["topic"], name=source["id"])
    for node in case["nodes"]:
        made = _node(node, [found[name] for name in node["in"]])
        if node["op"] == "split":
            for branch, stream in zip(node["branches"], made, strict=False):
                found[branch["id"]] = stream
            if node.get("default"):
                found[node["default"]] = made[-1]
        else:
            found[node["id"]] = made
    for sink in case["sinks"]:
        end = found[sink["in"]]
        (end.to_stream() if isinstance(end, lf.Table) else end).to(sink["topic"])
    return app


def _node(node: Json, inputs: list[Any]) -> Any:
    first, name = inputs[0], node["id"]
    is_table = isinstance(first, lf.Table)
    kept = {"store": node["store"]} if is_table and "store" in node else {}
    match node["op"]:
        case "filter":
            test = predicate(node["pred"])
            if is_table:
                return first.filter(lambda key, value: value is not None and test(key, value), **kept)
            return first.filter(test)
        case "filter_not":
            test = predicate(node["pred"])
            if is_table:
                return first.filter(lambda key, value: value is not None and not test(key, value), **kept)
            return first.filter_not(test)
        case "map_values":
            function = value_function(node["value_fn"])
            if is_table:
                return first.map_values(lambda k, v: None if v is None else function(k, v), **kept)
            return first.map_values(function)
        case "to_table" if "versioned_history_ms" not in node:
            return first.to_table(name=name, store=node.get("store"))
        case "map":
            to_key, to_value = key_function(node["key_fn"]), value_function(node["value_fn"])
            return first.map(lambda key, value: (to_key(key, value), to_value(key, value)), key=str, name=name)
        case "select_key":
            to_key = key_function(node["key_fn"])
            return first.select_key(lambda key, value: to_key(key, value), key=str, name=name)
        case "flat_map":
            return first.flat_map(flat_function(node["flat_fn"]), key=str, name=name)
        case "flat_map_values":
            return first.flat_map_values(flat_function(node["flat_fn"]))
        case "merge":
            return first.merge(inputs[1])
        case "repartition":
            return first.repartition(name)
        case "split":
            return first.split(*(predicate(branch["pred"]) for branch in node["branches"]))
        case "group_by_key":
            return first.group_by_key()
        case "group_by":
            to_key = key_function(node["key_fn"])
            return first.group_by(lambda key, value: to_key(key, value), key=str, name=name)
        case "window":
            return (first.window(_window(node)), "final" if node.get("emit") else "update")
        case "count" | "reduce" | "aggregate":
            return _aggregate(node, *(first if isinstance(first, tuple) else (first, "update")))
        case "to_stream":
            stream = first.to_stream()
            if "key_fn" not in node:
                return stream
            to_key = key_function(node["key_fn"])
            return stream.select_key(lambda key, value: to_key(key, value), key=str, name=name)
        case "stream_table_join" if "grace" not in node:
            join = joiner(node["joiner"])
            method = first.left_join if node["type"] == "left" else first.join
            return method(inputs[1], lambda key, left, right: join(key, left, right), name=name)
    raise NotSupported(node["op"])


def _window(node: Json) -> Any:
    window = node["window"]
    if window["type"] not in ("tumbling", "hopping"):
        raise NotSupported(f"{window['type']} window")
    if window["type"] == "tumbling":
        return lf.tumbling(window["size"], grace=window["grace"])
    return lf.hopping(window["size"], advance=window["advance"], grace=window["grace"])


def _aggregate(node: Json, grouped: Any, emit: str) -> Any:
    name = node.get("store", node["id"])
    if not isinstance(grouped, lf.Grouped):
        raise NotSupported("aggregate of a table")
    if node["op"] == "count":
        return grouped.count(name=name, emit=emit).map_values(col["count"])
    if node["op"] == "reduce":
        return grouped.reduce(reducer(node["fn"]), name=name, emit=emit)
    return grouped.aggregate(node["init"], aggregator(node["fn"]), name=name, emit=emit)


# -- running and comparing ------------------------------------------------------------------------------------------------


def explained(case: Json) -> str | None:
    """Return the rule, chosen on purpose, that explains all that differs in a case (see the module)."""
    ops = {node["op"] for node in case["nodes"]}
    if ops & {"filter", "filter_not"} and not run(case, without_repeated_tombstones=True):
        return "fewer tombstones"
    closes = any(node.get("emit") for node in case["nodes"])
    return "no lost windows" if closes and not run(case, without_lost_windows=True) else None


def driven(case: Json) -> TopologyTestDriver:
    """Return a driver that was given all steps of a case."""
    driver = TopologyTestDriver(build(case))
    for step in case["steps"]:
        if "topic" in step:
            if any(s["topic"] == step["topic"] for s in case["sources"]):
                value = None if step["value"] is None else json.dumps(step["value"]).encode()
                driver.input(step["topic"]).send(value, key=step["key"], timestamp_ms=step["ts"])
        else:
            driver.advance(step["advance_wall_clock_ms"])
    return driver


def run(case: Json, *, without_repeated_tombstones: bool = False, without_lost_windows: bool = False) -> list[str]:
    """Return what differs, [] when all is as expected."""
    driver = driven(case)
    found = []
    for topic, expected in case["expect"]["topics"].items():
        actual = [{"key": _key(r.key), "value": r.value, "ts": r.timestamp_ms} for r in driver.output(topic).read()]
        wanted = [{name: record[name] for name in ("key", "value", "ts")} for record in expected]
        if without_repeated_tombstones:
            wanted, actual = _without_repeated_tombstones(wanted), _without_repeated_tombstones(actual)
        if without_lost_windows:
            known = {text(record["key"]) for record in wanted}
            more = [record for record in actual if text(record["key"]) not in known]
            found += _not_final(topic, more, last_updates(case)[topic])
            actual = [record for record in actual if text(record["key"]) in known]
        found += _compare(topic, wanted, actual, is_ordered=case["ordered"])
    kept = {n.get("store", n["id"]): n for n in case["nodes"]} | {s.get("store"): s for s in case["sources"]}
    for store, expected in case["expect"]["stores"].items():
        rows = [_store_row(row, kept[store]) for row in driver.store(store).rows()]
        if without_lost_windows:
            expected = [_store_row(row, kept[store]) for row in driven(with_updates(case)).store(store).rows()]
        if sorted(map(text, rows)) != sorted(map(text, expected)):
            found.append(f"store {store}: expected {expected}, found {rows}")
    return found


def with_updates(case: Json) -> Json:
    """Return the case with every update sent as it comes."""
    return {**case, "nodes": [{name: value for name, value in node.items() if name != "emit"} for node in case["nodes"]]}


def last_updates(case: Json) -> dict[str, dict[str, Any]]:
    """Return the last value of each key of each topic when every update is sent as it comes: what a window ends with."""
    driver = driven(with_updates(case))
    return {
        topic: {text(_key(record.key)): record.value for record in driver.output(topic).read()}
        for topic in case["expect"]["topics"]
    }


def _not_final(topic: str, records: list[Json], last: dict[str, Any]) -> list[str]:
    """Return which of these results are not what their windows end with, or come twice."""
    counts = Counter(text(record["key"]) for record in records)
    return [
        f"{topic}: {record} is no final result, expected {last.get(text(record['key']))} once"
        for record in records
        if counts[text(record["key"])] > 1 or last.get(text(record["key"])) != record["value"]
    ]


def _key(key: Any) -> Json:
    return {"key": key.key, "start": key.start_ms, "end": key.end_ms} if isinstance(key, WindowedKey) else key


def _store_row(row: Any, node: Json) -> Json:
    value = row.value["count"] if node.get("op") == "count" else row.value
    key = _key(row.key)
    return {**(key if isinstance(key, dict) else {"key": key}), "value": value, "ts": row.timestamp_ms}


def _without_repeated_tombstones(records: list[Json]) -> list[Json]:
    """Leave out tombstones of keys that have no row: a filter of a table sends none where it knows that there was no row."""
    alive: set[str] = set()
    kept = []
    for record in records:
        key = text(record["key"])
        if record["value"] is not None:
            alive.add(key)
        elif key in alive:
            alive.remove(key)
        else:
            continue
        kept.append(record)
    return kept


def _compare(topic: str, wanted: list[Json], actual: list[Json], *, is_ordered: bool) -> list[str]:
    if is_ordered:
        return [] if wanted == actual else [f"{topic}: expected {wanted}, found {actual}"]
    if _by_key(wanted) == _by_key(actual):
        return []
    return [f"{topic}, per key: expected {_by_key(wanted)}, found {_by_key(actual)}"]


def _by_key(records: list[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for record in records:
        found.setdefault(text(record["key"]), []).append(record)
    return found


def run_family(family: str) -> tuple[Counter[str], list[str]]:
    """Return how many cases passed, failed and are not supported, and what failed."""
    counts: Counter[str] = Counter()
    failures = []
    for case in json.loads((CASES / f"{family}.json").read_text())["cases"]:
        try:
            differences = run(case)
        except NotSupported as missing:
            counts["not supported"] += 1
            counts[f"without {missing}"] += 1
            continue
        if differences and (rule := explained(case)):
            counts[rule] += 1
            continue
        counts["failed" if differences else "passed"] += 1
        failures += [f"{case['name']}: {difference}" for difference in differences]
    return counts, failures


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no conformance cases in {CASES}: set STREAMS_CASES to their directory")
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_give_what_kafka_streams_gives(family: str) -> None:
    counts, failures = run_family(family)
    assert failures == []
    assert counts["passed"] > 0


if __name__ == "__main__":
    for path in sorted(CASES.glob("*.json")):
        counts, failures = run_family(path.stem)
        kinds = ("passed", "failed", "not supported", "fewer tombstones", "no lost windows")
        print(f"{path.stem:30}", *(f"{counts[kind]:3} {kind}" for kind in kinds))
        for failure in failures[:2]:
            print("   ", failure[:1500])
