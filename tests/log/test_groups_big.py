"""Groups of thousands of partitions: targets are computed off the loop, and heartbeats are answered in short turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from logflume.log.broker.groups.consumer import groups as consumer_groups
from logflume.log.broker.groups.share import groups as share_groups
from logflume.log.broker.groups.streams import groups as streams_groups
from logflume.log.broker.ports import do_at_once
from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker
from ._turned_broker import MOST_WORK, TurnedTime, Turns
from .test_groups_consumer_protocol import beat, decoded, join

MOST_OF_A_GROUP = {"t": 8_000, "u": 8_000}
BIG = 600
ALL = {("t", index) for index in range(BIG)}


# -- in short turns


class TurnedGroups:
    """Groups over 16,000 partitions on a loop that is turned by hand."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.broker = Broker(time=TurnedTime(self.turns), offload=self.turns.offload, next_turn=self.turns.next_turn)
        self.broker.topics.partitions = dict(MOST_OF_A_GROUP)

    def send(self, api: str, **fields: Any) -> Any:
        answer = self.turns.run(lambda: self.broker.send(api, **fields))
        while isinstance(answer, Reply) and not answer.is_done:
            self.turns.run_due()
            self.broker.time.advance(0)
        return answer.value if isinstance(answer, Reply) else answer


def consumers(groups: TurnedGroups, member: str, epoch: int, had: Any) -> tuple[int, Any]:
    make = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    owned = [make(topic_id=topic_id, partitions=indexes) for topic_id, indexes in (had or {}).items()]
    answer = groups.send(
        "ConsumerGroupHeartbeat", group_id="g", member_id=member, member_epoch=epoch, rebalance_timeout_ms=60_000,
        subscribed_topic_names=list(MOST_OF_A_GROUP), topic_partitions=owned,
    )  # fmt: skip
    assert answer.error_code == 0
    if answer.assignment is None:
        return answer.member_epoch, had
    return answer.member_epoch, {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


def shares(groups: TurnedGroups, member: str, epoch: int, had: Any) -> tuple[int, Any]:
    answer = groups.send(
        "ShareGroupHeartbeat", group_id="g", member_id=member, member_epoch=epoch, subscribed_topic_names=list(MOST_OF_A_GROUP)
    )
    assert answer.error_code == 0
    if answer.assignment is None:
        return answer.member_epoch, had
    return answer.member_epoch, {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


def streams(groups: TurnedGroups, member: str, epoch: int, had: Any) -> tuple[int, Any]:
    request = messages.StreamsGroupHeartbeatRequest
    parts = [request.Subtopology(subtopology_id=name, source_topics=[name]) for name in MOST_OF_A_GROUP]
    answer = groups.send(
        "StreamsGroupHeartbeat", group_id="g", member_id=member, member_epoch=epoch, process_id=member,
        rebalance_timeout_ms=60_000 if epoch == 0 else -1, topology=request.Topology(subtopologies=parts) if epoch == 0 else None,
        active_tasks=[request.TaskIds(subtopology_id=each, partitions=indexes) for each, indexes in (had or {}).items()],
        standby_tasks=[], warmup_tasks=[],
    )  # fmt: skip
    assert answer.error_code == 0
    if answer.active_tasks is None:
        return answer.member_epoch, had
    return answer.member_epoch, {each.subtopology_id: each.partitions for each in answer.active_tasks}


@pytest.mark.parametrize(
    ("kind", "module", "assignor"),
    [
        pytest.param(consumers, consumer_groups, "ASSIGNORS", id="consumer"),
        pytest.param(shares, share_groups, "assign_simple", id="share"),
        pytest.param(streams, streams_groups, "assign_sticky", id="streams"),
    ],
)
def test_members_of_16_000_partitions_come_and_share_and_go_in_short_turns(
    monkeypatch: pytest.MonkeyPatch, kind: Any, module: Any, assignor: str
) -> None:
    groups = TurnedGroups()
    where: list[bool] = []

    def noted(assign: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any, **options: Any) -> Any:
            where.append(groups.turns.is_elsewhere)
            return assign(*arguments, **options)

        return do

    known = getattr(module, assignor)
    replaced = {name: noted(each) for name, each in known.items()} if isinstance(known, dict) else noted(known)
    monkeypatch.setattr(module, assignor, replaced)
    members: dict[str, tuple[int, Any]] = {}
    for step in ("a", "b", *"aabbab"):
        members[step] = kind(groups, step, *members.get(step, (0, None)))
    held = [{(topic, index) for topic, indexes in had.items() for index in indexes} for _, had in members.values()]
    assert [len(each) for each in held] == [8_000, 8_000]
    assert len(held[0] | held[1]) == 16_000
    api = {consumers: "Consumer", shares: "Share", streams: "Streams"}[kind]
    left = groups.send(f"{api}GroupHeartbeat", group_id="g", member_id="b", member_epoch=-1)
    assert left.error_code == 0
    members["a"] = kind(groups, "a", *members["a"])
    members["a"] = kind(groups, "a", *members["a"])
    assert sum(map(len, members["a"][1].values())) == 16_000
    assert len(where) >= 3
    assert all(where), "never while the loop waits"
    assert groups.turns.longest <= MOST_WORK // 2, f"{groups.turns.longest} calls in one turn"


# -- what happens meanwhile


class Elsewhere:
    """Work that is done when it is told to be."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Reply]] = []

    def __call__(self, work: Callable[[], Any]) -> Reply:
        reply = Reply()
        self.jobs.append((work, reply))
        return reply


class Held:
    """Consumer groups over one big topic; `compute` lets what is computed elsewhere be done, until nothing more is asked for."""

    def __init__(self, journal: SimulatedJournal | None = None) -> None:
        self.elsewhere = Elsewhere()
        self.broker = Broker(offload=self.elsewhere, journal=journal)
        self.broker.topics.partitions = {"t": BIG}

    def compute(self) -> None:
        while self.elsewhere.jobs:
            work, reply = self.elsewhere.jobs.pop(0)
            reply.set(do_at_once(work).value)
            self.broker.time.advance(0)

    def describe(self) -> dict[str, int]:
        """Return how much each member is to have."""
        (group,) = self.broker.send("ConsumerGroupDescribe", group_ids=["g"]).groups
        return {m.member_id: sum(len(t.partitions) for t in m.target_assignment.topic_partitions) for m in group.members}


def test_members_that_come_while_a_target_is_computed_wait_and_share() -> None:
    groups = Held()
    waiting = [join(groups.broker, name) for name in "abc"]
    assert [each.is_done for each in waiting] == [False] * 3
    groups.compute()
    assert [each.value.error_code for each in waiting] == [0] * 3
    assert [each.value.member_epoch for each in waiting] == [3] * 3
    got = [decoded(each.value) or set() for each in waiting]
    assert [len(each) for each in got] == [200] * 3
    assert set().union(*got) == ALL
    groups.broker.crash()
    assert groups.describe() == {"a": 200, "b": 200, "c": 200}
    assert beat(groups.broker, "a", 3, owned=got[0]).error_code == 0


def test_a_member_that_stays_is_answered_while_others_wait() -> None:
    groups = Held()
    waits = join(groups.broker, "a")
    groups.compute()
    owned = decoded(waits.value)
    assert owned == ALL
    join(groups.broker, "b")
    groups.broker.time.advance(30_000)
    commits = messages.OffsetCommitRequest
    partition = commits.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = commits.OffsetCommitRequestTopic(name="t", partitions=[partition])
    answer = groups.broker.send(
        "OffsetCommit", version=9, group_id="g", generation_id_or_member_epoch=1, member_id="a", topics=[topic]
    )
    assert answer.topics[0].partitions[0].error_code == 0
    groups.compute()
    assert groups.describe() == {"a": 300, "b": 300}


def test_who_leaves_meanwhile_gets_nothing_and_the_others_all() -> None:
    groups = Held()
    waiting = [join(groups.broker, name) for name in "ab"]
    assert beat(groups.broker, "a", -1).error_code == 0
    groups.compute()
    assert waiting[0].value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "which it tries again, to hear that it is unknown"
    assert decoded(waiting[1].value) == ALL
    assert groups.describe() == {"b": BIG}


def test_a_group_that_is_emptied_meanwhile_stays_empty() -> None:
    groups = Held()
    waiting = join(groups.broker, "a")
    assert beat(groups.broker, "a", -1).error_code == 0
    assert groups.broker.send("DeleteGroups", groups_names=["g"]).results[0].error_code == 0
    groups.compute()
    assert waiting.value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    groups.broker.crash()
    (group,) = groups.broker.send("ConsumerGroupDescribe", group_ids=["g"]).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_static_member_that_comes_back_under_another_id_meanwhile_has_its_place() -> None:
    groups = Held()
    for name in "ab":
        join(groups.broker, name, instance_id=f"i{name}")
    groups.compute()
    assert beat(groups.broker, "a", -2, instance_id="ia").error_code == 0
    waits = beat(groups.broker, "b", 2, owned=set(), topics=["t", "u"])
    back = join(groups.broker, "again", instance_id="ia")
    groups.compute()
    assert [each.value.error_code for each in (waits, back)] == [0, 0]
    assert groups.describe() == {"again": 300, "b": 300}
    assert not (decoded(back.value) or set()) & (decoded(waits.value) or set())


def test_what_cannot_be_written_meanwhile_is_not_told() -> None:
    groups = Held()
    groups.broker.journal.is_failing = True
    waiting = join(groups.broker, "a")
    groups.broker.journal.is_failing = False
    groups.compute()
    assert waiting.value.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = join(groups.broker, "a")
    groups.compute()
    answer = again.value if isinstance(again, Reply) else again
    assert decoded(answer) == ALL
    groups.broker.crash()
    assert groups.describe() == {"a": BIG}


def test_if_it_cannot_be_computed_the_next_heartbeat_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Held()
    known = consumer_groups.ASSIGNORS["uniform"]
    monkeypatch.setitem(consumer_groups.ASSIGNORS, "uniform", lambda *_: 1 // 0)  # type: ignore[misc]
    failed = join(groups.broker, "a")
    groups.compute()
    assert failed.value.assignment is None or decoded(failed.value) == set()
    monkeypatch.setitem(consumer_groups.ASSIGNORS, "uniform", known)  # type: ignore[misc]
    again = join(groups.broker, "a")
    groups.compute()
    assert decoded(again.value) == ALL
