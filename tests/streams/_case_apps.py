"""Recorded cases as applications."""

from __future__ import annotations

from functools import partial
from typing import Any

import logflume.streams as lf
from logflume.streams import col
from logflume.streams.dsl.cogroups import Cogrouped
from logflume.streams.dsl.grouped_table import GroupedTable

from ._case_processors import KINDS
from .oracle.functions import (
    aggregator,
    flat_function,
    joiner,
    key_function,
    merger,
    predicate,
    reducer,
    value_function,
)

Json = Any


def build(case: Json) -> lf.App:
    app = lf.App("case")
    found: dict[str, Any] = {}
    for source in case["sources"]:
        if source["kind"] == "global_table":
            found[source["id"]] = app.global_table(source["topic"], store=source.get("store"), name=source["id"])
        elif source["kind"] == "table":
            found[source["id"]] = app.table(
                source["topic"], store=source.get("store"), name=source["id"], history=source.get("versioned_history_ms")
            )
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
        case "to_table":
            return first.to_table(name=name, store=node.get("store"), history=node.get("versioned_history_ms"))
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
        case "table_group_by":
            to_key, to_value = key_function(node["key_fn"]), value_function(node["value_fn"])
            return first.group_by(
                lambda key, value: to_key(key, value), value=lambda key, value: to_value(key, value), key=str, name=name
            )
        case "cogroup":
            adders = [aggregator(spec) for spec in node["aggs"]]
            found = first.cogroup(adders[0])
            for grouped, add in zip(inputs[1:], adders[1:], strict=True):
                found = found.cogroup(grouped, add)
            return found
        case "window":
            return (first.window(_window(node["window"])), "final" if node.get("emit") else "update")
        case "count" | "reduce" | "aggregate":
            return _aggregate(node, *(first if isinstance(first, tuple) else (first, "update")))
        case "suppress":
            return first.suppress(_until(node), name=name)
        case "process" | "process_values":
            make = partial(KINDS[node["processor"]], node.get("args"), node.get("store"))
            stores = [lf.key_value_store(node["store"])] if "store" in node else []
            if node["op"] == "process":
                return first.process(make, *stores, key=str, name=name)
            return first.process_values(make, *stores, name=name)
        case "stream_join" | "table_join" | "fk_join" | "stream_table_join" | "stream_global_join":
            return _join(node, first, inputs[1])
        case "to_stream":
            stream = first.to_stream()
            if "key_fn" not in node:
                return stream
            to_key = key_function(node["key_fn"])
            return stream.select_key(lambda key, value: to_key(key, value), key=str, name=name)
    raise AssertionError(node["op"])


def _join(node: Json, left: Any, right: Any) -> Any:
    join, name = joiner(node["joiner"]), node["id"]
    method = {"inner": left.join, "left": left.left_join}.get(node["type"]) or left.outer_join
    match node["op"]:
        case "stream_join":
            return method(right, lambda key, a, b: join(key, a, b), **node["window"], name=name)
        case "table_join":
            return method(right, lambda key, a, b: join(key, a, b), store=node.get("store"), name=name)
        case "fk_join":
            foreign = key_function(node["fk"])
            return method(
                right, lambda key, a, b: join(key, a, b), on=lambda k, v: foreign(k, v), store=node.get("store"), name=name
            )
        case "stream_global_join":
            to_key = key_function(node["key_fn"])
            return method(right, lambda key, a, b: join(key, a, b), on=lambda k, v: to_key(k, v), name=name)
    return method(right, lambda key, a, b: join(key, a, b), grace=node.get("grace"), name=name)


def _until(node: Json) -> Any:
    bound = node["buffer"].get("max_records")
    if node["until"] == "window_closes":
        return lf.until_window_closes(max_records=bound)
    return lf.until_time_limit(node["ms"], max_records=bound, when_full=node["buffer"].get("when_full", "emit_early"))


def _window(window: Json) -> Any:
    match window["type"]:
        case "tumbling":
            return lf.tumbling(window["size"], grace=window["grace"])
        case "hopping":
            return lf.hopping(window["size"], advance=window["advance"], grace=window["grace"])
        case "sliding":
            return lf.sliding(window["diff"], grace=window["grace"])
        case "session":
            return lf.session(window["gap"], grace=window["grace"])
    return lf.unlimited(window["start"])


def _aggregate(node: Json, grouped: Any, emit: str) -> Any:
    name = node.get("store", node["id"])
    if isinstance(grouped, Cogrouped):
        merge = merger(node["merger"]) if "merger" in node else None
        return grouped.aggregate(node["init"], merge=merge, name=name, emit=emit)
    if node["op"] == "count":
        return grouped.count(name=name, emit=emit).map_values(col["count"])
    if node["op"] == "reduce":
        if isinstance(grouped, GroupedTable):
            return grouped.reduce(reducer(node["fn"]), reducer(node["sub"]), name=name, emit=emit)
        return grouped.reduce(reducer(node["fn"]), name=name, emit=emit)
    if isinstance(grouped, GroupedTable):
        return grouped.aggregate(node["init"], aggregator(node["fn"]), aggregator(node["sub"]), name=name, emit=emit)
    merge = merger(node["merger"]) if "merger" in node else None
    return grouped.aggregate(lf.aggregate(node["init"], aggregator(node["fn"]), merge=merge), name=name, emit=emit)
