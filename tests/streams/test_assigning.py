"""How members share tasks: evenly, whole, and with as few moves as possible; and that what stays is not interrupted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.interfaces import Subscription
from logflume.log.records import TopicPartition
from logflume.streams.runtime.assigning import assign_tasks

ROUNDS_MAX = 6

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
        self.members[name] = Subscription(name, name, topics, user_data=msgspec.json.encode(on_disk))

    def settle(self) -> None:
        """Rebalance until nobody has to give anything up."""
        for _ in range(ROUNDS_MAX):
            self.generation += 1
            shares = assign_tasks(self.topics, list(self.members.values()), self.counts)
            given = [tp for share in shares.values() for tp in share]
            assert len(given) == len(set(given)), "no partition has two members"
            has_given_up = False
            for name, member in self.members.items():
                held_by_others = {tp for other in self.members.values() if other.member_id != name for tp in other.owned}
                assert not held_by_others & set(shares[name]), "nobody gets what another one still has"
                has_given_up |= bool(member.owned - set(shares[name]))
                self.moved.update(set(shares[name]) - member.owned)
                on_disk = set(msgspec.json.decode(member.user_data)) | {self.task_of(tp) for tp in shares[name]}
                told = msgspec.json.encode(sorted(on_disk))
                self.members[name] = replace(member, owned=frozenset(shares[name]), generation=self.generation, user_data=told)
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
def test_one_member_more_takes_only_its_share(shape: list[tuple[int, int]], members: int) -> None:
    group = Group(shape)
    for number in range(members):
        group.join(f"m{number}")
    group.settle()
    before = {name: member.owned for name, member in group.members.items()}
    group.join("new")
    group.settle()
    group.check()
    for name, owned in before.items():
        assert not group.members[name].owned - owned, "who stays gets nothing new"


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
    members = [Subscription(str(n), None, frozenset({"t"}), user_data=data) for n, data in enumerate([b"\xff", b'{"a": 1}', b""])]
    shares = assign_tasks({"sub": ["t"]}, members, {"t": 3})
    assert sorted(len(share) for share in shares.values()) == [1, 1, 1]


def test_members_with_other_topics_get_what_they_want() -> None:
    old = Subscription("old", None, frozenset({"a"}))
    new = Subscription("new", None, frozenset({"a", "b"}))
    shares = assign_tasks({"one": ["a"], "two": ["b"]}, [old, new], {"a": 2, "b": 2})
    assert {tp.topic for tp in shares["old"]} <= {"a"}
    assert sum(map(len, shares.values())) == 4
