"""Taking the place of a running application: another one, computed beside it, goes on where it stopped, in one step.

The new application has a name, a group and state of its own. Its history up to the cut is computed, and its state written, while
the old one runs. Then the old one is stopped by whoever runs it, and claimed, so that it stays stopped; what it has read beyond
the cut is computed too; and one transaction commits the results, the new one's offsets (= those of the old one, where both read
the same), and beside the old one's that its place is taken. Until then a failure or a kill gives the old one back as it was.

A result topic that both write: of a table it holds afterwards what the new one would have there, so rows of keys that it does not
have are deleted; of a stream it keeps what the old one has written, and the new one's follow from where the old one stopped. So
it is with dead letters, where both keep them in one topic: a record that is put back from there would come back twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from logflume.log import InvalidInput, Log, OffsetAndMetadata, TopicPartition
from logflume.streams.runtime.positions import Claim, read_times, refuse_claimed
from logflume.streams.runtime.problems import letter_facts
from logflume.streams.seams import Plan

from .claims import claim_of, claim_stopped, replaced
from .handover import Switch
from .ranges import OffsetRange, read_range, with_records
from .steps import Progress

_LOOK_EVERY_S = 0.1


def check_replaceable(log: Log, new: str, old: str) -> None:
    """Raise InvalidInput unless an application of that name has begun and is another. What `new` had taken is given back."""
    if new == old:
        raise InvalidInput(
            f"both are called {old!r}: give the new one a name of its own, so that its state is beside the old one's"
        )
    admin = log.admin()
    offsets = admin.group_offsets(old) if old in admin.list_groups() else {}
    if not offsets:
        raise InvalidInput(f"there is no application {old!r} that could be replaced: it has no committed offsets")
    taken, ours = read_times(offsets).claim, claim_of(log, new, is_stable=False)
    if taken is None or ours is None or taken.token != ours.token:
        refuse_claimed(old, offsets)


def is_replaced(log: Log, old: str, new: str) -> bool:
    """Return whether an application has taken the place of another: then only what follows the switch may be left to be done."""
    held = claim_of(log, old)
    return held is not None and held.replaced_by == new


def take_place(
    log: Log,
    plan: Plan,
    ours: Claim,
    ranges: Mapping[TopicPartition, OffsetRange],
    dead_letter_topic: str | None,
    on_progress: Callable[[Progress], None],
) -> tuple[Switch, dict[TopicPartition, OffsetRange]]:
    """Wait until the old application is stopped and take it; return what is to be switched, and what it has read since the cut.

    Raises:
        InvalidInput: somebody else has it; or results of a stream that it owes would be lost.
    """
    old = ours.replaces
    while (offsets := claim_stopped(log, old, ours, plan.application)) is None:
        members = len(log.admin().describe_group(old).members)
        on_progress(Progress(f"computed; now stop {old}: instances of it that run", members, 0))
        time.sleep(_LOOK_EVERY_S)
    outputs = {out.topic: out for sub in plan.subtopologies for out in sub.outputs.values() if not out.is_repartition}
    shared = log.admin().describe_topics(sorted(outputs.keys() - set(ours.made)))
    tables = {topic: found.partitions for topic, found in shared.items() if outputs[topic].is_table}
    streams = frozenset(shared.keys() - tables.keys())
    if streams:
        _refuse_owed(log, old, offsets, ranges)
    if dead_letter_topic is not None and _has_letters(log, dead_letter_topic, old):
        streams |= {dead_letter_topic}
    rest = {tp: OffsetRange(*tp, whole.end, max(whole.end, _position(offsets, tp))) for tp, whole in ranges.items()}
    return Switch(old, replaced(offsets, ours, plan.application), tables, streams), rest


def _has_letters(log: Log, topic: str, application: str) -> bool:
    """Return whether a topic has dead letters of an application."""
    admin = log.admin()
    if not admin.find_topics([topic]):
        return False
    every = [TopicPartition(topic, p) for p in range(admin.describe_topics([topic])[topic].partitions)]
    starts, ends = admin.start_offsets(every), admin.end_offsets(every, read_committed=True)
    wholes = [OffsetRange(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in every]
    letters = (headers for whole in wholes for chunk in read_range(log, whole) for headers in chunk.headers())
    return any(letter_facts(headers).get("application") == application for headers in letters)


def _position(offsets: Mapping[TopicPartition, OffsetAndMetadata], tp: TopicPartition) -> int:
    return offsets[tp].offset if tp in offsets else 0


def _refuse_owed(
    log: Log, old: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], ranges: Mapping[TopicPartition, OffsetRange]
) -> None:
    """Refuse to take a place before what was read there has left: records that the new application takes as history."""
    behind = [f"{tp.topic}-{tp.partition}" for tp, whole in ranges.items() if tp in offsets and offsets[tp].offset < whole.end]
    inside = [tp for tp in offsets if tp.topic.startswith(f"{old}-") and tp.topic.endswith("-repartition")]
    ends = log.admin().end_offsets(inside, read_committed=True)
    on_way = with_records(log, (OffsetRange(*tp, min(offsets[tp].offset, ends[tp]), ends[tp]) for tp in inside))
    if behind or on_way:
        raise InvalidInput(
            f"{old!r} was stopped before it had written all results of what is history now ({', '.join(behind + on_way)}): start "
            "it again, let it catch up, and replace it then; nothing has changed"
        )
