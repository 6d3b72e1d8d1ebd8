"""What a run has put out and what its stores hold, in a form that two runs can be compared in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from logflume.log import StorageError
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition
from logflume.log.schemas import Column
from logflume.streams.graph import StreamJoin, TableAggregate
from logflume.streams.operators.row_log import RowLog
from logflume.streams.operators.rows import Rows
from logflume.streams.operators.stream_join import store_names
from logflume.streams.runtime.positions import read_times
from logflume.streams.runtime.restore import follow_times
from logflume.streams.seams import SubTopology
from logflume.streams.state import TaskState
from tests.kills._families import ANY_ORDER, COMING_AND_GOING, LAST_COUNTS, plan_of, slug

PARTITIONS = 3
_SHOWN = 3
_FEWEST = 3


def records(log: Log, topic: str) -> Iterator[tuple[bytes | None, bytes | None, int]]:
    """Yield (key, value, time) of the committed records, each partition in order."""
    admin = log.admin()
    if not admin.find_topics([topic]):
        return
    partitions = [TopicPartition(topic, p) for p in range(admin.describe_topics([topic])[topic].partitions)]
    ends = admin.end_offsets(partitions, read_committed=True)
    consumer = log.consumer(read_committed=True)
    consumer.assign(partitions)
    while any(consumer.position(tp) < ends[tp] for tp in partitions):
        for chunk in consumer.poll(timeout_s=0.2):
            yield from zip(chunk.keys(), chunk.values(), chunk.timestamps_ms.tolist(), strict=True)
    consumer.close()


def outputs(log: Log, prefix: str, name: str) -> dict[bytes | None, Any]:
    """Return of each key of the committed results a digest of all, in order; or the last where only that is one.

    There a key whose last value is null is as one that never was: a session that came and was merged away between two commits is
    not put out at all. Records without a key come from several partitions: all of them count, in no order.
    """
    found: dict[bytes | None, Any] = {}
    is_last, has_order = name in LAST_COUNTS, name not in ANY_ORDER
    for key, value, time_ms in records(log, f"{prefix}-{slug(name)}-out"):
        if key is None or not has_order:
            found[key] = found.get(key, 0) + hash((value, time_ms))
        elif is_last:
            found[key] = value
        else:
            found[key] = hash((found.get(key), value, time_ms))
    return {key: last for key, last in found.items() if last is not None} if is_last else found


def differences(log: Log, wanted: str, found: str, name: str) -> list[str]:
    """Return in words where the results of two runs differ, of the first keys."""
    ones, others = outputs(log, wanted, name), outputs(log, found, name)
    keys = [key for key in ones.keys() | others.keys() if ones.get(key) != others.get(key)]
    words = [f"{len(keys)} of {len(ones | others)} keys differ"] if keys else []
    words += ["next to nothing was put out"] if len(ones) < _FEWEST else []
    for key in sorted(keys, key=repr)[:_SHOWN]:
        one, other = (
            [row[1:] for row in records(log, f"{prefix}-{slug(name)}-out") if row[0] == key] for prefix in (wanted, found)
        )
        at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        if name in LAST_COUNTS:
            at = max(0, min(len(one), len(other)) - 1)
        words.append(
            f"  key {key!r}: {len(one)} and {len(other)} records, from number {at} on {one[at : at + 3]} and {other[at : at + 3]}"
        )
    return words


def entries(log: Log, path: Path, prefix: str, name: str) -> dict[tuple[str, int, bytes], Any]:
    """Return what the stores hold: (store, partition, key) -> state; of each task from where it was last.

    What has expired by the times that the group knows is left out, as every read does.
    """
    plan, found = plan_of(prefix, name), {}
    offsets = log.admin().group_offsets(plan.application)
    for sub in plan.subtopologies:
        specs = tuple(sub.program.stores)
        for partition in range(PARTITIONS) if specs else ():
            places = sorted((path / prefix).glob(f"*/{slug(name)}/{plan.application}/0/{sub.name}.{partition}"))
            states = []
            for each in places:
                with suppress(StorageError):  # damaged, and of a task that has run elsewhere since
                    states.append(TaskState(each, application=plan.application, task=each.name, specs=specs))
            # What was restored and had nothing to commit since has the changelog's end, and no inputs.
            states.sort(key=lambda state: (sum(state.checkpoint.changelogs.values()), sum(state.checkpoint.inputs.values())))
            inputs = {tp for tp in offsets if tp.partition == partition and tp.topic in sub.program.sources.values()}
            for state in states:
                follow_times(state, read_times({tp: offsets[tp] for tp in inputs}).stores_ms, but=sub.table_sources)
            sides, groups = sides_of(sub), groups_of(sub) if name in COMING_AND_GOING else frozenset()
            for spec in specs if states else ():
                store = states[-1].stores[spec.name]
                if spec.name in sides:
                    found[spec.name, partition, b""] = rows_seen(RowLog(store, sides[spec.name][0]), sides[spec.name][1])
                    continue
                for key, entry in store.range(b"", None):
                    if spec.name in groups and entry.state[0] == 0:  # of no rows
                        continue
                    found[spec.name, partition, key] = repr(entry.state)
            for state in states:
                state.close()
    return found


def unlike(wanted: dict[Any, Any], found: dict[Any, Any]) -> list[str]:
    """Return in words where the entries of two runs differ, of the first keys."""
    keys = [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
    words = [f"{len(keys)} of {len(wanted | found)} entries differ"] if keys else []
    return words + [f"  {key}: {wanted.get(key)!r:.300} and {found.get(key)!r:.300}" for key in sorted(keys, key=repr)[:_SHOWN]]


def sides_of(sub: SubTopology) -> dict[str, tuple[tuple[Column, ...], int]]:
    """Return the stores of joins of streams: columns of the rows, and how long they are seen."""
    found = {}
    wiring = sub.program.wiring  # type: ignore[attr-defined]
    for operator in wiring.operators.values():
        node = operator.node
        if isinstance(node, StreamJoin):
            keep_ms = node.before_ms + node.after_ms + node.grace_ms
            for store, source in zip(store_names(node), node.inputs, strict=True):
                found[store] = wiring.schema(source).value, keep_ms
    return found


def groups_of(sub: SubTopology) -> frozenset[str]:
    """Return the stores of table aggregates; their first column counts the rows."""
    nodes = [operator.node for operator in sub.program.wiring.operators.values()]  # type: ignore[attr-defined]
    return frozenset(node.store for node in nodes if isinstance(node, TableAggregate))


def rows_seen(log: RowLog, keep_ms: int) -> list[Any]:
    """Return key, time, whether it waits, and values of the rows that can be met, or wait: how blocks are cut says nothing."""
    rows: list[Any] = []
    for numbers, keys, times in list(log.start()):
        values = rows_of(log.take(numbers))
        places = zip(numbers.tolist(), keys.objects(), times.tolist(), values, strict=True)
        rows += [(key, time, number in log.marked, repr(value)) for number, key, time, value in places]
    newest = max((time for _, time, _, _ in rows), default=0)
    return sorted(row for row in rows if row[1] > newest - keep_ms or row[2])


def rows_of(rows: Rows) -> list[Any]:
    return list(zip(*(column.objects() for column in rows.columns.values()), strict=True))
