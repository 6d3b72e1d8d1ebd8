"""How members share tasks: evenly, whole, and with as few moves as possible; and that what stays is not interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logflume.log import InvalidInput
from logflume.log.client.sticky import assign_cooperative_sticky
from logflume.log.interfaces import Assignment, Strategy, Subscription
from logflume.log.records import TopicPartition
from logflume.streams.runtime import EngineOptions
from logflume.streams.runtime.assigning import Copies, Sharing, Told, assign_copies, assign_tasks

ROUNDS_MAX = 6


def told(copies: Iterable[str] | Mapping[str, int], rack: str | None = None) -> bytes:
    """Return what a member says when it joins."""
    return msgspec.json.encode(Told(rack, dict(copies) if isinstance(copies, Mapping) else dict.fromkeys(copies, 1)))


TOPOLOGIES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 7)), min_size=1, max_size=4)
"""Per sub-topology: its topics, and their partitions."""


class Group:
    """Members that join, take what they are given, and join again when they gave something up, as clients do."""

    def __init__(self, shape: list[tuple[int, int]]) -> None:
        self.topics = {f"sub{n}": [f"t{n}{i}" for i in range(count)] for n, (count, _) in enumerate(shape)}
        self.counts = {topic: shape[n][1] for n, topics in enumerate(self.topics.values()) for topic in topics}
        self.members: dict[str, Subscription] = {}
        self.generation = 0
        self.moved: Counter[TopicPartition] = Counter()

    def join(self, name: str, on_disk: tuple[str, ...] = ()) -> None:
        topics = frozenset(self.counts)
        self.members[name] = Subscription(name, name, topics, user_data=told(on_disk))

    def settle(self) -> None:
        """Rebalance until nobody has to give anything up."""
        for _ in range(ROUNDS_MAX):
            self.generation += 1
            shares = assign_tasks(Sharing(self.topics), list(self.members.values()), self.counts)
            given = [tp for share in shares.values() for tp in share]
            assert len(given) == len(set(given)), "no partition has two members"
            has_given_up = False
            for name, member in self.members.items():
                held_by_others = {tp for other in self.members.values() if other.member_id != name for tp in other.owned}
                assert not held_by_others & set(shares[name]), "nobody gets what another one still has"
                has_given_up |= bool(member.owned - set(shares[name]))
                self.moved.update(set(shares[name]) - member.owned)
                on_disk = set(msgspec.json.decode(member.user_data).get("copies", ())) | {self.task_of(tp) for tp in shares[name]}
                told_now = told(sorted(on_disk))
                self.members[name] = replace(
                    member, owned=frozenset(shares[name]), generation=self.generation, user_data=told_now
                )
            if not has_given_up:
                return
        raise AssertionError("the group does not come to rest")

    def task_of(self, tp: TopicPartition) -> str:
        return next(f"{name}.{tp.partition}" for name, topics in self.topics.items() if tp.topic in topics)

    def check(self) -> None:
        owned = [tp for member in self.members.values() for tp in member.owned]
        assert sorted(owned) == sorted(TopicPartition(topic, p) for topic, count in self.counts.items() for p in range(count))
        tasks = {name: {self.task_of(tp) for tp in member.owned} for name, member in self.members.items()}
        assert sum(map(len, tasks.values())) == len(set().union(*tasks.values())), "a task is whole"
        for sub in self.topics:
            loads = [sum(task.startswith(f"{sub}.") for task in each) for each in tasks.values()]
            assert max(loads) - min(loads) <= 1
        loads = [len(each) for each in tasks.values()]
        assert max(loads) - min(loads) <= 1


@settings(max_examples=300, deadline=None)
@given(TOPOLOGIES, st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=8))
def test_whatever_members_come_and_go_the_group_settles_evenly(
    shape: list[tuple[int, int]], changes: list[tuple[bool, int]]
) -> None:
    group = Group(shape)
    group.join("m0")
    group.settle()
    for is_coming, number in changes:
        if is_coming:
            if f"m{number}" not in group.members:
                group.join(f"m{number}", tuple(group.task_of(tp) for tp in sorted(group.moved)[:number]))
        elif len(group.members) > 1:
            group.members.pop(f"m{number}", None)
        group.settle()
        group.check()


@settings(max_examples=100, deadline=None)
@given(TOPOLOGIES, st.integers(1, 4))
@example([(1, 1), (1, 1), (1, 5), (1, 3)], 4)
def test_one_member_more_takes_only_its_share(shape: list[tuple[int, int]], members: int) -> None:
    """Who has two tasks of a sub-topology and few in all gives one of them up for evenness, and may get another instead."""
    group = Group(shape)
    for number in range(members):
        group.join(f"m{number}")
    group.settle()
    before = {name: member.owned for name, member in group.members.items()}
    group.join("new")
    group.settle()
    group.check()
    for name, owned in before.items():
        gained = {group.task_of(tp) for tp in group.members[name].owned - owned}
        lost = {group.task_of(tp) for tp in owned - group.members[name].owned}
        assert len(gained) <= len(lost), "who stays gets nothing but for what it gave up"


@settings(max_examples=100, deadline=None)
@given(TOPOLOGIES, st.integers(1, 4))
def test_after_a_restart_of_all_each_has_what_it_had(shape: list[tuple[int, int]], members: int) -> None:
    group = Group(shape)
    for number in range(members):
        group.join(f"m{number}")
    group.settle()
    before = {name: member.owned for name, member in group.members.items()}
    for name, member in group.members.items():
        group.members[name] = replace(member, owned=frozenset(), generation=-1)
    group.settle()
    assert {name: member.owned for name, member in group.members.items()} == before


def test_what_a_member_says_of_its_disk_may_be_anything() -> None:
    said = [b"\xff", b'["a"]', b"", b'{"rack": 3}', b'{"copies": {"a": "b"}}']
    members = [Subscription(str(n), None, frozenset({"t"}), user_data=data) for n, data in enumerate(said)]
    shares = assign_tasks(Sharing({"sub": ["t"]}), members, {"t": 5})
    assert sorted(len(share) for share in shares.values()) == [1] * 5


def test_members_with_other_topics_get_what_they_want() -> None:
    old = Subscription("old", None, frozenset({"a"}))
    new = Subscription("new", None, frozenset({"a", "b"}))
    shares = assign_tasks(Sharing({"one": ["a"], "two": ["b"]}), [old, new], {"a": 2, "b": 2})
    assert {tp.topic for tp in shares["old"]} <= {"a"}
    assert sum(map(len, shares.values())) == 4


LARGE = 1_000_000


class Copying:
    """Members of an application with large state: what they follow comes nearer, and they join again when it is ready."""

    def __init__(self, partitions: int, standby_replicas: int) -> None:
        self.sharing = Sharing({"sub": ["t"]}, frozenset({"sub"}), standby_replicas, warmup_replicas_max=2)
        self.counts = {"t": partitions}
        self.racks: dict[str, str | None] = {}
        self.disks: dict[str, dict[str, int]] = {}
        self.owned: dict[str, frozenset[TopicPartition]] = {}
        self.copies: dict[str, Copies] = {}
        self.generation = 0
        self.restored_from_nothing = 0

    def join(self, name: str, rack: str | None = None) -> None:
        self.racks[name] = rack
        self.disks.setdefault(name, {})
        self.owned.setdefault(name, frozenset())

    def kill(self, name: str) -> None:
        self.owned.pop(name)
        self.disks.pop(name)

    def rebalance(self) -> bool:
        """Deal out once; return whether somebody asks for another time."""
        self.generation += 1
        members = [
            Subscription(name, name, frozenset({"t"}), owned, self.generation, told(self.disks[name], self.racks[name]))
            for name, owned in self.owned.items()
        ]
        shares = assign_tasks(self.sharing, members, self.counts)
        self.copies = assign_copies(self.sharing, members, self.counts)
        asks = False
        for name in self.owned:
            before, now = self.owned[name], frozenset(shares[name])
            best = {task: max(disk.get(task, 0) for disk in self.disks.values()) for disk in self.disks.values() for task in disk}
            for tp in now - before:
                task = f"sub.{tp.partition}"
                self.restored_from_nothing += best.get(task, 0) - self.disks[name].get(task, 0) > 10_000
            asks |= bool(before - now)
            self.owned[name] = now
        self.run()
        return asks or any(each.warmups for each in self.copies.values())

    def run(self) -> None:
        """Those that have tasks write on, and those that follow follow."""
        for name, owned in self.owned.items():
            for tp in owned:
                self.disks[name][f"sub.{tp.partition}"] = LARGE
        for name, each in self.copies.items():
            for task in (*each.standbys, *each.warmups):
                if any(f"sub.{tp.partition}" == task for owned in self.owned.values() for tp in owned):
                    self.disks[name][task] = LARGE

    def settle(self) -> None:
        for _ in range(50):
            if not self.rebalance():
                return
        raise AssertionError("the group does not come to rest")

    def check(self) -> None:
        owned = [tp for each in self.owned.values() for tp in each]
        assert sorted(owned) == [TopicPartition("t", p) for p in range(self.counts["t"])]
        loads = [len(each) for each in self.owned.values()]
        assert max(loads) - min(loads) <= 1
        followed = Counter(task for each in self.copies.values() for task in each.standbys)
        wanted = min(self.sharing.standby_replicas, len(self.owned) - 1)
        assert set(followed.values()) <= {wanted}, "each task has its standbys"
        assert len(followed) == (self.counts["t"] if wanted else 0)
        for name, each in self.copies.items():
            running = {f"sub.{tp.partition}" for tp in self.owned[name]}
            assert not running & set(each.standbys), "never beside the task itself"
        loads = [len(each.standbys) for each in self.copies.values()]
        assert max(loads) - min(loads) <= 2, "standbys are spread"


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2), st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=6))
def test_large_state_moves_only_to_where_it_is_and_copies_are_kept(
    partitions: int, standby_replicas: int, changes: list[tuple[bool, int]]
) -> None:
    group = Copying(partitions, standby_replicas)
    group.join("m0")
    group.settle()
    for is_coming, number in changes:
        if is_coming:
            group.join(f"m{number}")
        elif f"m{number}" in group.owned and len(group.owned) > 1 and standby_replicas:
            group.kill(f"m{number}")
        group.settle()
        group.check()
    assert group.restored_from_nothing == 0


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 2), st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6))
def test_copies_are_in_as_many_racks_as_can_be(partitions: int, standby_replicas: int, racks: list[str | None]) -> None:
    group = Copying(partitions, standby_replicas)
    for number, rack in enumerate(racks):
        group.join(f"m{number}", rack)
        group.settle()
    there = {rack for rack in racks if rack is not None}
    for partition in range(partitions):
        task, copies = f"sub.{partition}", min(standby_replicas, len(racks) - 1)
        (owner,) = [name for name, owned in group.owned.items() if TopicPartition("t", partition) in owned]
        having = [owner, *(name for name, each in group.copies.items() if task in each.standbys)]
        assert len(having) == 1 + copies
        wanted = min(copies + (group.racks[owner] is not None), len(there))
        assert len({group.racks[name] for name in having} - {None}) == wanted


def test_what_is_to_move_warms_up_first_and_few_at_a_time() -> None:
    group = Copying(6, 0)
    group.join("old")
    group.settle()
    group.join("new")
    assert group.rebalance()
    assert len(group.owned["old"]) == 6
    assert len(group.copies["new"].warmups) == 2
    group.settle()
    group.check()


def test_a_rack_is_a_name() -> None:
    assert EngineOptions(rack="zone-a").rack == "zone-a"
    for wrong in ("", 3, "x" * 250):
        with pytest.raises(InvalidInput, match="rack must be a name"):
            EngineOptions(rack=wrong)  # type: ignore[arg-type]


def by_tasks(members: Sequence[Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    return assign_tasks(Sharing({"sub": sorted(partition_counts)}), members, partition_counts)


@pytest.mark.parametrize("assign", [by_tasks, assign_cooperative_sticky])
def test_a_claim_of_an_older_generation_gives_no_right_to_what_another_has_by_now(assign: Strategy) -> None:
    """Else both would read it, from the time when the group has agreed until the other one has given it up."""
    both = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
    stale = Subscription("a", None, frozenset({"t"}), owned=both, generation=2)
    holder = Subscription("b", None, frozenset({"t"}), owned=both, generation=3)
    shares = assign([stale, holder], {"t": 2})
    assert (shares["a"], len(shares["b"])) == ([], 1)
    joined_again = [replace(stale, owned=frozenset(), generation=4), replace(holder, owned=frozenset(shares["b"]), generation=4)]
    assert {name: len(share) for name, share in assign(joined_again, {"t": 2}).items()} == {"a": 1, "b": 1}
    assert assign([replace(stale, generation=3), holder], {"t": 2}) == {"a": [], "b": []}, "nobody gets what two claim"
