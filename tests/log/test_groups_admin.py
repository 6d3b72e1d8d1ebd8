"""Describing, listing, finding and deleting groups, and the bytes of their records."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.broker.groups import GroupConfig, removal
from logflume.log.broker.groups import journal_records as records
from logflume.log.broker.partitioner import partition_of
from logflume.log.broker.ports import JournalRecord
from logflume.log.broker.replies import Reply
from logflume.log.errors import DecodeError
from logflume.log.protocol.errors import ErrorCode

from ._groups_harness import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker(config=GroupConfig(initial_rebalance_delay_ms=0))


def deleted(broker: Broker, *names: str) -> list[int]:
    return [r.error_code for r in broker.send("DeleteGroups", groups_names=list(names)).results]


def test_a_group_that_does_not_exist_is_dead(broker: Broker) -> None:
    old, new = broker.describe("none", version=5), broker.describe("none", version=6)
    assert (old.group_state, old.error_code) == ("Dead", ErrorCode.NONE)
    assert (new.group_state, new.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert "none" in new.error_message


def test_members_are_described_without_metadata_while_rebalancing(broker: Broker) -> None:
    broker.new_member()
    described = broker.describe()
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert described.members[0].member_metadata == b""
    assert described.authorized_operations == 3400


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ([], [], {"empty", "joining"}),
        (["empty"], [], {"empty"}),
        (["CompletingRebalance"], [], {"joining"}),
        (["Stable"], [], set()),
        ([], ["classic"], {"empty", "joining"}),
        ([], ["consumer"], set()),
    ],
)
def test_groups_are_listed_by_state_and_type(broker: Broker, states: list[str], types: list[str], expected: set[str]) -> None:
    broker.commit({("t", 0): 1}, group="empty")
    broker.new_member(group="joining")
    listed = broker.send("ListGroups", states_filter=states, types_filter=types).groups
    assert {g.group_id for g in listed} == expected
    assert all(g.group_type == "Classic" for g in listed)
    assert {g.group_id: g.protocol_type for g in listed}.get("joining", "consumer") == "consumer"


def test_deleting_groups(broker: Broker) -> None:
    broker.commit({("t", 0): 1}, group="empty")
    broker.new_member(group="busy")
    assert deleted(broker, "empty", "busy", "none") == [
        ErrorCode.NONE,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert broker.fetch(group="empty") == {}
    broker.crash()
    assert broker.groups.group("empty") is None
    assert broker.fetch(group="empty") == {}


def test_a_deleted_group_stays_deleted_whatever_was_on_its_way(broker: Broker) -> None:
    broker.journal.is_manual = True
    committing = broker.commit({("t", 0): 1})
    deleting = broker.send("DeleteGroups", groups_names=["g"])
    assert isinstance(deleting, Reply)
    broker.journal.flush()
    assert committing.is_done
    assert deleting.value.results[0].error_code == ErrorCode.NONE
    broker.crash()
    assert broker.groups.group("g") is None


def test_a_group_is_deleted_with_its_offsets_a_part_at_a_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "DELETIONS_AT_A_TIME", 1)
    broker.commit({("t", 0): 1, ("t", 1): 2})
    broker.journal.is_manual = True
    deleting = broker.send("DeleteGroups", groups_names=["g"])
    assert isinstance(deleting, Reply)
    for _ in range(2):
        assert not deleting.is_done
        assert broker.journal.in_flight == 1, "the next part waits for this one"
        assert not isinstance(broker.commit({("t", 0): 3}), Reply), "nobody writes to it meanwhile"
        broker.journal.flush(count=1)
    assert deleting.value.results[0].error_code == ErrorCode.NONE
    broker.crash()
    assert broker.groups.group("g") is None
    assert broker.fetch() == {}


def test_a_group_that_could_not_be_deleted_is_there(broker: Broker) -> None:
    broker.commit({("t", 0): 1})
    broker.journal.is_failing = True
    assert deleted(broker, "g") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert broker.fetch() == {("t", 0): (1, ErrorCode.NONE)}


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(("key_type", "error"), [(0, ErrorCode.NONE), (1, ErrorCode.NONE), (9, ErrorCode.INVALID_REQUEST)])
def test_this_broker_coordinates_everything(broker: Broker, version: int, key_type: int, error: ErrorCode) -> None:
    if version == 0:
        key_type, error = 0, ErrorCode.NONE
    response = broker.send("FindCoordinator", version=version, key="g", coordinator_keys=["g"], key_type=key_type)
    found = response if version < 4 else response.coordinators[0]
    assert found.error_code == error
    assert (found.host, found.port) == (("localhost", 9092) if not error else ("", -1))


@pytest.mark.parametrize(("name", "java_hash"), [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(1 << 31))])
def test_ids_are_placed_as_java_does(name: str, java_hash: int) -> None:
    assert partition_of(name, 50) == (0 if java_hash == -(1 << 31) else abs(java_hash) % 50)


def test_offset_records_have_kafkas_bytes() -> None:
    key = records.OffsetKey("grp", "top", 3)
    encoded = records.encode_offset_key(key)
    assert encoded == b"\0\1" + b"\0\3grp" + b"\0\3top" + b"\0\0\0\3"
    value = records.OffsetValue(10, 2, "m", 99)
    encoded_value = records.encode_offset_value(value)
    assert encoded_value == struct.pack(">hqi", 3, 10, 2) + b"\0\1m" + struct.pack(">q", 99)
    assert (records.decode_key(encoded), records.decode_offset_value(encoded_value)) == (key, value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (struct.pack(">hq", 0, 5) + b"\0\1m" + struct.pack(">q", 9), records.OffsetValue(5, -1, "m", 9)),
        (struct.pack(">hq", 1, 5) + b"\0\1m" + struct.pack(">qq", 9, 10), records.OffsetValue(5, -1, "m", 9)),
        (struct.pack(">hqi", 4, 5, 1) + b"\2m" + struct.pack(">q", 9) + b"\0", records.OffsetValue(5, 1, "m", 9)),
    ],
)
def test_other_versions_of_offset_values_are_read(data: bytes, expected: records.OffsetValue) -> None:
    assert records.decode_offset_value(data) == expected


def test_a_flexible_group_value_is_read() -> None:
    member = b"\3m1" + b"\0" + b"\2c" + b"\2h" + struct.pack(">ii", 5, 6) + b"\2s" + b"\2a" + b"\0"
    data = struct.pack(">h", 4) + b"\x09consumer" + struct.pack(">i", 7) + b"\6range" + b"\3m1" + struct.pack(">q", 8) + b"\2"
    value = records.decode_group_value(data + member + b"\0")
    assert value == records.GroupValue(
        "consumer", 7, "range", "m1", 8, (records.StoredMember("m1", None, "c", "h", 5, 6, b"s", b"a"),)
    )


texts = st.text(max_size=20)
members = st.builds(
    records.StoredMember,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=st.integers(0, 2**31 - 1),
    subscription=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)


@given(
    st.builds(
        records.GroupValue,
        protocol_type=texts,
        generation=st.integers(0, 2**31 - 1),
        protocol=st.none() | texts,
        leader=st.none() | texts,
        state_since_ms=st.integers(-1, 2**62),
        members=st.lists(members, max_size=5).map(tuple),
    )
)
def test_group_records_come_back_as_they_were(value: records.GroupValue) -> None:
    assert records.decode_group_value(records.encode_group_value(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    known = (records.OffsetKey, records.GroupKey, records.OffsetValue, records.GroupValue, type(None))
    for decode in (records.decode_key, records.decode_offset_value, records.decode_group_value):
        with contextlib.suppress(DecodeError):
            assert isinstance(decode(data), known)


def test_an_unreadable_record_is_named(broker: Broker) -> None:
    broker.journal.append(2, [JournalRecord(records.encode_offset_key(records.OffsetKey("g", "t", 0)), b"\0\x63")])
    with pytest.raises(DecodeError, match=r"__consumer_offsets-2, offset 0: .*version 99"):
        broker.crash()


def test_records_of_newer_kinds_are_left_alone(broker: Broker) -> None:
    broker.journal.append(1, [JournalRecord(struct.pack(">h", 99) + b"\0\1g", b"?")])
    broker.commit({("t", 0): 4})
    broker.crash()
    assert broker.fetch() == {("t", 0): (4, ErrorCode.NONE)}
