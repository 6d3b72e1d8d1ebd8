"""Classic groups as their members see them: joining, generations, assignments, leaving, timeouts and every error code."""

import pytest

from logflume.log.broker.groups import GroupConfig
from logflume.log.broker.replies import Reply
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker

NO_DELAY = GroupConfig(initial_rebalance_delay_ms=0)


@pytest.fixture
def broker() -> Broker:
    return Broker(config=NO_DELAY)


def stable_pair(broker: Broker) -> tuple[str, str, int]:
    """Bring a group of two members to Stable; return leader, follower and generation."""
    first, joined = broker.new_member()
    assert joined.generation_id == 1
    assert joined.leader == first
    second, waiting = broker.new_member()
    assert isinstance(waiting, Reply), "the second member waits until the first has rejoined"
    assert broker.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    again = broker.join(first)
    assert again.generation_id == 2
    assert waiting.value.generation_id == 2
    follower_sync = broker.sync(second, 2)
    assert isinstance(follower_sync, Reply), "a follower waits for the leader's assignments"
    assert broker.sync(first, 2, {first: b"a1", second: b"a2"}).assignment == b"a1"
    assert follower_sync.value.assignment == b"a2"
    return first, second, 2


def test_two_members_reach_a_stable_generation(broker: Broker) -> None:
    first, second, generation = stable_pair(broker)
    described = broker.describe()
    assert described.group_state == "Stable"
    assert described.protocol_data == "range"
    assert {m.member_id: m.member_assignment for m in described.members} == {first: b"a1", second: b"a2"}
    assert {m.client_host for m in described.members} == {"/127.0.0.1"}
    assert broker.heartbeat(first, generation) == broker.heartbeat(second, generation) == ErrorCode.NONE


def test_the_leader_alone_learns_the_members(broker: Broker) -> None:
    first, _ = broker.new_member(protocols=(("range", b"one"),))
    second, waiting = broker.new_member(protocols=(("range", b"two"),))
    leader = broker.join(first, protocols=(("range", b"one"),))
    assert {m.member_id: m.metadata for m in leader.members} == {first: b"one", second: b"two"}
    assert waiting.value.members == []
    assert waiting.value.leader == first


def test_the_initial_delay_gathers_members_that_start_together() -> None:
    broker = Broker(config=GroupConfig(initial_rebalance_delay_ms=50))
    _, one = broker.new_member()
    broker.time.advance(30)
    _, two = broker.new_member()
    broker.time.advance(30)
    assert not one.is_done, "a new member prolongs the delay"
    broker.time.advance(40)
    assert one.value.generation_id == two.value.generation_id == 1


def test_the_initial_delay_ends_at_the_rebalance_timeout() -> None:
    broker = Broker(config=GroupConfig(initial_rebalance_delay_ms=50))
    _, first = broker.new_member(rebalance_ms=100)
    for _ in range(4):
        broker.time.advance(30)
        broker.new_member(rebalance_ms=100)
    assert first.is_done


def test_the_protocol_with_most_votes_that_all_share_wins(broker: Broker) -> None:
    a, _ = broker.new_member(protocols=(("x", b""), ("y", b""), ("z", b"")))
    _, second = broker.new_member(protocols=(("y", b""), ("x", b"")))
    _, third = broker.new_member(protocols=(("y", b""), ("x", b"")))
    assert broker.join(a, protocols=(("x", b""), ("y", b""), ("z", b""))).protocol_name == "y"
    assert second.value.protocol_name == third.value.protocol_name == "y"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_is_refused(broker: Broker, options: dict[str, object], error: ErrorCode) -> None:
    assert broker.join(**options).error_code == error  # type: ignore[arg-type]
    assert list(broker.groups.groups()) == []


@pytest.mark.parametrize(("protocols", "protocol_type"), [((("other", b""),), "consumer"), ((("range", b""),), "connect")])
def test_a_member_without_a_common_protocol_is_refused(
    broker: Broker, protocols: tuple[tuple[str, bytes], ...], protocol_type: str
) -> None:
    stable_pair(broker)
    refused = broker.join(protocols=protocols, protocol_type=protocol_type)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert broker.describe().group_state == "Stable"


def test_old_clients_need_no_second_join(broker: Broker) -> None:
    joined = broker.join(version=3, client_id="old")
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("old-")


def test_before_version_one_the_session_timeout_bounds_the_rebalance(broker: Broker) -> None:
    joined = broker.join(version=0, session_ms=7_000)
    _, waiting = broker.new_member(session_ms=7_000, rebalance_ms=7_000)
    broker.heartbeat(joined.member_id, 1)
    broker.time.advance(6_000)
    broker.heartbeat(joined.member_id, 1)
    broker.time.advance(1_001)
    assert waiting.value.generation_id == 2


def test_a_full_group_refuses_members() -> None:
    broker = Broker(config=GroupConfig(initial_rebalance_delay_ms=0, max_size=1))
    broker.new_member()
    assert broker.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert broker.join(instance="i").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_unused_member_id_is_forgotten(broker: Broker) -> None:
    member_id = broker.join().member_id
    broker.time.advance(10_001)
    assert broker.join(member_id).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_given_out_ids(broker: Broker) -> None:
    first, _ = broker.new_member()
    pending = broker.join().member_id
    rejoined = broker.join(first, protocols=(("range", b"changed"),))
    assert not rejoined.is_done
    joined = broker.join(pending)
    assert joined.generation_id == rejoined.value.generation_id == 2


def test_a_member_that_does_not_rejoin_is_left_out(broker: Broker) -> None:
    first, second, _ = stable_pair(broker)
    third, waiting = broker.new_member(rebalance_ms=60_000)
    rejoined = broker.join(first)
    for _ in range(13):
        broker.time.advance(5_000)
        broker.heartbeat(second, 2)
    assert {m.member_id for m in rejoined.value.members} == {first, third}
    assert waiting.value.error_code == ErrorCode.NONE
    assert broker.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_the_others_rebalance(broker: Broker) -> None:
    first, second, generation = stable_pair(broker)
    broker.time.advance(9_000)
    assert broker.heartbeat(first, generation) == ErrorCode.NONE
    broker.time.advance(1_001)
    assert broker.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.heartbeat(second, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.join(first).generation_id == 3


def test_waiting_for_others_does_not_end_the_session(broker: Broker) -> None:
    first, _ = broker.new_member(session_ms=60_000)
    second, waiting = broker.new_member(session_ms=6_000)
    broker.time.advance(50_000)
    assert not waiting.is_done
    assert broker.join(first, session_ms=60_000).generation_id == 2
    assert waiting.value.error_code == ErrorCode.NONE
    assert {m.member_id for m in broker.describe().members} == {first, second}


def test_a_member_that_never_syncs_is_removed(broker: Broker) -> None:
    first, joined = broker.new_member(rebalance_ms=6_000)
    assert joined.generation_id == 1
    broker.time.advance(5_000)
    broker.heartbeat(first, 1)
    broker.time.advance(1_001)
    assert broker.heartbeat(first, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.groups.kind_of("g") is None, "nobody was ever told an assignment: nothing is left of it"


def test_a_lost_join_response_is_given_again(broker: Broker) -> None:
    first, joined = broker.new_member()
    again = broker.join(first)
    assert (again.generation_id, again.leader) == (1, first)
    assert [m.member_id for m in again.members] == [first]
    assert joined.generation_id == 1


def test_a_follower_that_rejoins_unchanged_keeps_the_generation(broker: Broker) -> None:
    _, second, generation = stable_pair(broker)
    again = broker.join(second)
    assert again.generation_id == generation
    assert broker.sync(second, generation).assignment == b"a2"


def test_a_leader_that_rejoins_starts_a_rebalance(broker: Broker) -> None:
    first, second, _ = stable_pair(broker)
    waiting = broker.join(first)
    assert isinstance(waiting, Reply)
    assert broker.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.join(second).generation_id == 3


def test_new_metadata_interrupts_a_generation_that_waits_for_its_leader(broker: Broker) -> None:
    first, _ = broker.new_member()
    second, _ = broker.new_member()
    broker.join(first)
    sync = broker.sync(second, 2)
    changed = broker.join(first, protocols=(("range", b"new"),))
    assert sync.value.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not changed.is_done
    assert broker.join(second).generation_id == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"generation": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_sync_and_heartbeat_refuse_who_does_not_belong(broker: Broker, change: dict[str, object], error: ErrorCode) -> None:
    first, _, generation = stable_pair(broker)
    request = {"member_id": first, "generation": generation, **change}
    assert broker.sync(**request).error_code == error  # type: ignore[arg-type]
    assert broker.heartbeat(**request) == error  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_sync_compares_the_protocol(broker: Broker, change: dict[str, str]) -> None:
    first, _, generation = stable_pair(broker)
    assert broker.sync(first, generation, **change).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_sync_during_a_rebalance_tells_to_rejoin(broker: Broker) -> None:
    first, _, generation = stable_pair(broker)
    broker.new_member()
    assert broker.sync(first, generation).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_leaving_rebalances_the_others_at_once(broker: Broker) -> None:
    first, second, generation = stable_pair(broker)
    assert broker.leave((second, None)) == [ErrorCode.NONE]
    assert broker.heartbeat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert broker.join(first).generation_id == 3


def test_the_last_one_leaves_an_empty_group(broker: Broker) -> None:
    first, second, generation = stable_pair(broker)
    assert broker.leave((first, None), (second, None), ("x", None)) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert broker.describe().group_state == "Empty"
    assert broker.heartbeat(first, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.leave(("x", None), group="none") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert broker.leave(("x", None), group="") == [ErrorCode.INVALID_GROUP_ID]


def test_leaving_ends_a_wait(broker: Broker) -> None:
    stable_pair(broker)
    third, waiting = broker.new_member()
    assert broker.leave((third, None)) == [ErrorCode.NONE]
    assert waiting.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_given_out_id_can_leave(broker: Broker) -> None:
    pending = broker.join().member_id
    assert broker.leave((pending, None)) == [ErrorCode.NONE]
    assert broker.join(pending).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_old_leave_requests_name_one_member(broker: Broker) -> None:
    first, _, _ = stable_pair(broker)
    assert broker.send("LeaveGroup", version=2, group_id="g", member_id=first).error_code == ErrorCode.NONE
    assert broker.send("LeaveGroup", version=2, group_id="g", member_id=first).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_assignments_are_told_only_once_they_are_on_disk(broker: Broker) -> None:
    broker.journal.is_manual = True
    first, joined = broker.new_member()
    sync = broker.sync(first, joined.generation_id, {first: b"mine"})
    assert isinstance(sync, Reply)
    broker.journal.flush()
    assert sync.value.assignment == b"mine"


def test_a_journal_that_fails_makes_the_members_rejoin(broker: Broker) -> None:
    first, joined = broker.new_member()
    broker.journal.is_failing = True
    assert broker.sync(first, joined.generation_id, {first: b"mine"}).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.journal.is_failing = False
    again = broker.join(first)
    assert again.generation_id == 2
    assert broker.sync(first, 2, {first: b"mine"}).assignment == b"mine"


def test_a_stable_group_goes_on_after_a_crash(broker: Broker) -> None:
    first, second, generation = stable_pair(broker)
    broker.crash()
    assert broker.heartbeat(first, generation) == broker.heartbeat(second, generation) == ErrorCode.NONE
    assert broker.sync(second, generation).assignment == b"a2"
    assert broker.describe().group_state == "Stable"
    broker.time.advance(10_001)
    assert broker.heartbeat(first, generation) == ErrorCode.UNKNOWN_MEMBER_ID, "sessions run again after the restart"


def test_an_unfinished_generation_is_not_there_after_a_crash(broker: Broker) -> None:
    first, _, generation = stable_pair(broker)
    _, waiting = broker.new_member()
    broker.join(first)
    broker.crash()
    assert broker.heartbeat(first, generation) == ErrorCode.NONE
    assert not waiting.is_done
