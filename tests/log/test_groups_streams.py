"""Streams groups (KIP-1071) as members see them: tasks and how they move, internal topics, statuses, errors, crashes, records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logflume.log.broker.access import CLUSTER_NAME, Operation, Resource
from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.groups.epoch_records import (
    EpochKey,
    GroupKind,
    Role,
    TargetEpochValue,
    decode_epoch_key,
    encode_epoch_key,
)
from logflume.log.broker.groups.streams import records
from logflume.log.broker.groups.streams.assignor import NO_TASKS, Tasks, assign_sticky
from logflume.log.broker.groups.streams.configured import Status
from logflume.log.broker.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology
from logflume.log.broker.replies import Reply
from logflume.log.broker.testing.simulated import SimulatedJournal
from logflume.log.protocol import messages
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker, Denied

OK = ErrorCode.NONE
Request = messages.StreamsGroupHeartbeatRequest
Owned = set[tuple[str, int]]
ALL = {("0", index) for index in range(4)} | {("1", index) for index in range(4)}


def info(name: str, partitions: int = 0, **configs: str) -> Any:
    pairs = [Request.KeyValue(key=key, value=value) for key, value in configs.items()]
    return Request.TopicInfo(name=name, partitions=partitions, topic_configs=pairs)


def counting(*, epoch: int = 0, source: str = "t") -> Any:
    """A topology that counts by key: sub-topology 0 repartitions, 1 has a store."""
    return Request.Topology(
        epoch=epoch,
        subtopologies=[
            Request.Subtopology(subtopology_id="0", source_topics=[source], repartition_sink_topics=["app-repartition"]),
            Request.Subtopology(
                subtopology_id="1",
                repartition_source_topics=[info("app-repartition")],
                state_changelog_topics=[info("app-changelog", **{"cleanup.policy": "compact"})],
            ),
        ],
    )


def joining(*pairs: tuple[str, list[str], list[Any]]) -> Any:
    """A topology of sub-topologies (id, sources, repartition sources) whose inputs must be copartitioned."""
    return Request.Topology(
        subtopologies=[
            Request.Subtopology(
                subtopology_id=name,
                source_topics=sources,
                repartition_source_topics=repartitions,
                copartition_groups=[
                    Request.CopartitionGroup(
                        source_topics=list(range(len(sources))), repartition_source_topics=list(range(len(repartitions)))
                    )
                ],
            )
            for name, sources, repartitions in pairs
        ]
    )


def ids(tasks: Owned) -> list[Any]:
    by_subtopology: dict[str, list[int]] = {}
    for name, index in sorted(tasks):
        by_subtopology.setdefault(name, []).append(index)
    return [Request.TaskIds(subtopology_id=name, partitions=indexes) for name, indexes in by_subtopology.items()]


def beat(
    broker: Broker,
    member_id: str,
    epoch: int,
    *,
    owned: Owned | None = None,
    standby: Owned | None = None,
    group: str = "g",
    **fields: Any,
) -> Any:
    """Send a heartbeat; return the response, or its Reply."""
    if owned is not None:
        fields |= {"active_tasks": ids(owned), "standby_tasks": ids(standby or set()), "warmup_tasks": []}
    return broker.send("StreamsGroupHeartbeat", group_id=group, member_id=member_id, member_epoch=epoch, **fields)


def join(broker: Broker, member_id: str, **fields: Any) -> Any:
    options: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "process_id": f"process-{member_id}", "owned": set(), **fields}
    options.setdefault("topology", counting())
    return beat(broker, member_id, 0, **options)


def active(response: Any) -> Owned | None:
    """Return the active tasks of a response, None if it has none."""
    return None if response.active_tasks is None else {(t.subtopology_id, p) for t in response.active_tasks for p in t.partitions}


def standbys(response: Any) -> Owned:
    return {(t.subtopology_id, p) for t in response.standby_tasks for p in t.partitions}


def told(response: Any) -> list[Status]:
    return [Status(each.status_code) for each in response.status]


def describe(broker: Broker, group: str = "g") -> Any:
    return broker.send("StreamsGroupDescribe", group_ids=[group]).groups[0]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_the_first_member_gets_all_tasks_and_the_internal_topics_are_made(broker: Broker) -> None:
    response = join(broker, "a")
    assert (response.error_code, response.member_id, response.member_epoch) == (OK, "a", 1)
    assert (active(response), standbys(response), told(response)) == (ALL, set(), [])
    assert response.heartbeat_interval_ms == 5_000
    assert (broker.topics.partitions["app-repartition"], broker.topics.partitions["app-changelog"]) == (4, 4)
    again = beat(broker, "a", 1)
    assert (again.member_epoch, active(again)) == (1, None), "nothing changed"


def test_a_task_moves_only_when_it_was_given_up(broker: Broker) -> None:
    join(broker, "a")
    second = join(broker, "b")
    assert (second.member_epoch, active(second)) == (2, set())
    first = beat(broker, "a", 1)
    kept = active(first)
    assert first.member_epoch == 1
    assert kept is not None
    assert len(kept) == 4
    assert describe(broker).group_state == "Reconciling"
    assert active(beat(broker, "b", 2)) is None
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2
    assert active(beat(broker, "b", 2)) == ALL - kept
    assert describe(broker).group_state == "Stable"


def test_members_that_leave_or_vanish_hand_over(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b")
    kept = active(beat(broker, "a", 1))
    assert kept is not None
    beat(broker, "a", 1, owned=kept)
    beat(broker, "b", 2)
    left = beat(broker, "a", -1)
    assert (left.error_code, left.member_epoch) == (OK, -1)
    assert active(beat(broker, "b", 2)) == ALL
    broker.time.advance(45_001)
    assert (describe(broker).group_state, describe(broker).members) == ("Empty", [])
    assert beat(broker, "b", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_give_up_is_removed(broker: Broker) -> None:
    join(broker, "a", rebalance_timeout_ms=10_000)
    join(broker, "b")
    beat(broker, "a", 1)
    broker.time.advance(10_000)
    assert [m.member_id for m in describe(broker).members] == ["b"]


def test_standby_tasks_follow_the_groups_setting(broker: Broker) -> None:
    broker.settings.own["g"] = {"streams.num.standby.replicas": "1"}
    join(broker, "a")
    join(broker, "b")
    kept = active(beat(broker, "a", 1)) or set()
    first = beat(broker, "a", 1, owned=kept)
    second = beat(broker, "b", 2)
    every = standbys(first) | standbys(second)
    assert every == {("1", index) for index in range(4)}, "only tasks with state have standbys"
    assert not (standbys(first) & kept)
    described = {m.member_id: m for m in describe(broker).members}
    assert sum(len(t.partitions) for m in described.values() for t in m.assignment.standby_tasks) == 4
    broker.settings.own["g"] = {}
    assert standbys(beat(broker, "a", 2)) == set(), "a change of the setting is a rebalance"


def test_a_standby_becomes_active_where_it_is(broker: Broker) -> None:
    broker.settings.own["g"] = {"streams.num.standby.replicas": "1"}
    join(broker, "a")
    join(broker, "b")
    kept = active(beat(broker, "a", 1)) or set()
    beat(broker, "a", 1, owned=kept)
    second = beat(broker, "b", 2)
    mine, spare = active(second) or set(), standbys(second)
    beat(broker, "a", -1)
    giving = beat(broker, "b", 2)
    assert (active(giving), standbys(giving), giving.member_epoch) == (mine, set(), 2), "first it closes the standbys"
    assert spare
    assert active(beat(broker, "b", 2, owned=mine)) == ALL


def test_two_members_of_one_process_never_have_one_task(broker: Broker) -> None:
    broker.settings.own["g"] = {"streams.num.standby.replicas": "1"}
    join(broker, "a", process_id="p")
    response = join(broker, "b", process_id="p")
    assert standbys(response) == set(), "the other half is in the same process"


@pytest.mark.parametrize(
    ("topology", "status", "text"),
    [
        (counting(source="absent"), Status.MISSING_SOURCE_TOPICS, "Source topics absent are missing."),
        (joining(("0", ["t", "u"], [])), Status.INCORRECTLY_PARTITIONED_TOPICS, "[t=4, u=2]"),
        (joining(("0", ["t"], [info("r", 3)])), Status.INCORRECTLY_PARTITIONED_TOPICS, "doesn't match"),
    ],
)
def test_a_group_that_is_not_ready_says_why(broker: Broker, topology: Any, status: Status, text: str) -> None:
    response = join(broker, "a", topology=topology)
    assert (response.error_code, active(response), told(response)) == (OK, set(), [status])
    assert text in response.status[0].status_detail
    assert describe(broker).group_state == "NotReady"


def test_a_missing_source_is_noticed_when_it_comes(broker: Broker) -> None:
    join(broker, "a", topology=counting(source="late"))
    broker.topics.partitions["late"] = 2
    broker.time.advance(5_000)
    response = beat(broker, "a", 1)
    assert (active(response), told(response)) == ({(s, p) for s in "01" for p in range(2)}, [])
    broker.topics.partitions["late"] = 3
    broker.time.advance(5_000)
    assert told(beat(broker, "a", response.member_epoch)) == [Status.INCORRECTLY_PARTITIONED_TOPICS]


def test_internal_topics_that_cannot_be_made(broker: Broker) -> None:
    broker.topics.refused = "the disk is full"
    response = join(broker, "a")
    assert (active(response), told(response)) == (set(), [Status.MISSING_INTERNAL_TOPICS])
    assert "the disk is full" in response.status[0].status_detail
    broker.topics.refused = None
    assert active(beat(broker, "a", 1)) == ALL


def test_what_a_member_may_not_do(broker: Broker) -> None:
    broker.rights = Denied((Operation.READ, Resource.GROUP, "g"))
    assert join(broker, "a").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    broker.rights = Denied((Operation.DESCRIBE, Resource.TOPIC, "app-changelog"))
    assert join(broker, "a").error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cluster, topic = (Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME), (Operation.CREATE, Resource.TOPIC, "app-changelog")
    broker.rights = Denied(cluster, topic)
    response = join(broker, "a")
    assert (active(response), told(response)) == (set(), [Status.MISSING_INTERNAL_TOPICS])
    assert "Unauthorized to CREATE on topic app-changelog" in response.status[0].status_detail
    assert "app-repartition" in broker.topics.partitions
    broker.rights = Denied((Operation.DESCRIBE, Resource.GROUP, "g"))
    assert describe(broker).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_numbers_of_partitions_follow_from_each_other(broker: Broker) -> None:
    chain = Request.Topology(
        subtopologies=[
            Request.Subtopology(subtopology_id="c", repartition_source_topics=[info("r2")]),
            Request.Subtopology(
                subtopology_id="b", repartition_source_topics=[info("r1")], repartition_sink_topics=["r2"], source_topics=["u"]
            ),
            Request.Subtopology(subtopology_id="a", source_topics=["t"], repartition_sink_topics=["r1"]),
        ]
    )
    assert len(active(join(broker, "m", topology=chain)) or ()) == 12
    assert (broker.topics.partitions["r1"], broker.topics.partitions["r2"]) == (4, 4)
    both = joining(("0", ["u"], [info("r3")]), ("1", ["t"], []))
    both.subtopologies[1].repartition_sink_topics = ["r3"]
    join(broker, "m", topology=both, group="h")
    assert broker.topics.partitions["r3"] == 2, "it follows what it is joined with"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"subtopology_id": "0"}, "No source topics"),
        ({"subtopology_id": "0", "source_topics": ["t"], "state_changelog_topics": [info("c", 3)]}, "undefined partition count"),
        (
            {
                "subtopology_id": "0",
                "source_topics": ["t"],
                "copartition_groups": [Request.CopartitionGroup(source_topics=[7])],
            },
            "not there",
        ),
        ({"subtopology_id": "0", "repartition_source_topics": [info("r")]}, "nothing that has an input"),
        ({"subtopology_id": "0", "source_topics": ["x" * 30_000] * 20}, "bytes"),
        ({"subtopology_id": "0", "repartition_source_topics": [info("r", 20_001)]}, "at most 20000 tasks"),
    ],
)
def test_topologies_that_cannot_be(broker: Broker, change: dict[str, Any], text: str) -> None:
    response = join(broker, "a", topology=Request.Topology(subtopologies=[Request.Subtopology(**change)]))
    assert (response.error_code, text in response.error_message) == (ErrorCode.STREAMS_INVALID_TOPOLOGY, True)
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_topologies_that_differ(broker: Broker) -> None:
    join(broker, "a", topology=counting(epoch=1))
    assert join(broker, "b", topology=counting(epoch=1, source="u")).error_code == ErrorCode.INVALID_REQUEST
    assert join(broker, "b", topology=counting(epoch=2)).error_code == ErrorCode.INVALID_REQUEST
    stale = join(broker, "b", topology=counting(epoch=0))
    assert (stale.error_code, told(stale)) == (OK, [Status.STALE_TOPOLOGY])
    beat(broker, "a", -1)
    beat(broker, "b", -1)
    changed = counting(epoch=0, source="u")
    changed.subtopologies[0].repartition_sink_topics = ["other"]
    changed.subtopologies[1].repartition_source_topics = [info("other")]
    changed.subtopologies[1].state_changelog_topics = []
    assert active(join(broker, "a", topology=changed)) == {(s, p) for s in "01" for p in range(2)}, "nobody is left who minds"


def test_a_shutdown_is_told_to_all(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b")
    beat(broker, "b", 2, shutdown_application=True)
    assert told(beat(broker, "a", 1)) == [Status.SHUTDOWN_APPLICATION]
    beat(broker, "a", -1)
    beat(broker, "b", -1)
    assert told(join(broker, "a")) == []


def test_the_first_tasks_may_wait_for_more_members(broker: Broker) -> None:
    broker.settings.own["g"] = {"streams.initial.rebalance.delay.ms": "3000"}
    first = join(broker, "a")
    assert (active(first), told(first), describe(broker).group_state) == (set(), [Status.ASSIGNMENT_DELAYED], "Assigning")
    assert told(join(broker, "b")) == [Status.ASSIGNMENT_DELAYED]
    broker.time.advance(3_000)
    tasks = [active(beat(broker, name, epoch)) or set() for name, epoch in (("a", 0), ("b", 0))]
    assert tasks == [set(), set()] or tasks[0] | tasks[1] == ALL
    described = {m.member_id: m for m in describe(broker).members}
    assert all(sum(len(t.partitions) for t in m.target_assignment.active_tasks) == 4 for m in described.values())


def test_assignments_may_have_to_wait(broker: Broker) -> None:
    broker.settings.own["g"] = {"streams.assignment.interval.ms": "1000"}
    join(broker, "a")
    second = join(broker, "b")
    assert (active(second), told(second)) == (set(), [Status.ASSIGNMENT_DELAYED])
    broker.time.advance(1_000)
    assert told(beat(broker, "b", second.member_epoch)) == []
    assert describe(broker).assignment_epoch == 2


def test_addresses_are_told_until_they_are_known(broker: Broker) -> None:
    first = join(broker, "a", user_endpoint=Request.Endpoint(host="h", port=1), endpoint_information_epoch=-1)
    (entry,) = first.partitions_by_user_endpoint
    assert (entry.user_endpoint.host, entry.user_endpoint.port) == ("h", 1)
    assert {(p.topic, tuple(p.partitions)) for p in entry.active_partitions} == {
        ("t", (0, 1, 2, 3)),
        ("app-repartition", (0, 1, 2, 3)),
    }
    known = first.endpoint_information_epoch
    assert beat(broker, "a", 1, endpoint_information_epoch=known).partitions_by_user_endpoint is None
    second = join(broker, "b", user_endpoint=Request.Endpoint(host="h", port=1), endpoint_information_epoch=known)
    assert len(second.partitions_by_user_endpoint) == 1, "members at one address are one entry"
    assert beat(broker, "a", 1, endpoint_information_epoch=known).partitions_by_user_endpoint is not None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"topology": None}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": {("0", 0)}}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": "i"}, ErrorCode.INVALID_REQUEST),
        ({"task_offsets": []}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_requests_that_are_refused(broker: Broker, fields: dict[str, Any], error: ErrorCode) -> None:
    options: dict[str, Any] = {"member_id": "a", "epoch": 0, "rebalance_timeout_ms": 1, "topology": counting(), "owned": set()}
    options |= {"process_id": "p", **fields}
    assert beat(broker, options.pop("member_id"), options.pop("epoch"), **options).error_code == error
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_members_that_are_out_of_step(broker: Broker) -> None:
    join(broker, "a")
    assert beat(broker, "a", 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(broker, "x", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(broker, "a", 1, owned={("9", 0)}).error_code == ErrorCode.INVALID_REQUEST
    assert beat(broker, "a", 1, owned={("0", 4)}).error_code == ErrorCode.INVALID_REQUEST
    assert beat(broker, "a", 1, topology=counting()).error_code == ErrorCode.INVALID_REQUEST
    assert join(Broker(config=GroupConfig(streams_max_size=1)), "a").error_code == OK
    full = Broker(config=GroupConfig(streams_max_size=1))
    join(full, "a")
    assert join(full, "b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_response_that_was_lost(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b")
    kept = active(beat(broker, "a", 1)) or set()
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2
    again = beat(broker, "a", 1, owned=kept)
    assert (again.error_code, again.member_epoch, active(again)) == (OK, 2, kept)
    assert beat(broker, "a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH, "without its tasks it is not believed"


def test_offsets_are_committed_with_the_members_epoch(broker: Broker) -> None:
    join(broker, "a")
    where, other = ("t", 0), ("app-repartition", 1)
    assert broker.commit({where: 5}, member_id="a", generation=1) == {where: OK}
    assert broker.commit({where: 6}, member_id="a", generation=2) == {where: ErrorCode.STALE_MEMBER_EPOCH}
    assert broker.commit({where: 6}, member_id="x", generation=1) == {where: ErrorCode.UNKNOWN_MEMBER_ID}
    assert broker.commit({where: 6}) == {where: ErrorCode.UNKNOWN_MEMBER_ID}
    assert broker.commit({where: 6}, member_id="a", generation=1, version=8) == {where: ErrorCode.UNSUPPORTED_VERSION}
    assert broker.txn_commit({where: 6}, member_id="a", generation_id=0) == {where: ErrorCode.ILLEGAL_GENERATION}
    join(broker, "b")
    kept = active(beat(broker, "a", 1)) or set()
    beat(broker, "a", 1, owned=kept)
    late = broker.commit({("t", index): 7 for index in range(4)} | {other: 7}, member_id="a", generation=1)
    expected = {("t", index): OK if ("0", index) in kept else ErrorCode.STALE_MEMBER_EPOCH for index in range(4)}
    assert late == expected | {other: OK if ("1", 1) in kept else ErrorCode.STALE_MEMBER_EPOCH}


def test_tools_see_the_group(broker: Broker) -> None:
    join(broker, "a", client_id="me", client_tags=[Request.KeyValue(key="zone", value="z")])
    listed = broker.send("ListGroups", types_filter=["streams"]).groups
    assert [(g.group_id, g.group_type, g.protocol_type, g.group_state) for g in listed] == [("g", "Streams", "streams", "Stable")]
    described = describe(broker)
    assert (described.group_epoch, described.assignment_epoch, described.topology.epoch) == (1, 1, 0)
    changelog = described.topology.subtopologies[1].state_changelog_topics[0]
    assert (changelog.name, changelog.partitions, changelog.topic_configs[0].value) == ("app-changelog", 4, "compact")
    member = described.members[0]
    assert (member.client_id, member.process_id, member.client_tags[0].key) == ("me", "process-a", "zone")
    assert sum(len(t.partitions) for t in member.assignment.active_tasks) == 8
    assert broker.send("OffsetDelete", group_id="g", topics=[]).error_code == OK
    assert broker.send("DeleteGroups", groups_names=["g"]).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(broker, "a", -1)
    assert broker.send("DeleteGroups", groups_names=["g"]).results[0].error_code == OK
    broker.crash()
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_kinds_of_groups_do_not_mix(broker: Broker) -> None:
    join(broker, "a")
    assert broker.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.sync("a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.heartbeat("a", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    consumer = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 1, "topic_partitions": []}
    refused = broker.send("ConsumerGroupHeartbeat", group_id="g", member_id="c", member_epoch=0, **consumer)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    broker.send("ConsumerGroupHeartbeat", group_id="h", member_id="c", member_epoch=0, **consumer)
    assert join(broker, "a", group="h").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe(broker, "h").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_its_kind_and_keeps_its_offsets(broker: Broker) -> None:
    broker.commit({("t", 0): 5})
    join(broker, "a")
    assert broker.groups.kind_of("g") == "Streams"
    beat(broker, "a", -1)
    assert broker.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
    broker.crash()
    assert (broker.groups.kind_of("g"), broker.fetch()) == ("Classic", {("t", 0): (5, OK)})


def test_a_group_goes_on_after_a_crash(broker: Broker) -> None:
    join(broker, "a")
    join(broker, "b")
    kept = active(beat(broker, "a", 1)) or set()
    broker.crash()
    assert describe(broker).group_state == "Reconciling"
    assert beat(broker, "a", 1, owned=kept).member_epoch == 2
    broker.crash()
    assert active(beat(broker, "b", 2)) == ALL - kept
    assert (describe(broker).group_epoch, describe(broker).group_state) == (2, "Stable")


def test_what_could_not_be_written_is_written_later(broker: Broker) -> None:
    join(broker, "a")
    broker.journal.is_failing = True
    assert join(broker, "b").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.journal.is_failing = False
    join(broker, "c")
    broker.crash()
    assert {m.member_id for m in describe(broker).members} == {"a", "b", "c"}


# -- records and the assignor


names = st.text(max_size=6)
pairs = st.lists(st.tuples(names, names), max_size=3).map(tuple)
numbers = st.integers(0, 2**31 - 1)
task_sets = st.frozensets(st.tuples(names, st.integers(0, 99)), max_size=6)
tasks = st.builds(Tasks, active=task_sets, standby=task_sets)
topics = st.lists(
    st.builds(InternalTopic, name=names, partitions=numbers, replication_factor=st.integers(0, 3), configs=pairs), max_size=2
).map(tuple)
indexes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
subtopologies = st.builds(
    Subtopology,
    subtopology_id=names,
    sources=st.lists(names, max_size=3).map(tuple),
    changelogs=topics,
    sinks=st.lists(names, max_size=2).map(tuple),
    repartitions=topics,
    copartition_groups=st.lists(st.builds(CopartitionGroup, sources=indexes, repartitions=indexes), max_size=2).map(tuple),
)


def held(assigned: Tasks, revoking: Tasks, epoch: int, epochs: dict[Any, int]) -> records.StreamsCurrentValue:
    own = {task: epochs.get(task[1], epoch) for task in assigned.active | revoking.active}
    return records.StreamsCurrentValue(epoch, epoch - 1, 1, assigned, revoking, own)


VALUES: dict[Role, st.SearchStrategy[Any]] = {
    Role.GROUP: st.builds(
        records.StreamsGroupValue,
        epoch=numbers,
        metadata_hash=st.integers(-(2**63), 2**63 - 1),
        validated_topology_epoch=st.integers(-1, 9),
        assignment_configs=pairs,
    ),
    Role.MEMBER: st.builds(
        records.StreamsMemberValue,
        rack_id=st.none() | names,
        client_id=names,
        client_host=names,
        rebalance_timeout_ms=numbers,
        topology_epoch=numbers,
        process_id=names,
        endpoint=st.none() | st.tuples(names, st.integers(0, 65_535)),
        tags=pairs,
    ),
    Role.TARGET_EPOCH: st.builds(TargetEpochValue, epoch=numbers, timestamp_ms=numbers),
    Role.TARGET: tasks,
    Role.CURRENT: st.builds(
        held, assigned=tasks, revoking=tasks, epoch=numbers, epochs=st.dictionaries(st.integers(0, 99), numbers, max_size=5)
    ),
    Role.OWN: st.lists(subtopologies, max_size=3).map(
        lambda each: Topology(0, tuple(sorted(each, key=lambda s: s.subtopology_id)))
    ),
}


@given(st.data())
def test_records_come_back_as_they_were(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(VALUES)))
    value = data.draw(VALUES[kind])
    assert records.decode_streams_value(kind, records.encode_streams_value(value)) == value
    has_member = kind in (Role.MEMBER, Role.TARGET, Role.CURRENT)
    key = EpochKey(GroupKind.STREAMS, kind, "g", "m" if has_member else "")
    assert decode_epoch_key(encode_epoch_key(key)) == key


def test_a_current_assignment_has_kafkas_bytes() -> None:
    value = records.StreamsCurrentValue(5, 4, 1, Tasks(frozenset({("0", 1)}), frozenset({("1", 2)})), NO_TASKS, {("0", 1): 3})
    head = b"\0\0" + b"\0\0\0\5" + b"\0\0\0\4" + b"\1"
    held_one = b"\2" + b"\x020" + b"\2\0\0\0\1" + b"\1\0\5\2\0\0\0\3"
    standby = b"\2" + b"\x021" + b"\2\0\0\0\2" + b"\0"
    assert records.encode_streams_value(value) == head + held_one + standby + b"\1" + b"\1" * 3 + b"\0"


members = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["p", "q", "r"]), min_size=1)
counts = st.dictionaries(st.sampled_from(["0", "1", "2"]), st.integers(1, 7), min_size=1)


@given(processes=members, later=members, task_counts=counts, replicas=st.integers(0, 2), data=st.data())
@settings(deadline=None)
def test_tasks_are_shared_out_evenly_and_stay_where_they_can(
    processes: dict[str, str], later: dict[str, str], task_counts: dict[str, int], replicas: int, data: st.DataObject
) -> None:
    stateful = frozenset(data.draw(st.sets(st.sampled_from(["0", "1", "2"]))))
    before = assign_sticky(processes, task_counts, stateful, {}, standby_replicas=replicas)
    every = {(name, index) for name, count in task_counts.items() for index in range(count)}
    for assigned, own in (
        (before, processes),
        (assign_sticky(later, task_counts, stateful, before, standby_replicas=replicas), later),
    ):
        assert set(assigned) == set(own)
        assert sorted(task for t in assigned.values() for task in t.active) == sorted(every), "each is active once"
        for process in set(own.values()):
            inside = [t for member, t in assigned.items() if own[member] == process]
            placed = [task for t in inside for task in (*t.active, *t.standby)]
            assert len(placed) == len(set(placed)), "a process has a task once"
        for task in every:
            copies = sum(task in t.standby for t in assigned.values())
            possible = min(replicas, len(set(own.values())) - 1) if task[0] in stateful else 0
            assert copies <= possible
    if replicas == 0 and len(set(processes.values())) == len(processes):
        sizes = [len(t.active) for t in before.values()]
        assert max(sizes) - min(sizes) <= 1


@given(count=st.integers(1, 20), size=st.integers(1, 5))
def test_a_new_member_takes_no_more_than_its_share(count: int, size: int) -> None:
    processes = {f"m{i}": f"p{i}" for i in range(size)}
    before = assign_sticky(processes, {"0": count}, frozenset(), {}, standby_replicas=0)
    assert assign_sticky(processes, {"0": count}, frozenset(), before, standby_replicas=0) == before
    after = assign_sticky(processes | {"new": "new"}, {"0": count}, frozenset(), before, standby_replicas=0)
    moved = sum(len(before[m].active - after[m].active) for m in before)
    assert moved == len(after["new"].active)


# -- a model


class Member:
    """A member as the client library runs it."""

    def __init__(self, member_id: str, process_id: str) -> None:
        self.member_id, self.process_id = member_id, process_id
        self.epoch = -1
        self.owned: Owned = set()
        self.standby: Owned = set()
        self.waiting: Reply | None = None


class StreamsModel(RuleBasedStateMachine):
    """Members that come, go and hang; whatever happens, no two have one active task, and no process one task twice."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker(journal=SimulatedJournal(partition_count=1, is_manual=True))
        self.members: list[Member] = []
        self.count = self.incarnation = 0

    @initialize(replicas=st.integers(0, 2))
    def begin(self, replicas: int) -> None:
        self.set_replicas(replicas)
        self.start_member("p")

    @rule(replicas=st.integers(0, 2))
    def set_replicas(self, replicas: int) -> None:
        self.broker.settings.own["g"] = {"streams.num.standby.replicas": str(replicas)}

    @precondition(lambda self: len(self.members) < 4)
    @rule(process_id=st.sampled_from(["p", "q", "r"]))
    def start_member(self, process_id: str) -> None:
        self.count += 1
        self.members.append(Member(f"m{self.count}", process_id))

    def _step(self, member: Member) -> None:
        if member.waiting is not None:
            return
        if member.epoch < 0:
            member.owned, member.standby = set(), set()
            answer = join(self.broker, member.member_id, process_id=member.process_id)
        else:
            answer = beat(self.broker, member.member_id, member.epoch, owned=member.owned, standby=member.standby)
        if isinstance(answer, Reply):
            member.waiting, incarnation = answer, self.incarnation
            answer.then(lambda response: self._on_answer(member, response) if incarnation == self.incarnation else None)
        else:
            self._on_answer(member, answer)

    def _on_answer(self, member: Member, response: Any) -> None:
        member.waiting = None
        if response.error_code:
            member.epoch, member.owned, member.standby = -1, set(), set()
            return
        member.epoch = response.member_epoch
        got = active(response)
        if got is not None:
            member.owned, member.standby = got, standbys(response)
        self.nobody_shares_a_task()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self._step(data.draw(st.sampled_from(self.members)))

    @rule(rounds=st.integers(1, 5), is_quick=st.booleans())
    def go_on(self, rounds: int, is_quick: bool) -> None:
        for _ in range(rounds):
            for member in self.members:
                self._step(member)
                if is_quick:
                    self.broker.journal.flush()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), says_goodbye=st.booleans())
    def stop(self, data: st.DataObject, says_goodbye: bool) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        member.owned = member.standby = set()
        if says_goodbye:
            beat(self.broker, member.member_id, -1)

    @rule(delay_ms=st.sampled_from([500, 5_000]))
    def wait(self, delay_ms: int) -> None:
        self.broker.time.advance(delay_ms)

    @rule(count=st.integers(1, 3))
    def flush(self, count: int) -> None:
        self.broker.journal.flush(count=count)

    @rule(kept=st.integers(0, 3))
    def crash(self, kept: int) -> None:
        self.incarnation += 1
        self.broker.crash(kept=kept)
        for member in self.members:
            member.waiting = None

    @invariant()
    def nobody_shares_a_task(self) -> None:
        group = self.broker.groups.streams_group("g")
        known = [m for m in self.members if group and m.member_id in group.members]
        owned = [task for m in known for task in m.owned]
        assert len(owned) == len(set(owned)), "a task has two owners"
        inside = [(m.process_id, task) for m in known for task in (*m.owned, *m.standby)]
        assert len(inside) == len(set(inside)), "a process has a task twice"

    def teardown(self) -> None:
        """Left in peace, the members own everything between them, once the sessions of those that vanished have ended."""
        for _ in range(20):
            for member in self.members:
                self._step(member)
                self.broker.journal.flush()
            self.broker.time.advance(5_000)
        self.nobody_shares_a_task()
        if self.members:
            assert {task for m in self.members for task in m.owned} == ALL
            assert describe(self.broker).group_state == "Stable"


TestStreams = StreamsModel.TestCase
TestStreams.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
