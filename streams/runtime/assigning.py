"""How the members of an application share its tasks: each keeps what it has as far as balance allows. (pure)

A task reads the same partition of all topics of its sub-topology, so these move together. What moves is first given up by its
member, which reads on until the group has agreed, and given to the other one when it has joined again without it (KIP-429). A
task that nobody has goes where its state is, on disk or as a standby: after a restart of all members each has what it had.

Members say how far the copies on their disks have come. A copy that lacks no more than `acceptable_lag_records` of the furthest
one is *warm*. State is given only to members that are warm: who is to have it and is not first warms up beside the one that has
it (KIP-441), and joins again when it is ready.

Members may say in which rack they are. Copies of a task are kept in racks where it is not yet, as far as there are any; only then
are they spread evenly (KIP-708).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from logflume.log.interfaces import Assignment, AssignmentStrategy, Subscription, claims_of
from logflume.log.records import TopicPartition

NAME = "logflume-tasks"
_MAX_TASKS_TOLD = 10_000

TaskId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sharing:
    """What is to be shared, and how. `topics`: sub-topology -> what it reads; `stateful`: the sub-topologies with stores."""

    topics: Mapping[str, Collection[str]]
    stateful: frozenset[str] = frozenset()
    standby_replicas: int = 0
    warmup_replicas_max: int = 2
    acceptable_lag_records: int = 10_000


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member says when it joins: its rack, and how far the copies on its disk have come, by task."""

    rack: str | None = None
    copies: dict[str, int] = {}


class Copies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names of tasks whose state a member follows without running them; what warms up is given to it when it is ready."""

    standbys: tuple[str, ...] = ()
    warmups: tuple[str, ...] = ()


_decode_copies = msgspec.json.Decoder(Copies).decode
_decode_told = msgspec.json.Decoder(Told).decode


def task_strategy(
    sharing: Sharing,
    progress: Callable[[], Mapping[str, int]],
    on_copies: Callable[[Copies], None],
    *,
    rack: str | None = None,
) -> AssignmentStrategy:
    """Return the strategy of an application.

    `progress`: names of the tasks with state on this disk -> how far it has come, a sum of offsets. `rack`: where this member is.
    """

    def tell() -> bytes:
        return msgspec.json.encode(Told(rack, dict(sorted(progress().items())[:_MAX_TASKS_TOLD])))

    def assign(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
        return assign_tasks(sharing, members, partition_counts)

    def advise(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> dict[str, bytes]:
        return {name: msgspec.json.encode(each) for name, each in assign_copies(sharing, members, partition_counts).items()}

    return AssignmentStrategy(
        NAME, assign, is_cooperative=True, user_data=tell, advise=advise, on_advice=lambda data: on_copies(read_copies(data))
    )


def read_copies(data: bytes) -> Copies:
    """Return what a leader says; what is no such text counts as nothing."""
    try:
        return _decode_copies(data or b"{}")
    except msgspec.MsgspecError:
        return Copies()


def assign_tasks(sharing: Sharing, members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Return who reads what now, without what another member still has.

    Tasks of one sub-topology are spread evenly, and so are all, as far as their state is warm where they are to go.

    >>> a = Subscription("a", None, frozenset({"x", "y"}))
    >>> b = Subscription("b", None, frozenset({"x", "y"}), user_data=b'{"copies": {"joined.0": 7}}')
    >>> shares = assign_tasks(Sharing({"joined": ["x", "y"]}), [a, b], {"x": 2, "y": 2})
    >>> {member: [f"{tp.topic}-{tp.partition}" for tp in shares[member]] for member in shares}
    {'a': ['x-1', 'y-1'], 'b': ['x-0', 'y-0']}
    """
    deal = _deal(sharing, members, partition_counts)
    return {
        member_id: sorted(tp for task in member.tasks for tp in _free(deal.parts[task], deal.claims, member_id))
        for member_id, member in deal.members.items()
    }


def assign_copies(sharing: Sharing, members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> dict[str, Copies]:
    """Return whose state each member follows: standbys, what warms up, and what it is to have once another has given it up.

    >>> members = [Subscription(name, None, frozenset({"x"})) for name in "abc"]
    >>> sharing = Sharing({"counts": ["x"]}, frozenset({"counts"}), standby_replicas=1)
    >>> {name: each.standbys for name, each in assign_copies(sharing, members, {"x": 3}).items()}
    {'a': ('counts.2',), 'b': ('counts.0',), 'c': ('counts.1',)}
    """
    deal = _deal(sharing, members, partition_counts)
    standbys: dict[str, set[TaskId]] = {name: set(member.standbys) for name, member in deal.members.items()}
    for name, member in deal.members.items():
        for task in member.tasks:
            if task[0] in sharing.stateful and set(_free(deal.parts[task], deal.claims, name)) != set(deal.parts[task]):
                standbys[name].add(task)
    return {
        name: Copies(tuple(_name(task) for task in sorted(standbys[name])), tuple(_name(task) for task in member.warmups))
        for name, member in deal.members.items()
    }


def _name(task: TaskId) -> str:
    return f"{task[0]}.{task[1]}"


@dataclass(slots=True, eq=False)
class _Member:
    """A member while tasks are dealt out. `loads`: how many of its tasks are of each sub-topology."""

    subscription: Subscription
    told: Mapping[str, int]
    rack: str | None = None
    tasks: set[TaskId] = field(default_factory=set)
    loads: Counter[str] = field(default_factory=Counter)
    standbys: dict[TaskId, None] = field(default_factory=dict)
    warmups: list[TaskId] = field(default_factory=list)

    def load(self, group: str) -> int:
        return self.loads[group]

    def take(self, task: TaskId) -> None:
        self.tasks.add(task)
        self.loads[task[0]] += 1

    def give(self, task: TaskId) -> None:
        self.tasks.discard(task)
        self.loads[task[0]] -= 1

    def has(self, task: TaskId) -> bool:
        return _name(task) in self.told


@dataclass(frozen=True, slots=True)
class _Deal:
    """Who has what. `parts`: task -> what it reads; `eligible`: sub-topology -> who may have it; `claims`: who reads what."""

    sharing: Sharing
    members: dict[str, _Member]
    parts: Mapping[TaskId, Sequence[TopicPartition]]
    eligible: Mapping[str, Sequence[_Member]]
    claims: Mapping[TopicPartition, Collection[str]]
    furthest: Mapping[str, int]

    def is_warm(self, member: _Member, task: TaskId) -> bool:
        name = _name(task)
        return self.furthest.get(name, 0) - member.told.get(name, 0) <= self.sharing.acceptable_lag_records


def _deal(sharing: Sharing, members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> _Deal:
    groups = _groups(sharing.topics, members, partition_counts)
    told = {each.member_id: _told(each) for each in members}
    dealt = {each.member_id: _Member(each, told[each.member_id].copies, told[each.member_id].rack) for each in members}
    order = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    furthest: dict[str, int] = {}
    for each in members:
        for name, position in dealt[each.member_id].told.items():
            furthest[name] = max(position, furthest.get(name, 0))
    deal = _Deal(
        sharing,
        dealt,
        {
            (name, partition): [TopicPartition(topic, partition) for topic in read if partition < partition_counts[topic]]
            for name, read in groups.items()
            for partition in range(max(partition_counts[topic] for topic in read))
        },
        {
            name: [dealt[each.member_id] for each in order if each.topics >= set(read) & partition_counts.keys()]
            for name, read in groups.items()
        },
        claims_of(members),
        furthest,
    )
    _keep(deal.parts, deal.eligible)
    _deal_out(deal)
    before = {task: member for member in dealt.values() for task in member.tasks}
    _even_out(deal, [dealt[each.member_id] for each in order])
    _warm_up(deal, before)
    _stand_by(deal)
    return deal


def _free(
    partitions: Sequence[TopicPartition], claims: Mapping[TopicPartition, Collection[str]], member_id: str
) -> list[TopicPartition]:
    """Return a task's partitions when no other member has one of them; else those that the member has itself."""
    is_free = all(claims.get(tp, {member_id}) == {member_id} for tp in partitions)
    return [tp for tp in partitions if is_free or claims.get(tp) == {member_id}]


def _groups(
    topics: Mapping[str, Collection[str]], members: Sequence[Subscription], partition_counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return what is read together, as far as it exists and somebody wants it; what is unknown here is read by itself."""
    wanted = set().union(*(each.topics for each in members)) & partition_counts.keys()
    groups = {name: sorted(wanted.intersection(read)) for name, read in topics.items()}
    grouped = {topic for read in groups.values() for topic in read}
    alone = {topic: [topic] for topic in sorted(wanted - grouped)}
    return {name: read for name, read in {**groups, **alone}.items() if read}


def _told(member: Subscription) -> Told:
    """Return what a member says of itself; what is no such text counts as nothing."""
    try:
        return _decode_told(member.user_data or b"{}")
    except msgspec.MsgspecError:
        return Told()


def _keep(parts: Mapping[TaskId, Sequence[TopicPartition]], eligible: Mapping[str, Sequence[_Member]]) -> None:
    """Leave each task with the member that has it: of several that say so the one of the latest generation, nobody in doubt."""
    for task, partitions in parts.items():
        wanted = set(partitions)
        claiming = [each for each in eligible[task[0]] if wanted & each.subscription.owned]
        latest = max((each.subscription.generation for each in claiming), default=0)
        of_latest = [each for each in claiming if each.subscription.generation == latest]
        if len(of_latest) == 1:
            of_latest[0].take(task)


def _deal_out(deal: _Deal) -> None:
    """Give each task that nobody has to a warm member with its state, if possible one that is not full; the rest evenly."""
    parts, eligible = deal.parts, deal.eligible
    taken = {task for group in eligible.values() for each in group for task in each.tasks}
    free = [task for task in parts if task not in taken and eligible[task[0]]]
    everybody = {id(each) for group in eligible.values() for each in group}
    sizes = Counter(name for name, _ in parts)
    share, rest = -(-len(parts) // max(1, len(everybody))), []
    for task in free:
        group = eligible[task[0]]
        full = -(-sizes[task[0]] // len(group))
        warm = [each for each in group if deal.is_warm(each, task)]
        having = [each for each in warm if each.has(task)]
        roomy = [each for each in having if each.load(task[0]) < full and len(each.tasks) < share]
        if roomy or (having and len(warm) < len(group)):
            min(roomy or having, key=lambda each: (each.load(task[0]), len(each.tasks))).take(task)
        else:
            rest.append(task)
    for task in rest:
        min(eligible[task[0]], key=lambda each: (each.load(task[0]), len(each.tasks))).take(task)


def _even_out(deal: _Deal, members: Sequence[_Member]) -> None:
    """Move tasks until those of each sub-topology, and then all, differ by one at most where they can. Each move evens loads."""
    for name, group in deal.eligible.items():
        while group and max(each.load(name) for each in group) > min(each.load(name) for each in group) + 1:
            _move(name, max(group, key=lambda each: each.load(name)), min(group, key=lambda each: each.load(name)))
    while (found := _uneven(deal.eligible, members)) is not None:
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
    """Hand over one task, if possible one of whose state the taker has most."""
    having = [task for task in giver.tasks if task[0] == name]
    task = max(having, key=lambda each: (taker.told.get(_name(each), -1), each))
    giver.give(task)
    taker.take(task)


def _warm_up(deal: _Deal, before: Mapping[TaskId, _Member]) -> None:
    """Leave what moved to a member that is not warm where it was; the first of these begin to warm up."""
    left = deal.sharing.warmup_replicas_max
    after = {task: member for member in deal.members.values() for task in member.tasks}
    for task, giver in sorted(before.items(), key=lambda item: item[0]):
        taker = after[task]
        if taker is giver or deal.is_warm(taker, task):
            continue
        taker.give(task)
        giver.take(task)
        if left > 0:
            left -= 1
            taker.warmups.append(task)


def _stand_by(deal: _Deal) -> None:
    """Choose who follows the state of whose tasks: who has most of it already, as long as standbys are spread evenly."""
    stateful = [task for task in sorted(deal.parts) if task[0] in deal.sharing.stateful]
    room = -(-len(stateful) * deal.sharing.standby_replicas // max(1, len(deal.members)))
    for _ in range(deal.sharing.standby_replicas):
        for task in stateful:
            free = [each for each in deal.eligible[task[0]] if _may_follow(each, task)]
            known = _racks(deal, task)
            free = [each for each in free if each.rack is not None and each.rack not in known] or free
            having = [each for each in free if each.has(task) and len(each.standbys) < room]
            if having:
                max(having, key=lambda each: each.told[_name(task)]).standbys[task] = None
            elif free:
                min(free, key=lambda each: len(each.standbys)).standbys[task] = None
    _spread_standbys(deal)


def _racks(deal: _Deal, task: TaskId, *, but: _Member | None = None) -> set[str]:
    """Return the racks in which a task or a copy of it is."""
    having = (each for each in deal.members.values() if each is not but and (task in each.tasks or task in each.standbys))
    return {each.rack for each in having if each.rack is not None}


def _may_follow(member: _Member, task: TaskId) -> bool:
    return task not in member.tasks and task not in member.standbys and task not in member.warmups


def _is_as_far_apart(deal: _Deal, task: TaskId, giver: _Member, taker: _Member) -> bool:
    """Return whether a copy of a task may go from one member to another as far as their racks are concerned."""
    others = _racks(deal, task, but=giver)
    return giver.rack is None or giver.rack in others or (taker.rack is not None and taker.rack not in others)


def _spread_standbys(deal: _Deal) -> None:
    """Move standbys from who follows most to who follows least, where it can; each move evens."""
    while True:
        by_load = sorted(deal.members.values(), key=lambda each: len(each.standbys))
        moves = (
            (giver, taker, task)
            for giver in reversed(by_load)
            for taker in by_load
            if len(giver.standbys) > len(taker.standbys) + 1
            for task in sorted(giver.standbys, key=lambda each, told=taker.told: -told.get(_name(each), -1))  # type: ignore[misc]
            if taker in deal.eligible[task[0]] and _may_follow(taker, task) and _is_as_far_apart(deal, task, giver, taker)
        )
        found = next(moves, None)
        if found is None:
            return
        giver, taker, task = found
        del giver.standbys[task]
        taker.standbys[task] = None
