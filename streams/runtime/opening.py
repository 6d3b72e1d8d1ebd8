"""Opens a task where its application has come to: committed offsets are the truth, the local state may be older, never newer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from logflume.log import InvalidInput, LogflumeError, StorageError, UnknownName
from logflume.log.interfaces import Admin, OffsetAndMetadata, TopicDescription
from logflume.log.records import TopicPartition
from logflume.streams.seams import Plan, SubTopology, changelog_topic
from logflume.streams.state import Checkpoint, DiskMemory, StateDirectory, StoreChanged, TaskState

from .handlers import StreamsError
from .options import EngineOptions, Guarantee, OnGap
from .positions import changed_contents, read_times, refuse_claimed
from .problems import TaskProblems
from .restore import Restoration, follow_times
from .task import Task, task_name
from .topic_look import TopicLook
from .topics import TopicMap

TOMBSTONES_SURE_S = 20 * 3600.0
"""Less than the default `delete.retention.ms` of compacted topics, 24 hours."""

_log = logging.getLogger("logflume.streams")

Range = tuple[TopicPartition, int, int]
"""The partition to restore a store from, from where, and to where."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What opening a task needs beside its own name. `address`: where this instance answers questions, "" nowhere.

    `disk_memory`: what RocksDB may take, for all tasks. `look`: what topics are, by a question that engines share.
    """

    plan: Plan
    options: EngineOptions
    directory: StateDirectory
    topics: TopicMap
    admin: Admin
    wall_s: Callable[[], float]
    disk_memory: DiskMemory
    look: TopicLook
    address: str = ""


class TopicMadeAnew(LogflumeError):
    """An input is another topic of the same name now; the next session says what that means for the offsets."""

    code = "TOPIC_MADE_ANEW"
    is_retriable = True


def source_ids(around: Surroundings) -> dict[str, str]:
    """Return the ids of all topics that are read.

    Raises:
        StreamsError: one is gone, or has another number of partitions than when the application started.
    """
    topics = _inputs(around)
    try:
        return _ids(around, around.admin.describe_topics(topics))
    except UnknownName as error:
        raise StreamsError(
            f"an input of {around.plan.application!r} was deleted while it was read: {error}; start again once it is there: what "
            "has state behind it says then how to go on"
        ) from error


def newer_source_ids(around: Surroundings, *, than_s: float) -> dict[str, str]:
    """Return the ids of all topics that are read, by what was asked after `than_s`; {}: the answer is on its way.

    Raises as `source_ids` does.
    """
    topics = _inputs(around)
    found = around.look.newer(topics, than_s=than_s)
    if found is None:
        return {}
    return _ids(around, found) if len(found) == len(topics) else source_ids(around)


def _inputs(around: Surroundings) -> list[str]:
    return sorted({topic for sub in around.plan.subtopologies for topic in sub.program.sources.values()})


def _ids(around: Surroundings, found: Mapping[str, TopicDescription]) -> dict[str, str]:
    for name, topic in found.items():
        if topic.partitions != around.topics.partitions[name] and any(
            sub.program.stores and name in sub.shared_topics() for sub in around.plan.subtopologies
        ):
            raise StreamsError(
                f"topic {name!r} has {topic.partitions} partitions now, {around.topics.partitions[name]} when the application "
                "started: keys have moved between partitions, and the state has not; start again to see what can be done"
            )
    return {name: topic.topic_id for name, topic in found.items()}


def start_positions(
    around: Surroundings, committed: Mapping[TopicPartition, OffsetAndMetadata | None], ids: Mapping[str, str]
) -> dict[TopicPartition, int]:
    """Return where to read each input from: the committed offset, else as `offset_reset` says. `ids`: topic -> id as it is now.

    Raises:
        StreamsError: records were deleted by retention before they were read, or the topic was made anew, and `on_gap` says to
            stop.
        InvalidInput: somebody has the application for itself.
    """
    known = {partition: offset for partition, offset in committed.items() if offset is not None}
    refuse_claimed(around.plan.application, known)
    starts = around.admin.start_offsets(committed)
    fresh = [partition for partition, offset in committed.items() if offset is None]
    ends = around.admin.end_offsets(fresh) if fresh and around.options.offset_reset == "latest" else {}
    positions = {}
    kept_ids = read_times(known).ids
    for partition, offset in committed.items():
        if offset is not None and kept_ids.get(partition, ids[partition.topic]) != ids[partition.topic]:
            positions[partition] = _of_another_topic(around.options, partition, offset.offset, starts[partition])
        elif offset is None:
            is_repartition = partition.topic in around.topics.repartition_topics
            positions[partition] = starts[partition] if is_repartition else ends.get(partition, starts[partition])
        elif offset.offset < starts[partition]:
            positions[partition] = across_gap(around.options, partition, offset.offset, starts[partition])
        else:
            positions[partition] = offset.offset
    return positions


def _of_another_topic(options: EngineOptions, partition: TopicPartition, wanted: int, oldest: int) -> int:
    """Return the oldest offset of a topic that was made anew, or raise StreamsError, as `on_gap` says."""
    where = f"{partition.topic}-{partition.partition}"
    text = f"topic {partition.topic!r} was deleted and made anew: offset {wanted} that was reached in {where} was another topic's"
    if options.on_gap is OnGap.STOP:
        raise StreamsError(
            f"{text}; set on_gap='earliest' to go on with the oldest record of the new one (state stays as it is), or reset the "
            "application"
        )
    _log.warning("%s; going on from %d", text, oldest)
    return oldest


def across_gap(options: EngineOptions, partition: TopicPartition, wanted: int, oldest: int) -> int:
    """Return the oldest offset after saying what was lost, or raise StreamsError, as `on_gap` says."""
    where = f"{partition.topic}-{partition.partition}"
    text = f"{where}: offsets {wanted} to {oldest - 1} were deleted by retention before they were read"
    if options.on_gap is OnGap.STOP:
        raise StreamsError(
            f"{text}; set on_gap='earliest' to go on from {oldest} without them, reset the group's offsets yourself, or give the "
            "topic a longer retention"
        )
    _log.warning("%s; going on from %d", text, oldest)
    return oldest


def open_task(
    around: Surroundings,
    subtopology: SubTopology,
    partition: int,
    assigned: frozenset[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    positions: Mapping[TopicPartition, int],
    *,
    memory_bytes: int,
) -> tuple[Task, list[Restoration]]:
    """Open state and program of a task; the stores may still have to be restored before it processes.

    Raises:
        InvalidInput: its state belongs to something else or means something else; StorageError: it is locked.
    """
    sources = {
        node: TopicPartition(topic, partition)
        for node, topic in subtopology.program.sources.items()
        if node not in subtopology.global_sources and TopicPartition(topic, partition) in assigned
    }
    inputs = set(sources.values())
    known = {tp: offset for tp in inputs if (offset := committed.get(tp)) is not None}
    name = task_name(subtopology, partition)
    times = read_times(known)
    check_contents(around.plan.application, subtopology, times.contents, around.directory.path)
    state, ranges = None, dict[str, Range]()
    if subtopology.program.stores:
        state, ranges = _state_that_fits(around, subtopology, partition, inputs, positions, memory_bytes)
        follow_times(state, times.stores_ms, but=subtopology.table_sources)
    checkpoint = Checkpoint(
        {tp: positions[tp] for tp in inputs},
        {tp: times.inputs_ms.get(tp, -1) for tp in inputs},
        {store: start for store, (_, start, _) in ranges.items()},
        tables=dict(state.checkpoint.tables) if state else {},
    )
    try:
        task = Task(
            subtopology,
            partition,
            inputs=sources,
            state=state,
            problems=TaskProblems(
                name,
                handlers=around.options.handlers,
                keeps_letters=around.options.dead_letter_topic is not None,
                application=around.plan.application,
            ),
            checkpoint=checkpoint,
            repartition_topics=around.topics.repartition_topics,
        )
    except BaseException:  # it reads its stores, which may be damaged
        if state is not None:
            state.close()
        raise
    for tp, offset in known.items():
        if offset.offset < positions[tp]:
            task.miss(tp, offset.offset, positions[tp])
    restorations = [
        Restoration(task, store, source, start, end, store in subtopology.table_sources, times.stores_ms.get(store, -1))
        for store, (source, start, end) in ranges.items()
    ]
    return task, restorations


def check_stores(plan: Plan, admin: Admin, drops: Collection[str]) -> None:
    """Refuse to start without stores that the application has kept so far, unless the setting names them.

    Raises:
        InvalidInput: with the stores, and how near ones are named now; or somebody has the application for itself.
    """
    committed = admin.group_offsets(plan.application)
    refuse_claimed(plan.application, committed)
    before = read_times(committed).contents
    now = {spec.name for sub in plan.subtopologies for spec in sub.program.stores}
    lost = sorted(set(before) - now - set(drops))
    fresh = sorted({store for sub in plan.subtopologies for store in sub.contents} - set(before))
    if lost:
        raise InvalidInput(
            f"application {plan.application!r} has kept {_list(lost)}, which the topology does not have any more"
            + (f" (new in it: {_list(fresh)}, which would begin empty)" if fresh else "")
            + f": give what was renamed its old name=..., or let the state go with drops={lost!r}"
        )
    if fresh and before:
        _log.warning("%s: %s begin empty, where the application stands now: what came before is not in them",
                     plan.application, _list(fresh))  # fmt: skip


def _list(stores: Iterable[str]) -> str:
    return ", ".join(f"store {name!r}" for name in stores)


def check_contents(application: str, subtopology: SubTopology, before: Mapping[str, str], folder: Path) -> None:
    """Refuse to go on with state that means something else than the topology says now. `folder`: where it is, beside the log."""
    for store, held, wanted in changed_contents(before, subtopology.contents):
        raise InvalidInput(
            f"store {store!r} holds {held}; the topology now keeps {wanted} under that name, taking one for the other. "
            "Give what has changed another name=... (it begins empty, where the application stands now), or the application "
            f"another name (it begins with the oldest record), or reset it: delete group {application!r}, topic "
            f"{changelog_topic(application, store)!r} and {folder}"
        )


def check_restored(around: Surroundings, task: Task, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
    """Refuse state without offsets: the inputs would be counted into it a second time.

    Raises:
        StreamsError: with what to do.
    """
    if task.state is None or around.options.guarantee is not Guarantee.EXACTLY_ONCE:
        return
    if any(committed.get(partition) is not None for partition in task.inputs):
        return
    filled = [
        name
        for name, store in task.state.stores.items()
        if name not in task.subtopology.table_sources and next(iter(store.range(b"", None)), None) is not None
    ]
    if filled:
        group, topic = around.plan.application, min(task.inputs).topic
        raise StreamsError(
            f"task {task.name}: stores {', '.join(filled)} have entries, but group {group!r} has no committed offsets (deleted "
            "or expired, or the topic was made anew), so that records of its input may be counted twice; set them, with "
            f"`logflume group reset {group} --topic {topic} --to beginning` for a topic that is new and state that stays, or let "
            "all begin anew with `logflume streams reset FILE`"
        )


def _state_that_fits(
    around: Surroundings,
    subtopology: SubTopology,
    partition: int,
    inputs: Collection[TopicPartition],
    positions: Mapping[TopicPartition, int],
    memory_bytes: int,
) -> tuple[TaskState, dict[str, Range]]:
    """Open the state of a task, anew where it cannot be brought up to date; return it with what is to be restored."""
    name, ids = task_name(subtopology, partition), _ids_behind(around, subtopology)
    state = _open_state(around, subtopology, name, memory_bytes)
    is_of_another = any(ids.get(topic, before) != before for topic, before in state.checkpoint.topic_ids.items())
    ranges = None if is_of_another else _ranges(around, subtopology, partition, state.checkpoint, positions)
    if ranges is None or any(state.checkpoint.inputs.get(tp, 0) > positions[tp] for tp in inputs):
        why = "its topics were made anew" if is_of_another else "too old, or the log went back"
        _log.warning("task %s: the local state does not fit the log (%s); rebuilding it", name, why)
        state.close()
        around.directory.wipe(name)
        state = _open_state(around, subtopology, name, memory_bytes)
        ranges = _ranges(around, subtopology, partition, state.checkpoint, positions)
        assert ranges is not None, "an empty database fits any log"
    state.topic_ids = ids
    return state, ranges


def _ids_behind(around: Surroundings, subtopology: SubTopology) -> dict[str, str]:
    """Return the ids of the topics that a sub-topology's stores are restored from."""
    topics = {around.topics.changelogs[subtopology.name, spec.name] for spec in subtopology.program.stores}
    return {name: topic.topic_id for name, topic in around.admin.describe_topics(sorted(topics)).items()}


def _open_state(around: Surroundings, subtopology: SubTopology, name: str, memory_bytes: int) -> TaskState:
    path, stores = around.directory.task_path(name), subtopology.program.stores
    application = around.plan.application
    try:
        return TaskState(
            path, application=application, task=name, specs=stores, memory_bytes=memory_bytes, disk_memory=around.disk_memory
        )
    except StoreChanged as error:
        if not error.is_layout and error.store not in subtopology.table_sources:
            raise
        _log.warning("task %s: %s; rebuilding it", name, error)
        around.directory.wipe(name)
        return TaskState(
            path, application=application, task=name, specs=stores, memory_bytes=memory_bytes, disk_memory=around.disk_memory
        )
    except InvalidInput:
        raise
    except StorageError as error:
        if error.code == "DATA_DIR_LOCKED":
            raise
        _log.warning("task %s: %s; rebuilding it", name, error)
        around.directory.wipe(name)
        return TaskState(
            path, application=application, task=name, specs=stores, memory_bytes=memory_bytes, disk_memory=around.disk_memory
        )


def _known(around: Surroundings, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [each for each in partitions if each.partition < around.topics.partitions.get(each.topic, 0)]


def _ranges(
    around: Surroundings,
    subtopology: SubTopology,
    partition: int,
    checkpoint: Checkpoint,
    positions: Mapping[TopicPartition, int],
) -> dict[str, Range] | None:
    """Return what is to be restored by store; None when the local state cannot be brought up to date by its tail.

    That is when it is not within the log, or so old that compaction may have removed tombstones it has not seen.
    """
    sources = {
        spec.name: TopicPartition(around.topics.changelogs[subtopology.name, spec.name], partition)
        for spec in subtopology.program.stores
        if spec.name not in subtopology.global_stores()
    }
    is_stale = around.wall_s() - checkpoint.written_s > TOMBSTONES_SURE_S
    starts = around.admin.start_offsets(set(sources.values()))
    ends = around.admin.end_offsets(set(sources.values()))
    for source, offset in around.admin.end_offsets(_known(around, checkpoint.tables)).items():
        if offset < checkpoint.tables[source] or (is_stale and offset > checkpoint.tables[source]):
            return None
    ranges = {}
    for store, source in sources.items():
        end = positions.get(source, 0) if store in subtopology.table_sources else ends[source]
        local = checkpoint.changelogs.get(store)
        if local is not None and (local > end or local < starts[source] or (is_stale and local < end)):
            return None
        ranges[store] = (source, starts[source] if local is None else local, end)
    return ranges
