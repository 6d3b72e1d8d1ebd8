"""How the members of an application share its tasks: each keeps what it has as far as balance allows. (pure)

A task reads the same partition of all topics of its sub-topology, so these move together. What moves is first given up by its
member, which reads on until the group has agreed, and given to the other one when it has joined again without it (KIP-429). A
task that nobody has goes where its state lies on disk, so that after a restart of all members each has what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from logflume.log.interfaces import Assignment, AssignmentStrategy, Subscription
from logflume.log.records import TopicPartition

NAME = "logflume-tasks"
_MAX_TASKS_TOLD = 10_000

_Task = tuple[str, int]


def task_strategy(topics: Mapping[str, Collection[str]], on_disk: Callable[[], Collection[str]]) -> AssignmentStrategy:
    """Return the strategy of an application. `topics`: sub-topology -> what it reads; `on_disk`: names of tasks with state."""

    def tell() -> bytes:
        return msgspec.json.encode(sorted(on_disk())[:_MAX_TASKS_TOLD])

    def assign(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
        return assign_tasks(topics, members, partition_counts)

    return AssignmentStrategy(NAME, assign, is_cooperative=True, user_data=tell)


@dataclass(slots=True, eq=False)
class _Member:
    """A member while tasks are dealt out."""

    subscription: Subscription
    on_disk: frozenset[str]
    tasks: set[_Task] = field(default_factory=set)

    def load(self, group: str) -> int:
        return sum(name == group for name, _ in self.tasks)


def assign_tasks(
    topics: Mapping[str, Collection[str]], members: Sequence[Subscription], partition_counts: Mapping[str, int]
) -> Assignment:
    """Return who reads what now, without what another member still has.

    Tasks of one sub-topology are spread evenly, and so are all.

    >>> a = Subscription("a", None, frozenset({"x", "y"}))
    >>> b = Subscription("b", None, frozenset({"x", "y"}), user_data=b'["joined.0"]')
    >>> shares = assign_tasks({"joined": ["x", "y"]}, [a, b], {"x": 2, "y": 2})
    >>> {member: [f"{tp.topic}-{tp.partition}" for tp in shares[member]] for member in shares}
    {'a': ['x-1', 'y-1'], 'b': ['x-0', 'y-0']}
    """
    groups = _groups(topics, members, partition_counts)
    parts = {
        (name, partition): [TopicPartition(topic, partition) for topic in read if partition < partition_counts[topic]]
        for name, read in groups.items()
        for partition in range(max(partition_counts[topic] for topic in read))
    }
    dealt = {each.member_id: _Member(each, _told(each)) for each in members}
    order = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    eligible = {
        name: [dealt[each.member_id] for each in order if each.topics >= set(read) & partition_counts.keys()]
        for name, read in groups.items()
    }
    _keep(parts, eligible)
    _deal_out(parts, eligible)
    _even_out(eligible, [dealt[each.member_id] for each in order])
    claims: dict[TopicPartition, set[str]] = {}
    for each in members:
        for tp in each.owned:
            claims.setdefault(tp, set()).add(each.member_id)
    return {
        member_id: sorted(tp for task in member.tasks for tp in _free(parts[task], claims, member_id))
        for member_id, member in dealt.items()
    }


def _free(
    partitions: Sequence[TopicPartition], claims: Mapping[TopicPartition, Collection[str]], member_id: str
) -> list[TopicPartition]:
    """Return a task's partitions when no other member has one of them; else those that the member has itself."""
    is_held = any(tp in claims and member_id not in claims[tp] for tp in partitions)
    return [tp for tp in partitions if not is_held or member_id in claims.get(tp, ())]


def _groups(
    topics: Mapping[str, Collection[str]], members: Sequence[Subscription], partition_counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return what is read together, as far as it exists and somebody wants it; what is unknown here is read by itself."""
    wanted = set().union(*(each.topics for each in members)) & partition_counts.keys()
    groups = {name: sorted(wanted.intersection(read)) for name, read in topics.items()}
    grouped = {topic for read in groups.values() for topic in read}
    alone = {topic: [topic] for topic in sorted(wanted - grouped)}
    return {name: read for name, read in {**groups, **alone}.items() if read}


def _told(member: Subscription) -> frozenset[str]:
    """Return what a member says to have on disk; what is no such text counts as nothing."""
    try:
        return frozenset(msgspec.json.decode(member.user_data or b"[]", type=list[str]))
    except msgspec.MsgspecError:
        return frozenset()


def _keep(parts: Mapping[_Task, Sequence[TopicPartition]], eligible: Mapping[str, Sequence[_Member]]) -> None:
    """Leave each task with the member that has it: of several that say so the one of the latest generation, nobody in doubt."""
    for task, partitions in parts.items():
        wanted = set(partitions)
        claiming = [each for each in eligible[task[0]] if wanted & each.subscription.owned]
        latest = max((each.subscription.generation for each in claiming), default=0)
        of_latest = [each for each in claiming if each.subscription.generation == latest]
        if len(of_latest) == 1:
            of_latest[0].tasks.add(task)


def _deal_out(parts: Mapping[_Task, Sequence[TopicPartition]], eligible: Mapping[str, Sequence[_Member]]) -> None:
    """Give each task that nobody has to a member with its state that is not full yet, then the rest to whoever has least."""
    taken = {task for group in eligible.values() for each in group for task in each.tasks}
    free = [task for task in parts if task not in taken and eligible[task[0]]]
    everybody = {id(each) for group in eligible.values() for each in group}
    share, rest = -(-len(parts) // max(1, len(everybody))), []
    for task in free:
        group = eligible[task[0]]
        full = -(-sum(name == task[0] for name, _ in parts) // len(group))
        roomy = [each for each in group if each.load(task[0]) < full and len(each.tasks) < share]
        having = [each for each in roomy if f"{task[0]}.{task[1]}" in each.on_disk]
        if having:
            min(having, key=lambda each: each.load(task[0])).tasks.add(task)
        else:
            rest.append(task)
    for task in rest:
        min(eligible[task[0]], key=lambda each: (each.load(task[0]), len(each.tasks))).tasks.add(task)


def _even_out(eligible: Mapping[str, Sequence[_Member]], members: Sequence[_Member]) -> None:
    """Move tasks until those of each sub-topology, and then all, differ by one at most where they can. Each move evens loads."""
    for name, group in eligible.items():
        while group and max(each.load(name) for each in group) > min(each.load(name) for each in group) + 1:
            _move(name, max(group, key=lambda each: each.load(name)), min(group, key=lambda each: each.load(name)))
    while (found := _uneven(eligible, members)) is not None:
        _move(*found)


def _uneven(eligible: Mapping[str, Sequence[_Member]], members: Sequence[_Member]) -> tuple[str, _Member, _Member] | None:
    """Return (sub-topology, who has too much, who has too little), where one task more or less does not matter to it."""
    for giver in sorted(members, key=lambda each: -len(each.tasks)):
        for taker in sorted(members, key=lambda each: len(each.tasks)):
            if len(giver.tasks) <= len(taker.tasks) + 1:
                break
            for name, group in eligible.items():
                if giver in group and taker in group and giver.load(name) > taker.load(name):
                    return name, giver, taker
    return None


def _move(name: str, giver: _Member, taker: _Member) -> None:
    """Hand over one task, if possible one whose state the taker has."""
    having = [task for task in giver.tasks if task[0] == name]
    task = max(having, key=lambda each: (f"{each[0]}.{each[1]}" in taker.on_disk, each))
    giver.tasks.discard(task)
    taker.tasks.add(task)
