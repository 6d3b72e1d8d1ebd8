"""No request has the loop for long: for every API, a request as large as one may be is handled in short turns.

Work is counted, not timed: calls of functions, Python's and C's, between one turn of the loop and the next. 20 ms are about
200,000 of them. What is done on the other thread does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.groups.apis import admin as admin_handlers
from logflume.log.broker.groups.apis import offsets as offset_handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.broker.state import cluster
from logflume.log.broker.transactions.apis import producers as producer_handlers
from logflume.log.protocol import ErrorCode, messages, tables
from logflume.log.storage.disk import write_atomically

from ._turned_broker import MOST_WORK, TurnedBroker
from ._wire import create_topic_request

ELEMENTS = 10_000
"""More are decoded, and handled, in slices just the same."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnedBroker]:
    broker = TurnedBroker(tmp_path_factory.mktemp("turns"))
    assert broker.call(create_topic_request("kept", 300), 7).topics[0].error_code == 0
    yield broker
    broker.close()


def filled(name: str, table: tables.Message, version: int, *, elements: int) -> Any:
    """A request with so many elements in its arrays: all of the outer ones, or many in one outer one."""
    numbers = iter(range(10**9))

    def value(field: tables.Field, share: int) -> Any:
        if field.is_array:
            count = max(1, share if field.type_name not in table.structs or not arrays_in(field.type_name) else share // 100)
            return [one(field, share // count) for _ in range(count)]
        return one(field, share)

    def one(field: tables.Field, share: int) -> Any:
        kind = field.type_name
        if kind in table.structs:
            return struct(kind, share)
        if kind == "string":
            return "t" if "topic" in field.name or field.name == "name" else f"n{next(numbers)}"
        if kind in ("bytes", "records"):
            return b""
        if kind == "uuid":
            return bytes(16)
        if kind == "bool":
            return False
        if kind == "float64":
            return 1.0
        return 4 if field.name == "resource_type" else next(numbers) % 100

    def arrays_in(kind: str) -> bool:
        return any(each.is_array for each in table.structs[kind].fields)

    def struct(kind: str, share: int) -> Any:
        made = getattr(messages.message_class(name), kind)()
        fill(made, table.structs[kind], share)
        return made

    def fill(made: Any, of: tables.Struct, share: int) -> None:
        arrays = [each for each in of.fields if each.is_array and version in each.versions]
        for field in of.fields:
            if version in field.versions:
                setattr(made, field.name, value(field, share // max(1, len(arrays))))

    request = messages.message_class(name)()
    fill(request, table.top, elements)
    return request


def all_handled() -> list[Any]:
    return [pytest.param(key, id=name) for name, key in tables.api_names().items()]


@pytest.mark.parametrize("key", all_handled())
def test_a_request_as_large_as_may_be_is_handled_in_short_turns(known: TurnedBroker, key: int) -> None:
    table = tables.api(key).request
    version = table.versions.last
    if not known.handlers.is_handled(key, version):
        return
    if "t" not in known.core.cluster.topics:
        known.call(create_topic_request("t", 20), 7)
    request = filled(table.name, table, version, elements=ELEMENTS)
    known.turns.longest = 0
    known.call(request, version)
    assert known.turns.longest <= MOST_WORK, f"{table.name}: {known.turns.longest} calls in one turn"


def topics_request(names: list[str]) -> Any:
    request = messages.CreateTopicsRequest
    return request(topics=[request.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names])


def test_many_topics_are_made_and_deleted_in_short_turns_and_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = TurnedBroker(tmp_path)
    written: list[str] = []

    def noted(disk: Any, path: str, content: bytes) -> None:
        written.append(path)
        write_atomically(disk, path, content)

    monkeypatch.setattr(cluster, "write_atomically", noted)
    names = [f"topic-{number}" for number in range(400)]
    assert {topic.error_code for topic in broker.call(topics_request(names), 7).topics} == {0}
    assert len(written) == 1
    assert all(broker.core.partition(name, 0) is not None for name in names)
    request = messages.CreatePartitionsRequest
    more = request(topics=[request.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names[:100]])
    assert {topic.error_code for topic in broker.call(more, 3).results} == {0}
    assert len(written) == 2
    assert {topic.error_code for topic in broker.call(messages.DeleteTopicsRequest(topic_names=names), 5).responses} == {0}
    assert len(written) == 4, "they are gone; their logs are gone"
    assert not broker.core.partitions
    assert broker.turns.longest <= MOST_WORK
    broker.close()
    again = TurnedBroker(tmp_path)
    assert not again.core.cluster.topics
    again.close()


def test_what_is_at_work_is_nobody_else_s_to_change(tmp_path: Path) -> None:
    """Between two slices another request asks for the same topics."""
    broker = TurnedBroker(tmp_path)

    def begin(message: Any, version: int) -> Any:
        return broker.handlers.handle(RequestContext(message.api_key, version, 1, "c", "127.0.0.1", 1), message)

    names = [f"t{number}" for number in range(300)]
    first, second = begin(topics_request(names), 7), begin(topics_request(names), 7)
    broker.turns.run_due()
    assert {topic.error_code for topic in first.value.topics} == {0}
    assert {topic.error_code for topic in second.value.topics} <= {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT}
    deletions = [begin(messages.DeleteTopicsRequest(topic_names=names), 5) for _ in range(2)]
    made = begin(topics_request(names[:1]), 7)
    broker.turns.run_due()
    codes = [{topic.error_code for topic in each.value.responses} for each in deletions]
    assert codes[0] == {0}
    assert codes[1] <= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.REQUEST_TIMED_OUT}
    made = made.value if isinstance(made, Reply) else made
    assert made.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)
    left = {name for name, _ in broker.core.partitions}
    assert left == set(broker.core.cluster.topics)
    assert not broker.core.topic_rules.busy
    broker.close()
    again = TurnedBroker(tmp_path)
    assert {name for name, _ in again.core.partitions} == left
    again.close()


def test_markers_for_tens_of_thousands_of_partitions_are_written_in_short_turns(known: TurnedBroker) -> None:
    request = messages.WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(name="kept", partition_indexes=[index % 20_000 for index in range(40_000)])
    marker = request.WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=False, topics=[topic], coordinator_epoch=0
    )
    known.turns.longest = 0
    answer = known.call(request(markers=[marker]), 1)
    (told,) = answer.markers[0].topics
    assert [each.partition_index for each in told.partitions] == topic.partition_indexes
    assert [each.error_code == 0 for each in told.partitions] == [index < 300 for index in topic.partition_indexes]
    assert known.turns.longest <= MOST_WORK


def test_an_answer_in_parts_is_the_answer_in_one(known: TurnedBroker) -> None:
    request = messages.ListOffsetsRequest
    partition = request.ListOffsetsPartition
    sizes = [0, 1, 199, 1, 450, 3]
    topics = [
        request.ListOffsetsTopic(
            name="kept", partitions=[partition(partition_index=index % 400, timestamp=-1) for index in range(size)]
        )
        for size in sizes
    ]
    answer = known.call(request(replica_id=-1, topics=topics), 7)
    assert [[each.partition_index for each in topic.partitions] for topic in answer.topics] == [
        [index % 400 for index in range(size)] for size in sizes
    ]
    assert [each.error_code == 0 for each in answer.topics[4].partitions] == [index % 400 < 300 for index in range(450)]


# -- what administrators ask for, when a cluster has as much of it as it may


WITH_ACLS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnedBroker]:
    broker = TurnedBroker(tmp_path_factory.mktemp("turns"), **WITH_ACLS)
    yield broker
    broker.close()


def acl(number: int) -> Any:
    creation = messages.CreateAclsRequest.AclCreation
    made = creation(resource_type=2, resource_name=f"t{number}", resource_pattern_type=3 + number % 2, principal="User:a")
    made.host, made.operation, made.permission_type = "*", 3, 3
    return made


def every_acl(*, name: str | None = None, pattern: int = 1) -> dict[str, Any]:
    return {
        "resource_type_filter": 1, "resource_name_filter": name, "principal_filter": None, "host_filter": None, "operation": 1,
        "permission_type": 1, "pattern_type_filter": pattern,
    }  # fmt: skip


def test_tens_of_thousands_of_acls_are_kept_and_told_in_short_turns(administered: TurnedBroker) -> None:
    call, turns = administered.call, administered.turns
    creations = [acl(number) for number in range(25_000)]
    made = call(messages.CreateAclsRequest(creations=creations), 3)
    assert [each.error_code for each in made.results] == [0] * 25_000
    assert {each.error_code for each in call(messages.CreateAclsRequest(creations=creations), 3).results} == {0}
    told = call(messages.DescribeAclsRequest(**every_acl()), 3)
    assert sum(len(each.acls) for each in told.resources) == 25_000
    deletions = messages.DeleteAclsRequest
    one = call(deletions(filters=[deletions.DeleteAclsFilter(**every_acl(name="t7", pattern=4))]), 3)
    assert [each.resource_name for each in one.filter_results[0].matching_acls] == ["t7"]
    filters = [deletions.DeleteAclsFilter(**every_acl()) for _ in range(2)]
    gone = call(deletions(filters=filters), 3)
    assert [len(each.matching_acls) for each in gone.filter_results] == [24_999, 0], "each is told once"
    assert not call(messages.DescribeAclsRequest(**every_acl()), 3).resources
    assert turns.longest <= MOST_WORK


def test_ten_thousand_users_are_kept_and_told_in_short_turns(administered: TurnedBroker) -> None:
    request = messages.AlterUserScramCredentialsRequest
    upsertion, deletion = request.ScramCredentialUpsertion, request.ScramCredentialDeletion
    names = [f"u{number}" for number in range(10_000)]
    users = [upsertion(name=name, mechanism=1, iterations=4096, salt=b"s", salted_password=bytes(32)) for name in names]
    assert {each.error_code for each in administered.call(request(upsertions=users), 0).results} == {0}
    more = [upsertion(name="one more", mechanism=1, iterations=4096, salt=b"s", salted_password=bytes(32))]
    assert administered.call(request(upsertions=more), 0).results[0].error_code == ErrorCode.POLICY_VIOLATION
    told = administered.call(messages.DescribeUserScramCredentialsRequest(users=None), 0)
    assert [each.user for each in told.results] == names
    deletions = [deletion(name=name, mechanism=1) for name in names]
    assert {each.error_code for each in administered.call(request(deletions=deletions), 0).results} == {0}
    assert not administered.call(messages.DescribeUserScramCredentialsRequest(users=None), 0).results
    assert administered.turns.longest <= MOST_WORK


def test_ten_thousand_quotas_are_kept_and_told_in_short_turns(administered: TurnedBroker) -> None:
    request = messages.AlterClientQuotasRequest
    operation = request.OpData(key="producer_byte_rate", value=1e6, remove=False)
    entries = [
        request.EntryData(entity=[request.EntityData(entity_type="user", entity_name=f"u{number}")], ops=[operation])
        for number in range(10_000)
    ]
    assert {each.error_code for each in administered.call(request(entries=entries), 1).entries} == {0}
    told = administered.call(messages.DescribeClientQuotasRequest(components=[]), 1)
    assert len(told.entries) == 10_000
    removals = [request.OpData(key=f"k{number}", value=0.0, remove=True) for number in range(50_000)]
    entry = request.EntryData(entity=entries[0].entity, ops=removals)
    assert administered.call(request(entries=[entry]), 1).entries[0].error_code == ErrorCode.INVALID_REQUEST
    assert administered.turns.longest <= MOST_WORK


def configs_request(kind: int, name: str, key: str, value: str) -> Any:
    request = messages.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name=key, config_operation=0, value=value)
    return request(resources=[request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])])


def test_the_metadata_are_never_written_while_the_loop_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = TurnedBroker(tmp_path, **WITH_ACLS)
    written: list[bool] = []

    def noted(disk: Any, path: str, content: bytes) -> None:
        written.append(broker.turns.is_elsewhere)
        write_atomically(disk, path, content)

    monkeypatch.setattr(cluster, "write_atomically", noted)
    scram, quotas, features = (
        messages.AlterUserScramCredentialsRequest, messages.AlterClientQuotasRequest, messages.UpdateFeaturesRequest,
    )  # fmt: skip
    user = scram.ScramCredentialUpsertion(name="u", mechanism=1, iterations=4096, salt=b"s", salted_password=bytes(32))
    entry = quotas.EntryData(
        entity=[quotas.EntityData(entity_type="user", entity_name="u")],
        ops=[quotas.OpData(key="producer_byte_rate", value=1e6, remove=False)],
    )
    update = features.FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=3)
    changes = [
        (messages.InitProducerIdRequest(transactional_id=None), 4),
        (create_topic_request("t", 2), 7),
        (configs_request(2, "t", "retention.ms", "1000"), 1),
        (configs_request(4, str(broker.core.node_id), "log.retention.ms", "1000"), 1),
        (configs_request(4, "", "log.retention.ms", "2000"), 1),
        (configs_request(32, "g", "consumer.session.timeout.ms", "50000"), 1),
        (configs_request(16, "m", "metrics", "org.apache."), 1),
        (messages.CreateAclsRequest(creations=[acl(1)]), 3),
        (scram(upsertions=[user]), 0),
        (quotas(entries=[entry]), 1),
        (features(feature_updates=[update]), 1),
    ]
    for number, (change, version) in enumerate(changes, start=1):
        broker.call(change, version)
        assert written == [True] * number, change
    broker.close()


def test_two_changes_of_the_same_at_a_time_both_count(tmp_path: Path) -> None:
    broker = TurnedBroker(tmp_path, **WITH_ACLS)
    broker.call(create_topic_request("t", 1), 7)

    def begin(message: Any, version: int) -> Any:
        return broker.handlers.handle(RequestContext(message.api_key, version, 1, "c", "127.0.0.1", 1), message)

    begin(configs_request(2, "t", "retention.ms", "1000"), 1)
    begin(configs_request(2, "t", "segment.bytes", "2000000"), 1)
    begin(messages.CreateAclsRequest(creations=[acl(1)]), 3)
    begin(messages.CreateAclsRequest(creations=[acl(2)]), 3)
    broker.turns.run_due()
    assert broker.core.cluster.topics["t"].configs == {"retention.ms": "1000", "segment.bytes": "2000000"}
    assert len(broker.call(messages.DescribeAclsRequest(**every_acl()), 3).resources) == 2
    broker.close()
    again = TurnedBroker(tmp_path, **WITH_ACLS)
    assert again.core.cluster.topics["t"].configs == {"retention.ms": "1000", "segment.bytes": "2000000"}
    assert len(again.call(messages.DescribeAclsRequest(**every_acl()), 3).resources) == 2
    again.close()


def test_a_transaction_over_many_partitions_ends_in_short_turns(known: TurnedBroker) -> None:
    init = messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
    granted = known.call(init, 4)
    producer = {"producer_id": granted.producer_id, "producer_epoch": granted.producer_epoch}
    add = messages.AddPartitionsToTxnRequest
    topics = [add.AddPartitionsToTxnTopic(name="kept", partitions=list(range(300)))]
    added = known.call(
        add(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=granted.producer_id,
            v3_and_below_producer_epoch=granted.producer_epoch,
            v3_and_below_topics=topics,
        ),
        3,
    )
    assert {each.partition_error_code for each in added.results_by_topic_v3_and_below[0].results_by_partition} == {0}
    ends = [known.core.partition("kept", index).log.log_end_offset for index in range(300)]  # type: ignore[union-attr]
    known.turns.turns = 0
    ended = known.call(messages.EndTxnRequest(transactional_id="x", committed=True, **producer), 4)
    assert ended.error_code == 0
    assert known.turns.turns >= 6, "a turn for 50 markers"
    assert [known.core.partition("kept", index).log.log_end_offset for index in range(300)] == [end + 1 for end in ends]  # type: ignore[union-attr]


def test_thousands_of_transactional_ids_are_told_in_short_turns(tmp_path: Path) -> None:
    broker = TurnedBroker(tmp_path)
    ids = [f"x{number}" for number in range(2_500)]
    for name in ids:
        broker.coordinators.transactions.init_producer(name, 60_000)
        if name == ids[0]:
            broker.turns.run_due()  # it makes the topic
    broker.turns.longest = broker.turns.turns = 0
    told = broker.call(messages.ListTransactionsRequest(duration_filter=-1), 1)
    assert sorted(each.transactional_id for each in told.transaction_states) == sorted(ids)
    assert broker.turns.turns >= 3, "a turn for a thousand"
    broker.close()


def test_offsets_groups_and_partitions_of_a_transaction_are_told_in_slices(
    known: TurnedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_handlers, "FETCHED_AT_A_TIME", 50)
    monkeypatch.setattr(admin_handlers, "GROUPS_AT_A_TIME", 5)
    monkeypatch.setattr(producer_handlers, "PARTITIONS_AT_A_TIME", 50)
    commit, fetch, every = messages.OffsetCommitRequest, messages.OffsetFetchRequest, list(range(300))

    def answer_in_slices(request: Any, version: int, turns: int) -> Any:
        known.turns.turns = 0
        answer = known.call(request, version)
        assert known.turns.turns >= turns
        return answer

    def offsets(group: str) -> Any:
        partition = commit.OffsetCommitRequestPartition
        partitions = [partition(partition_index=index, committed_offset=index, committed_metadata="") for index in every]
        topic = commit.OffsetCommitRequestTopic(name="kept", partitions=partitions)
        return commit(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic])

    for number in range(20):
        known.call(offsets(f"many-{number}"), 8)
    asked = fetch.OffsetFetchRequestTopic(name="kept", partition_indexes=every)
    named = fetch.OffsetFetchRequestTopics(name="kept", partition_indexes=every)
    for topics in (None, [asked]):
        told = answer_in_slices(fetch(group_id="many-1", topics=topics), 7, 6).topics
        assert [each.committed_offset for each in told[0].partitions] == every
    for topics in (None, [named]):
        groups = [fetch.OffsetFetchRequestGroup(group_id=f"many-{number}", topics=topics) for number in range(2)]
        for group in answer_in_slices(fetch(groups=groups), 9, 12).groups:
            assert [each.committed_offset for each in group.topics[0].partitions] == every
    listed = answer_in_slices(messages.ListGroupsRequest(), 5, 4).groups
    assert {f"many-{number}" for number in range(20)} <= {each.group_id for each in listed}
    init = messages.InitProducerIdRequest(transactional_id="y", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
    granted = known.call(init, 4)
    add = messages.AddPartitionsToTxnRequest
    txn = add.AddPartitionsToTxnTransaction(
        transactional_id="y", producer_id=granted.producer_id, producer_epoch=granted.producer_epoch
    )
    txn.topics = [add.AddPartitionsToTxnTopic(name="kept", partitions=[*every, 300])]
    (result,) = answer_in_slices(add(transactions=[txn]), 5, 6).results_by_transaction
    codes = [each.partition_error_code for each in result.topic_results[0].results_by_partition]
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED] * 300 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], "all or none"
    txn.topics[0].partitions = every
    (result,) = answer_in_slices(add(transactions=[txn]), 5, 6).results_by_transaction
    assert {each.partition_error_code for each in result.topic_results[0].results_by_partition} == {0}
