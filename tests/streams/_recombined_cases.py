"""Recorded cases with further operators behind their streams and tables, drawn from one source of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = Any

PREDICATES: tuple[Json, ...] = (
    {"fn": "gt", "n": 4}, {"fn": "mod", "m": 2, "r": 0}, {"fn": "not", "of": {"fn": "value_is_null"}}, {"fn": "value_is_null"},
    {"fn": "not", "of": {"fn": "key_is_null"}}, {"fn": "key_in", "keys": ["k0", "a", "b"]},
)  # fmt: skip
VALUES: tuple[Json, ...] = (
    {"fn": "add", "n": 3}, {"fn": "num"}, {"fn": "wrap"}, {"fn": "concat", "suffix": "!"}, {"fn": "key_concat", "sep": ":"},
    {"fn": "from_key"}, {"fn": "null_if", "pred": {"fn": "mod", "m": 3, "r": 1}}, {"fn": "project", "fields": ["k", "v"]},
)  # fmt: skip
FIELD, MOD = {"fn": "field", "field": "k"}, {"fn": "mod", "m": 3, "prefix": "k"}
NULLED = {"fn": "null_if", "pred": {"fn": "mod", "m": 5, "r": 2}, "else": {"fn": "mod", "m": 2, "prefix": "k"}}
KEYS: tuple[Json, ...] = (
    FIELD,
    MOD,
    NULLED,
    {"fn": "const", "key": "all"},
    {"fn": "key_prefix", "prefix": "p-"},
    {"fn": "key_text"},
)
WINDOWED_KEYS: tuple[Json, ...] = ({"fn": "inner_key"}, {"fn": "key_text"}, {"fn": "const", "key": "z"})
GROUPED_VALUES: tuple[Json, ...] = ({"fn": "num"}, {"fn": "identity"}, {"fn": "null_if", "pred": {"fn": "mod", "m": 4, "r": 0}})
JOINERS: tuple[Json, ...] = (
    {"fn": "pair"},
    {"fn": "sum"},
    {"fn": "sum_null", "m": 3},
    {"fn": "text"},
    {"fn": "left"},
    {"fn": "right"},
)
REDUCERS: tuple[Json, ...] = (
    {"fn": "sum"}, {"fn": "max"}, {"fn": "last"}, {"fn": "sum_null", "m": 3}, {"fn": "concat", "sep": "|"},
)  # fmt: skip
FOLDS: tuple[Json, ...] = (
    {"fn": {"fn": "collect"}, "init": [], "merger": {"fn": "lists"}, "sub": {"fn": "uncollect"}},
    {"fn": {"fn": "sum_count"}, "init": {"sum": 0, "count": 0}, "merger": {"fn": "sum_counts"}, "sub": {"fn": "sum_count_sub"}},
    {"fn": {"fn": "append", "sep": "+"}, "init": "", "merger": {"fn": "append", "sep": "&"}, "sub": {"fn": "append", "sep": "-"}},
    {"fn": {"fn": "sum_null", "m": 3}, "init": 0, "merger": {"fn": "sum"}, "sub": {"fn": "sub"}},
    {"fn": {"fn": "last"}, "init": None, "merger": {"fn": "sum"}, "sub": {"fn": "sub"}},
)
PROCESSORS: tuple[Json, ...] = (
    {"op": "process_values", "processor": "delta", "args": {}, "store": "kept"},
    {"op": "process", "processor": "stream_ticker", "args": {"every_ms": 10}, "store": "kept"},
    {"op": "process", "processor": "ticker", "args": {"every_ms": 500}, "store": "kept"},
    {"op": "process", "processor": "dedup", "args": {"within_ms": 10, "cleanup_every_ms": 15}, "store": "kept"},
)
REACHES = ((5, 5), (0, 10), (10, 0), (0, 0), (-2, 10), (12, -3), (40, 40))
SAME_KIND = ("filter", "filter_not", "map_values", "suppress")
STREAMS = ("map", "select_key", "flat_map", "flat_map_values", "merge", "repartition", "process", "process_values",
           "stream_join", "stream_table_join", "stream_global_join")  # fmt: skip


@dataclass(slots=True)
class Ends:
    """What operators can follow, by name: streams by key, tables with their windows (None: by key), and which of these have
    versions; global tables."""

    streams: list[str] = field(default_factory=list)
    tables: dict[str, Json] = field(default_factory=dict)
    versioned: set[str] = field(default_factory=set)
    global_tables: list[str] = field(default_factory=list)

    @property
    def plain(self) -> list[str]:
        return [name for name, window in self.tables.items() if window is None]


def ends_of(case: Json) -> Ends:
    """Return what operators can follow in a case. A stream of a windowed table's changes is left out: its keys are no strings."""
    ends, windows = Ends(), dict[str, Json]()
    for source in case["sources"]:
        if source["kind"] == "table":
            ends.tables[source["id"]] = None
        else:
            (ends.streams if source["kind"] == "stream" else ends.global_tables).append(source["id"])
        if "versioned_history_ms" in source:
            ends.versioned.add(source["id"])
    for node in case["nodes"]:
        name, first, op = node["id"], node["in"][0], node["op"]
        if op == "window":
            windows[name] = node["window"]
        elif op == "split":
            ends.streams += [branch["id"] for branch in node["branches"]] + ([node["default"]] if node.get("default") else [])
        elif op in ("count", "reduce", "aggregate"):
            ends.tables[name] = windows.get(first)
        elif op in (*SAME_KIND, "table_join") and first in ends.tables:
            ends.tables[name] = ends.tables[first]
        elif op in ("to_table", "fk_join"):
            ends.tables[name] = None
        elif op in STREAMS or (op in SAME_KIND and first in ends.streams) or _has_plain_keys(ends, node):
            ends.streams.append(name)
        if "versioned_history_ms" in node or (first in ends.versioned and op in SAME_KIND and "store" not in node):
            ends.versioned.add(name)
    return ends


def _has_plain_keys(ends: Ends, node: Json) -> bool:
    """Return whether a node makes a stream by key of a table."""
    return node["op"] == "to_stream" and ("key_fn" in node or ends.tables[node["in"][0]] is None)


def recombined(case: Json, numbers: Random) -> Json:
    """Return a case with one to four further operators, each with a topic of its own."""
    for place in range(numbers.randrange(1, 5)):
        ends = ends_of(case)
        nodes = numbers.choice(ADDITIONS)(ends, numbers) if ends.streams else []
        if not nodes:
            continue
        own = {
            name: f"x{place}-{name}" for node in nodes for name in (node["id"], node.get("store"), node.get("default")) if name
        }
        own |= {branch["id"]: f"x{place}-{branch['id']}" for node in nodes for branch in node.get("branches", ())}
        nodes = [_renamed(node, own) for node in nodes]
        stores: Json = {node["store"]: [] for node in nodes if "store" in node and "versioned_history_ms" not in node}
        sink = {"in": own["end"], "topic": f"x{place}-out"}
        expect = {**case["expect"], "stores": {**case["expect"]["stores"], **stores}}
        case = {**case, "nodes": [*case["nodes"], *nodes], "sinks": [*case["sinks"], sink], "expect": expect, "ordered": False}
    return case


def _renamed(node: Json, names: dict[str, str]) -> Json:
    changed: Json = {name: names[node[name]] for name in ("id", "store", "default") if name in node}
    if "branches" in node:
        changed["branches"] = [{**branch, "id": names[branch["id"]]} for branch in node["branches"]]
    return {**node, **changed, "in": [names.get(name, name) for name in node["in"]]}


# -- what can be added: nodes, the last of which is "end"; none where the case has nothing that it could follow --------------


def _window(numbers: Random) -> Json:
    return numbers.choice((
        {"type": "tumbling", "size": numbers.choice((5, 10, 40)), "grace": numbers.choice((0, 3, 30))},
        {"type": "hopping", "size": 12, "advance": numbers.choice((1, 4, 5, 12)), "grace": numbers.choice((0, 6, 40))},
        {"type": "sliding", "diff": numbers.choice((1, 7, 30)), "grace": numbers.choice((0, 5, 50))},
        {"type": "session", "gap": numbers.choice((1, 5, 20)), "grace": numbers.choice((0, 4, 40))},
        {"type": "unlimited", "start": numbers.choice((0, 10))},
    ))  # fmt: skip


def _kept(node: Json, numbers: Random) -> Json:
    return {**node, "store": "kept"} if numbers.random() < 0.4 else node


def _folded(source: str, numbers: Random, *, is_session: bool = False, is_table: bool = False) -> Json:
    op = numbers.choice(("count", "reduce", "aggregate"))
    node: Json = {"id": "end", "op": op, "in": [source]}
    if op == "reduce":
        node |= {"fn": {"fn": "sum"}, "sub": {"fn": "sub"}} if is_table else {"fn": numbers.choice(REDUCERS)}
    if op == "aggregate":
        taken = {"fn", "init", *(["merger"] if is_session else []), *(["sub"] if is_table else [])}
        node |= {name: value for name, value in numbers.choice(FOLDS).items() if name in taken}
    return _kept(node, numbers)


def _aggregate(ends: Ends, numbers: Random) -> list[Json]:
    grouped: Json = {"id": "grouped", "op": "group_by_key", "in": [numbers.choice(ends.streams)]}
    if numbers.random() < 0.4:
        grouped |= {"op": "group_by", "key_fn": numbers.choice(KEYS)}
    if numbers.random() < 0.4:
        return [grouped, _folded("grouped", numbers)]
    window = _window(numbers)
    windowed: Json = {"id": "windowed", "op": "window", "in": ["grouped"], "window": window}
    if window["type"] != "unlimited" and numbers.random() < 0.35:
        windowed["emit"] = "on_close"
    return [grouped, windowed, _folded("windowed", numbers, is_session=window["type"] == "session")]


def _cogroup(ends: Ends, numbers: Random) -> list[Json]:
    """Of sources: Kafka Streams names the repartitions of a re-keyed one twice alike, and refuses them."""
    streams = [name for name in ends.streams if name.startswith("s")]
    if not streams:
        return []
    inputs = [{"id": f"grouped{at}", "op": "group_by_key", "in": [numbers.choice(streams)]} for at in range(2)]
    fold, window = numbers.choice(FOLDS), _window(numbers)
    made = {"id": "together", "op": "cogroup", "in": [node["id"] for node in inputs], "aggs": [fold["fn"]] * 2}
    windowed = {"id": "windowed", "op": "window", "in": ["together"], "window": window}
    end: Json = {"id": "end", "op": "aggregate", "in": ["windowed"], "init": fold["init"]}
    if window["type"] == "session":
        end["merger"] = fold["merger"]
    return [*inputs, made, windowed, _kept(end, numbers)]


def _table_group(ends: Ends, numbers: Random) -> list[Json]:
    if not ends.tables:
        return []
    name, window = numbers.choice([*ends.tables.items()])
    to_key = numbers.choice(KEYS if window is None else WINDOWED_KEYS)
    grouped = {
        "id": "grouped",
        "op": "table_group_by",
        "in": [name],
        "key_fn": to_key,
        "value_fn": numbers.choice(GROUPED_VALUES),
    }
    return [grouped, _folded("grouped", numbers, is_table=True)]


def _stream_join(ends: Ends, numbers: Random) -> list[Json]:
    before, after = numbers.choice(REACHES)
    left = numbers.choice(ends.streams)
    right = left if numbers.random() < 0.3 else numbers.choice(ends.streams)
    window = {"before": before, "after": after, "grace": numbers.choice((0, 5, 40))}
    kind = numbers.choice(("inner", "left", "outer"))
    return [{"id": "end", "op": "stream_join", "in": [left, right], "type": kind, "window": window, "joiner": _joiner(numbers)}]


def _joiner(numbers: Random) -> Json:
    return numbers.choice((*JOINERS, {"fn": "key_pair"}))


def _stream_table_join(ends: Ends, numbers: Random) -> list[Json]:
    if not ends.plain:
        return []
    inputs = [numbers.choice(ends.streams), numbers.choice(ends.plain)]
    kind = numbers.choice(("inner", "left"))
    return [{"id": "end", "op": "stream_table_join", "in": inputs, "type": kind, "joiner": _joiner(numbers)}]


def _global_join(ends: Ends, numbers: Random) -> list[Json]:
    if not ends.global_tables:
        return []
    inputs = [numbers.choice(ends.streams), numbers.choice(ends.global_tables)]
    by = {"type": numbers.choice(("inner", "left")), "key_fn": numbers.choice(KEYS), "joiner": _joiner(numbers)}
    return [{"id": "end", "op": "stream_global_join", "in": inputs, **by}]


def _table_join(ends: Ends, numbers: Random) -> list[Json]:
    """Of tables whose keys can be equal, also of one with itself."""
    if not ends.tables:
        return []
    left = numbers.choice([*ends.tables])
    right = numbers.choice([name for name, window in ends.tables.items() if _keys_of(window) == _keys_of(ends.tables[left])])
    kind = numbers.choice(("inner", "left", "outer"))
    return [
        _kept({"id": "end", "op": "table_join", "in": [left, right], "type": kind, "joiner": numbers.choice(JOINERS)}, numbers)
    ]


def _keys_of(window: Json) -> Json:
    return window and {name: value for name, value in window.items() if name != "grace"}


def _foreign_join(ends: Ends, numbers: Random) -> list[Json]:
    if not ends.plain:
        return []
    by = {
        "type": numbers.choice(("inner", "left")),
        "fk": numbers.choice((FIELD, MOD, NULLED)),
        "joiner": numbers.choice(JOINERS),
    }
    return [_kept({"id": "end", "op": "fk_join", "in": [numbers.choice(ends.plain), numbers.choice(ends.plain)], **by}, numbers)]


def _view(ends: Ends, numbers: Random) -> list[Json]:
    source = numbers.choice([*ends.streams, *ends.tables])
    node: Json = {"id": "end", "op": numbers.choice(("filter", "filter_not", "map_values")), "in": [source]}
    node |= {"value_fn": numbers.choice(VALUES)} if node["op"] == "map_values" else {"pred": numbers.choice(PREDICATES)}
    return [_kept(node, numbers) if source in ends.tables else node]


def _suppress(ends: Ends, numbers: Random) -> list[Json]:
    tables = [name for name in ends.tables if name not in ends.versioned]
    if not tables:
        return []
    name = numbers.choice(tables)
    window = ends.tables[name]
    if window is not None and window["type"] != "unlimited" and numbers.random() < 0.5:
        return [{"id": "end", "op": "suppress", "in": [name], "until": "window_closes", "buffer": {}}]
    buffer = numbers.choice(({}, {"max_records": numbers.choice((1, 2, 3)), "when_full": "emit_early"}))
    wait_ms = numbers.choice((0, 3, 10, 50))
    return [{"id": "end", "op": "suppress", "in": [name], "until": "time_limit", "ms": wait_ms, "buffer": buffer}]


def _to_table(ends: Ends, numbers: Random) -> list[Json]:
    node: Json = {"id": "end", "op": "to_table", "in": [numbers.choice(ends.streams)]}
    if numbers.random() < 0.5:
        return [{**node, "store": "kept", "versioned_history_ms": numbers.choice((0, 5, 20, 100))}]
    return [_kept(node, numbers)]


def _new_key(ends: Ends, numbers: Random) -> list[Json]:
    return [{"id": "end", "op": "select_key", "in": [numbers.choice(ends.streams)], "key_fn": numbers.choice(KEYS)}]


def _merge(ends: Ends, numbers: Random) -> list[Json]:
    return [{"id": "end", "op": "merge", "in": numbers.sample(ends.streams, 2)}] if len(ends.streams) > 1 else []


def _process(ends: Ends, numbers: Random) -> list[Json]:
    return [{"id": "end", "in": [numbers.choice(ends.streams)], **numbers.choice(PROCESSORS)}]


def _split(ends: Ends, numbers: Random) -> list[Json]:
    branches = [{"id": "first", "pred": numbers.choice(PREDICATES)}, {"id": "end", "pred": numbers.choice(PREDICATES)}]
    return [{"id": "split", "op": "split", "in": [numbers.choice(ends.streams)], "branches": branches, "default": "rest"}]


ADDITIONS: tuple[Callable[[Ends, Random], list[Json]], ...] = (
    _aggregate, _aggregate, _cogroup, _table_group, _stream_join, _stream_table_join, _global_join, _table_join, _table_join,
    _foreign_join, _view, _view, _suppress, _to_table, _new_key, _merge, _process, _split,
)  # fmt: skip
