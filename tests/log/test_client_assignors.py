"""Assignment strategies, partitioners and retries: pure parts of the client."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log import Chunk, TopicPartition, UnknownName
from logflume.log.batch.columns import key_partitions
from logflume.log.client.assignors import Assignment, Subscription, assign_range, assign_roundrobin, strategy_of
from logflume.log.client.partitioner import StickyPartitioner, partition_of_key
from logflume.log.client.retry import MAX_BACKOFF_S, backoff_s

topics = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 7))
members = st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from(["a", "b", "c"]), min_size=1)), min_size=1, max_size=5).map(
    lambda each: [Subscription(f"m{i}", f"s{i}" if static else None, frozenset(t)) for i, (static, t) in enumerate(each)]
)


def check(assignment: Assignment, group: list[Subscription], counts: dict[str, int]) -> None:
    """Every partition of a wanted topic has exactly one member, and that one wants it."""
    wanted = {m.member_id: m.topics for m in group}
    dealt = [tp for tps in assignment.values() for tp in tps]
    expected = {TopicPartition(t, p) for t, n in counts.items() for p in range(n) if any(t in m.topics for m in group)}
    assert Counter(dealt) == Counter(expected)
    assert all(tp.topic in wanted[member] for member, tps in assignment.items() for tp in tps)


@given(members, topics)
def test_range_deals_out_everything_evenly_per_topic(group: list[Subscription], counts: dict[str, int]) -> None:
    assignment = assign_range(group, counts)
    check(assignment, group, counts)
    for topic in counts:
        shares = [sum(tp.topic == topic for tp in assignment[m.member_id]) for m in group if topic in m.topics]
        assert not shares or max(shares) - min(shares) <= 1


@given(members, topics)
def test_roundrobin_deals_out_everything(group: list[Subscription], counts: dict[str, int]) -> None:
    assignment = assign_roundrobin(group, counts)
    check(assignment, group, counts)
    if len({m.topics for m in group}) == 1:
        shares = [len(tps) for tps in assignment.values()]
        assert max(shares) - min(shares) <= 1


@given(st.integers(1, 5), st.integers(1, 12))
def test_range_keeps_co_partitioned_topics_together(member_count: int, partitions: int) -> None:
    group = [Subscription(f"m{i}", None, frozenset({"a", "b"})) for i in range(member_count)]
    for tps in assign_range(group, {"a": partitions, "b": partitions}).values():
        numbers = {t: {tp.partition for tp in tps if tp.topic == t} for t in ("a", "b")}
        assert numbers["a"] == numbers["b"]


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'roundrobin'"):
        strategy_of("round_robin")


# Kafka's own known answers of murmur2 (UtilsTest), as partitions of a topic with 1000 partitions: (hash & 0x7fffffff) % 1000.
KNOWN_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_keys_go_where_javas_default_partitioner_puts_them() -> None:
    expected = [(h & 0x7FFFFFFF) % 1000 for h in KNOWN_HASHES.values()]
    assert [partition_of_key(key, 1000) for key in KNOWN_HASHES] == expected
    keys: list[bytes | None] = [*KNOWN_HASHES, None]
    chunk = Chunk.from_columns("t", keys, keys, [0] * len(keys))
    assert key_partitions(chunk, 1000).tolist() == [*expected, -1]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(1, 50))
def test_objects_and_columns_choose_the_same_partition(keys: list[bytes], count: int) -> None:
    chunk = Chunk.from_columns("t", list(keys), [None] * len(keys), np.zeros(len(keys), np.int64))
    assert key_partitions(chunk, count).tolist() == [partition_of_key(key, count) for key in keys]


def test_sticky_stays_for_a_batch_and_visits_all_partitions() -> None:
    sticky = StickyPartitioner(100, random.Random(1))
    chosen = [sticky.choose(10, 4) for _ in range(400)]
    runs = [chosen[i : i + 10] for i in range(0, 400, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert {run[0] for run in runs} == {0, 1, 2, 3}
    assert all(a[0] != b[0] for a, b in itertools.pairwise(runs))


def test_backoff_grows_and_is_bounded() -> None:
    assert backoff_s(1) < 0.03
    assert all(backoff_s(n) <= MAX_BACKOFF_S * 1.2 for n in range(1, 100))
    assert backoff_s(50) > MAX_BACKOFF_S / 2
