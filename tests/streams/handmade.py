"""Programs written by hand, so that the runtime is tested without the operators: what they do, plainly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from logflume.log.schemas import BIGINT, STRING, Column
from logflume.streams.graph import TimeWindow
from logflume.streams.seams import Entry, OutputTopic, Plan, StateStore, StoreSpec, SubTopology

WINDOW = TimeWindow(size_ms=1000, advance_ms=1000, grace_ms=500)
COUNTS = StoreSpec("counts", (Column("word", STRING),), (Column("n", BIGINT),))
WINDOWED = StoreSpec("per_second", (Column("word", STRING),), (Column("n", BIGINT), Column("last", BIGINT)), WINDOW)
TABLE = StoreSpec("names", (Column("word", STRING),), (Column("name", STRING),))


@dataclass
class Program:
    """A Program whose function is a class below."""

    function: type
    sources: Mapping[str, str]
    stores: tuple[StoreSpec, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    takes_together: bool = False

    def bind(self, stores: Mapping[str, StateStore], outputs: Any, problems: Any) -> Any:
        return self.function(stores, outputs, problems, **self.settings)


class Base:
    def __init__(self, stores: Mapping[str, StateStore], outputs: Any, problems: Any) -> None:
        self.stores, self.outputs, self.problems = stores, outputs, problems
        self.rows_by_node: dict[str, int] = {}
        self.follows_clock = True

    def follow(self, stream_time_ms: int) -> None:
        pass

    def advance(self, now_ms: int) -> None:
        pass

    def flush(self) -> None:
        pass

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        raise AssertionError("no table source here")


class RekeyByValue(Base):
    """Each record goes out with its value as key; b"poison" is reported and left out."""

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        values = chunk.values()
        rows = []
        for i in range(start, stop):
            if values[i] == b"poison":
                offset = int(chunk.offsets[i])
                self.problems.report("decode", source, chunk.topic, chunk.partition, offset, "not a word")
            else:
                rows.append(i)
        times = chunk.timestamps_ms.tolist()
        words = [values[i] for i in rows]
        self.outputs.send("words", words, words, [times[i] for i in rows], causes=rows)


class Count(Base):
    """Counts per key; each update goes out as decimal text."""

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        store = self.stores["counts"]
        keys, times = chunk.keys()[start:stop], chunk.timestamps_ms.tolist()[start:stop]
        store.load(keys)
        results = []
        for key, time in zip(keys, times, strict=True):
            entry = store.resident.get(key)
            n = entry.state[0] + 1 if entry and entry.state else 1
            store.dirty.setdefault(key, None)
            store.resident[key] = Entry((n,), max(time, entry.timestamp_ms if entry else 0))
            results.append(b"%d" % n)
        store.stream_time_ms = max(store.stream_time_ms, *times)
        self.outputs.send("out", keys, results, times)


class CountWindows(Base):
    """Counts per key and tumbling window, late records left out; results go out at task commit."""

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        store = self.stores["per_second"]
        keys, times = chunk.keys(), chunk.timestamps_ms.tolist()
        starts = {i: times[i] - times[i] % WINDOW.size_ms for i in range(start, stop)}
        full = {i: keys[i] + starts[i].to_bytes(8, "big") for i in starts}
        store.load(full.values())
        for i, key in full.items():
            store.stream_time_ms = max(store.stream_time_ms, times[i])
            if starts[i] + WINDOW.size_ms <= store.stream_time_ms - WINDOW.grace_ms:
                self.problems.report("late", "windows", chunk.topic, chunk.partition, int(chunk.offsets[i]), "late")
                continue
            entry = store.resident.get(key)
            n, last = entry.state if entry and entry.state else (0, -1)
            store.dirty.setdefault(key, None)
            store.resident[key] = Entry((n + 1, max(last, times[i])), max(last, times[i]))

    def follow(self, stream_time_ms: int) -> None:
        pass

    def advance(self, now_ms: int) -> None:
        pass

    def flush(self) -> None:
        store = self.stores["per_second"]
        rows = [(key, store.resident[key]) for key in store.dirty if key in store.resident]
        self.outputs.send(
            "windows",
            [key for key, _ in rows],
            [b"%d" % entry.state[0] if entry.state else None for _, entry in rows],
            [entry.timestamp_ms for _, entry in rows],
        )


class JoinTable(Base):
    """Stream records look up the name of their key."""

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        if source == "names":
            self._put(chunk, start, stop)
            return
        store = self.stores["names"]
        keys, values, times = chunk.keys()[start:stop], chunk.values()[start:stop], chunk.timestamps_ms.tolist()[start:stop]
        store.load(keys)
        found = [store.resident.get(key) for key in keys]
        out = [
            (k, v + b" " + e.state[0].encode(), t) for k, v, t, e in zip(keys, values, times, found, strict=True) if e and e.state
        ]
        self.outputs.send("joined", [k for k, _, _ in out], [v for _, v, _ in out], [t for _, _, t in out])

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        assert source == "names"
        self._put(chunk, start, stop)

    def _put(self, chunk: Any, start: int, stop: int) -> None:
        store = self.stores["names"]
        keys, values, times = chunk.keys(), chunk.values(), chunk.timestamps_ms.tolist()
        store.load(keys[start:stop])
        for i in range(start, stop):
            store.dirty.setdefault(keys[i], None)
            store.resident[keys[i]] = Entry((values[i].decode(),) if values[i] is not None else None, times[i])


class All(Base):
    """Several functions over the same sources."""

    def __init__(
        self, stores: Mapping[str, StateStore], outputs: Any, problems: Any, *, functions: Mapping[type, set[str]]
    ) -> None:
        super().__init__(stores, outputs, problems)
        self.functions = {function(stores, outputs, problems): sources for function, sources in functions.items()}

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        for function, sources in self.functions.items():
            if source in sources:
                function.process(source, chunk, start, stop)

    def follow(self, stream_time_ms: int) -> None:
        pass

    def advance(self, now_ms: int) -> None:
        pass

    def flush(self) -> None:
        for function in self.functions:
            function.flush()

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        for function in self.functions:
            if isinstance(function, JoinTable):
                function.restore(source, chunk, start, stop)


def everything_plan(application: str) -> Plan:
    """lines joined with names, and rekeyed by value; the words counted in all and per second."""
    words = f"{application}-words-repartition"
    front = SubTopology(
        "front",
        Program(
            All,
            {"lines": "lines", "names": "names"},
            (TABLE,),
            settings={"functions": {RekeyByValue: {"lines"}, JoinTable: {"lines", "names"}}},
        ),
        {"words": OutputTopic(words, is_repartition=True), "joined": OutputTopic("joined")},
        {"names": "names"},
    )
    back = SubTopology(
        "back",
        Program(All, {"words": words}, (COUNTS, WINDOWED), settings={"functions": {Count: {"words"}, CountWindows: {"words"}}}),
        {"out": OutputTopic("counts-out"), "windows": OutputTopic("windows-out", key_suffix_bytes=8)},
    )
    return Plan(application, (front, back))


def counting_plan(application: str = "counting", *, repartitions: int | None = None) -> Plan:
    """words -> rekeyed by value -> repartition -> counted."""
    rekey = SubTopology(
        "rekey",
        Program(RekeyByValue, {"lines": "lines"}),
        {"words": OutputTopic(f"{application}-words-repartition", partitions=repartitions, is_repartition=True)},
    )
    count = SubTopology(
        "count", Program(Count, {"words": f"{application}-words-repartition"}, (COUNTS,)), {"out": OutputTopic("counts-out")}
    )
    return Plan(application, (rekey, count))


def window_plan(application: str = "windows", *, repartitions: int | None = None) -> Plan:
    """words -> rekeyed by value -> repartition -> counted per second, windowed keys out."""
    rekey, _ = counting_plan(application, repartitions=repartitions).subtopologies
    count = SubTopology(
        "windows",
        Program(CountWindows, {"words": f"{application}-words-repartition"}, (WINDOWED,)),
        {"windows": OutputTopic("windows-out", key_suffix_bytes=8)},
    )
    return Plan(application, (rekey, count))


def join_plan(application: str = "joining") -> Plan:
    """lines joined with the table `names`, which is restored from its own topic."""
    join = SubTopology(
        "join",
        Program(JoinTable, {"lines": "lines", "names": "names"}, (TABLE,)),
        {"joined": OutputTopic("joined")},
        {"names": "names"},
    )
    return Plan(application, (join,))
