"""Creates, extends and deletes topics, all those of a request together: files off the loop, one write of `cluster.json`.

Each of these is a generator of slices (`turns/slices.py`) and returns the errors by topic; a topic without one is done, durably.
What is asked for was checked before. Topics at work are `TopicRules.busy`, which nobody else changes meanwhile.

Order, for a crash in between: logs are made before their topic is recorded (an empty log without a topic is removed at the next
start), and a topic is recorded as deleted before its logs go (the next start goes on with that).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from logflume.log.broker.core import Core
from logflume.log.broker.replies import Reply, as_reply
from logflume.log.broker.state.metadata import DeletionBegun, DeletionFinished, PartitionsAdded, Topic, TopicsAdded
from logflume.log.errors import LogflumeError, StorageError
from logflume.log.protocol import KafkaError
from logflume.log.storage import PartitionLog

FILES_AT_A_TIME = 64
"""Logs made or deleted by one job of the other thread, which batches of records wait for too."""
TOPICS_AT_A_TIME = 64
THREADS = 8
"""For those files, while requests are served: each thread more makes the loop wait for the interpreter's lock once more."""

Errors = dict[str, StorageError]
OwnErrors = dict[str, LogflumeError]
Change = Generator["Reply | None", None, Errors]
_Job = Callable[[], Any]


def make_own(core: Core, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> Reply:
    """Check and create topics that coordinators need: name -> number of partitions, configs. Those that exist are left.

    The reply is the errors by name.
    """
    reply, failed = Reply(), StorageError("the topic was not made; the broker's log says why")
    answered = as_reply(core.slices.run(_create_own(core, wanted)))
    answered.then(lambda errors: reply.set(errors if isinstance(errors, dict) else dict.fromkeys(wanted, failed)))
    return reply


def _create_own(core: Core, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> Generator[Reply | None, None, OwnErrors]:
    errors: OwnErrors = {}
    topics: list[Topic] = []
    for name, (partition_count, configs) in wanted.items():
        if name in core.cluster.topics:
            continue
        try:
            core.topic_rules.check_new(name, partition_count, configs, others=sum(topic.partition_count for topic in topics))
        except KafkaError as error:
            errors[name] = error
        else:
            topics.append(core.new_topic(name, partition_count, configs))
    return errors | (yield from create_all(core, topics))


def create_all(core: Core, topics: Sequence[Topic]) -> Change:
    """Create topics of different names that were checked."""
    if not topics:
        return {}
    with core.topic_rules.changing(topics, sum(topic.partition_count for topic in topics)):
        errors = yield from _finish_deletions(core, {topic.name for topic in topics})
        if errors:
            return {topic.name: errors.get(topic.name, next(iter(errors.values()))) for topic in topics}
        logs, errors = yield from _make_logs(core, [(topic, range(topic.partition_count)) for topic in topics])
        made = [topic for topic in topics if topic.name not in errors]
        try:
            yield from core.cluster.later(TopicsAdded(tuple(made)))
        except StorageError as error:
            errors |= dict.fromkeys((topic.name for topic in made), error)
            yield from _unmake(core, [(topic, range(topic.partition_count)) for topic in made])
            return errors
        yield from _take_in(core, made, dict.fromkeys(logs, 0), logs)
        return errors


def extend_all(core: Core, totals: Mapping[str, int]) -> Change:
    """Give topics more partitions, which was checked: name -> their new number."""
    if not totals:
        return {}
    topics = [core.cluster.topics[name] for name in totals]
    firsts = {topic.name: topic.partition_count for topic in topics}
    with core.topic_rules.changing(topics, sum(totals[topic.name] - topic.partition_count for topic in topics)):
        more = [(topic, range(topic.partition_count, totals[topic.name])) for topic in topics]
        logs, errors = yield from _make_logs(core, more)
        made = [topic for topic in topics if topic.name not in errors]
        try:
            counts = {topic.name: totals[topic.name] for topic in made}
            yield from core.cluster.later(PartitionsAdded(counts))
        except StorageError as error:
            errors |= dict.fromkeys((topic.name for topic in made), error)
            yield from _unmake(core, [(topic, indexes) for topic, indexes in more if topic in made])
            return errors
        yield from _take_in(core, [core.cluster.topics[name] for name in counts], firsts, logs)
        return errors


def delete_all(core: Core, topics: Sequence[Topic]) -> Change:
    """Delete topics and their data. Long polls on them are woken."""
    if not topics:
        return {}
    with core.topic_rules.changing(topics, 0):
        yield from core.cluster.later(DeletionBegun(frozenset(topic.topic_id for topic in topics)))
        jobs: list[tuple[Topic, _Job]] = []
        for number, topic in enumerate(topics, start=1):
            jobs += [(topic, job) for job in core.take_out(topic)]
            if number % TOPICS_AT_A_TIME == 0:
                yield None
        errors = yield from _delete_logs(core, topics, jobs)
        core.tell_deleted([topic.name for topic in topics])
        return errors


def _finish_deletions(core: Core, names: Collection[str]) -> Change:
    """Delete what an interrupted deletion of topics of these names left."""
    left = [topic for topic in core.cluster.deleting if topic.name in names]
    if not left:
        return {}
    return (yield from _delete_logs(core, left, [(topic, job) for topic in left for job in core.take_out(topic)]))


def _delete_logs(core: Core, topics: Sequence[Topic], jobs: Sequence[tuple[Topic, _Job]]) -> Change:
    """Do jobs that delete logs of topics that are listed as deleted, then list those topics no more. Raises StorageError."""
    outcomes = yield from _elsewhere(core, [job for _, job in jobs])
    errors: Errors = {}
    for (topic, _), outcome in zip(jobs, outcomes, strict=True):
        if isinstance(outcome, StorageError):
            errors[topic.name] = outcome
    gone = [topic for topic in topics if topic.name not in errors]
    yield from core.cluster.later(DeletionFinished(frozenset(topic.topic_id for topic in gone)))
    return errors


def _make_logs(
    core: Core, wanted: Sequence[tuple[Topic, range]]
) -> Generator[Reply | None, None, tuple[dict[str, list[PartitionLog]], Errors]]:
    """Make the logs of partitions; where one fails, none of its topic stays."""
    jobs: list[tuple[Topic, _Job]] = []
    for number, (topic, indexes) in enumerate(wanted, start=1):
        open_one = core.opener(topic, is_new=True)
        jobs += [(topic, partial(open_one, index)) for index in indexes]
        if number % TOPICS_AT_A_TIME == 0:
            yield None
    outcomes = yield from _elsewhere(core, [job for _, job in jobs])
    logs: dict[str, list[PartitionLog]] = {}
    errors: Errors = {}
    for (topic, _), outcome in zip(jobs, outcomes, strict=True):
        if isinstance(outcome, StorageError):
            errors[topic.name] = outcome
        else:
            logs.setdefault(topic.name, []).append(outcome)
    yield from _unmake(core, [(topic, indexes) for topic, indexes in wanted if topic.name in errors])
    return logs, errors


def _unmake(core: Core, made: Sequence[tuple[Topic, range]]) -> Generator[Reply | None, None, None]:
    """Remove logs that are not recorded; what cannot be removed now is at the next start."""

    def remove(topic: Topic, index: int) -> None:
        with contextlib.suppress(StorageError):
            core.data_dir.delete_directory(topic.name, index, topic_id=topic.topic_id.hex())

    yield from _elsewhere(core, [partial(remove, topic, index) for topic, indexes in made for index in indexes])


def _take_in(
    core: Core, topics: Sequence[Topic], firsts: Mapping[str, int], logs: Mapping[str, list[PartitionLog]]
) -> Generator[Reply | None, None, None]:
    for number, topic in enumerate(topics, start=1):
        core.take_in(topic, firsts[topic.name], logs[topic.name])
        if number % TOPICS_AT_A_TIME == 0:
            yield None


def _elsewhere(core: Core, jobs: Sequence[_Job]) -> Generator[Reply | None, None, list[Any]]:
    """Do jobs on files off the loop; return what each returned, or the StorageError that it raised."""
    outcomes: list[Any] = []
    for start in range(0, len(jobs), FILES_AT_A_TIME):
        done = core.offload(partial(core.for_logs, _attempt, jobs[start : start + FILES_AT_A_TIME], threads=THREADS))
        yield done
        if isinstance(done.value, Exception):
            raise done.value
        outcomes += done.value
    return outcomes


def _attempt(job: _Job) -> Any:
    try:
        return job()
    except StorageError as error:
        return error
