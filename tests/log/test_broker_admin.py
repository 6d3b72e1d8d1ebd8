"""Topics, partitions, configs and metadata: what is allowed, what is refused and why, what is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.protocol import ErrorCode, messages
from logflume.log.server import start_embedded

from ._embedded import Calls
from ._wire import batch, create_topic_request, fetch_request

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    with start_embedded(str(tmp_path_factory.mktemp("broker")), configs={"num.partitions": "3"}) as broker:
        yield Calls(broker)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_topic_names_that_are_not_legal(call: Calls, name: str) -> None:
    result = call.create(name)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "249" in result.error_message


def test_a_topic_is_created_as_asked(call: Calls, topic: str) -> None:
    result = call.create(topic, -1, retention_ms="5000")
    assert (result.error_code, result.error_message, result.num_partitions) == (0, None, 3)
    assert {c.name: (c.value, c.config_source) for c in result.configs}["retention.ms"] == ("5000", 1)
    assert call.create(topic).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_what_cannot_be_created(call: Calls, topic: str) -> None:
    assert call.create(topic, 0).error_code == ErrorCode.INVALID_PARTITIONS
    assert call.create(topic, 10_001).error_code == ErrorCode.INVALID_PARTITIONS
    bad = call.create(topic, retention_mss="1")
    assert bad.error_code == ErrorCode.INVALID_CONFIG
    assert "did you mean 'retention.ms'" in bad.error_message
    assert "expected a whole number of -1 to 9223372036854775807" in call.create(topic, retention_ms="soon").error_message
    assert "did you mean 'compact'" in call.create(topic, cleanup_policy="compct").error_message
    request = create_topic_request(topic)
    request.topics[0].replication_factor = 3
    assert call(request, 7).topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    request = create_topic_request(topic)
    request.topics.append(create_topic_request(topic).topics[0])
    assert [each.error_code for each in call(request, 7).topics] == [ErrorCode.INVALID_REQUEST]
    assert topic not in [each.name for each in call(messages.MetadataRequest(topics=None), 12).topics]


def test_a_dry_run_changes_nothing(call: Calls, topic: str) -> None:
    request = create_topic_request(topic)
    request.validate_only = True
    assert call(request, 7).topics[0].error_code == 0
    assert call.create(topic).error_code == 0


def test_replica_assignments(call: Calls, topic: str) -> None:
    request = create_topic_request(topic, -1)
    asked = request.topics[0]
    asked.replication_factor = -1
    asked.assignments = [request.CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in range(2)]
    assert call(request, 7).topics[0].num_partitions == 2
    asked.name += "-other"
    asked.assignments[0].broker_ids = [7]
    assert call(request, 7).topics[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def more_partitions(call: Calls, name: str, count: int, *, is_dry: bool = False) -> Any:
    request = messages.CreatePartitionsRequest
    asked = request(topics=[request.CreatePartitionsTopic(name=name, count=count, assignments=None)], validate_only=is_dry)
    (result,) = call(asked, 3).results
    return result


def test_more_partitions_but_never_fewer(call: Calls, topic: str) -> None:
    call.create(topic, 2)
    assert more_partitions(call, topic, 4, is_dry=True).error_code == 0
    assert more_partitions(call, topic, 4).error_code == 0
    assert more_partitions(call, topic, 4).error_code == ErrorCode.INVALID_PARTITIONS
    assert more_partitions(call, "missing", 4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [p.base_offset for p in call.produce(topic, *[batch(b"v")] * 4)] == [0, 0, 0, 0]


def test_topics_are_deleted_by_name_and_by_id(call: Calls, topic: str) -> None:
    topic_id = call.create(topic).topic_id
    call.create(topic + "-2")
    request = messages.DeleteTopicsRequest
    by_id = request(topics=[request.DeleteTopicState(name=None, topic_id=topic_id)])
    assert [(r.name, r.error_code) for r in call(by_id, 6).responses] == [(topic, 0)]
    assert call(by_id, 6).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_name = request(topic_names=[topic + "-2", "missing"])
    assert [r.error_code for r in call(by_name, 5).responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_made_again_is_another_one(call: Calls, topic: str) -> None:
    first = call.create(topic).topic_id
    call.produce(topic, batch(b"old"))
    call(messages.DeleteTopicsRequest(topic_names=[topic]), 5)
    assert call.create(topic).topic_id != first
    (partition,) = call(fetch_request(topic, {0: 0}), 12).responses[0].partitions
    assert (partition.high_watermark, len(partition.records)) == (0, 0)


def metadata(call: Calls, *names: str, may_create: bool = False) -> list[Any]:
    request = messages.MetadataRequest
    topics = [request.MetadataRequestTopic(name=name) for name in names]
    return list(call(request(topics=topics, allow_auto_topic_creation=may_create), 12).topics)


def test_metadata_creates_topics_only_when_allowed(call: Calls, topic: str) -> None:
    assert [t.error_code for t in metadata(call, topic)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    (made,) = metadata(call, topic, may_create=True)
    assert (made.error_code, len(made.partitions)) == (0, 3)
    assert [p.leader_id for p in made.partitions] == [1, 1, 1]
    assert [t.error_code for t in metadata(call, "no good", may_create=True)] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    request = messages.MetadataRequest
    by_id = request(topics=[request.MetadataRequestTopic(name=None, topic_id=made.topic_id)])
    assert call(by_id, 12).topics[0].name == topic


def test_partitions_are_described_in_pages(call: Calls, topic: str) -> None:
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-c"]
    for name in names:
        call.create(name, 3)
    request = messages.DescribeTopicPartitionsRequest
    cursor, got = None, []
    while True:
        asked = request(topics=[request.TopicRequest(name=name) for name in names], response_partition_limit=2, cursor=cursor)
        response = call(asked, 0)
        got += [(t.name, p.partition_index) for t in response.topics for p in t.partitions]
        if response.next_cursor is None:
            break
        cursor = request.Cursor(topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index)
    assert got == [(name, index) for name in names for index in range(3)]


def configs_of(call: Calls, kind: int, name: str, *keys: str) -> dict[str, Any]:
    request = messages.DescribeConfigsRequest
    asked = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    (result,) = call(request(resources=[asked], include_synonyms=True, include_documentation=True), 4).results
    assert result.error_code == 0, result
    return {config.name: config for config in result.configs}


def alter(call: Calls, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    request = messages.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    asked = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (result,) = call(request(resources=[asked]), 1).responses
    return result


def test_every_topic_config_is_described_with_its_default(call: Calls, topic: str) -> None:
    call.create(topic, segment_bytes="1000000")
    configs = configs_of(call, TOPIC, topic)
    assert len(configs) >= 29
    assert all(config.documentation for config in configs.values())
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("604800000", 5)
    names = [(s.name, s.value, s.source) for s in configs["segment.bytes"].synonyms]
    assert names == [("segment.bytes", "1000000", 1), ("log.segment.bytes", "1073741824", 5)]
    assert list(configs_of(call, TOPIC, topic, "retention.ms", "nonsense")) == ["retention.ms"]


def test_single_configs_are_changed(call: Calls, topic: str) -> None:
    call.create(topic)
    assert alter(call, TOPIC, topic, ("cleanup.policy", APPEND, "compact"), ("retention.ms", SET, "7")).error_code == 0
    assert configs_of(call, TOPIC, topic)["cleanup.policy"].value == "delete,compact"
    assert alter(call, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)).error_code == 0
    configs = configs_of(call, TOPIC, topic)
    assert (configs["cleanup.policy"].value, configs["retention.ms"].config_source) == ("compact", 5)
    assert alter(call, TOPIC, topic, ("retention.ms", APPEND, "7")).error_code == ErrorCode.INVALID_CONFIG
    assert alter(call, TOPIC, topic, ("retention.ms", SET, None)).error_code == ErrorCode.INVALID_REQUEST
    assert alter(call, TOPIC, "missing", ("retention.ms", SET, "7")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_refused_change_changes_nothing(call: Calls, topic: str) -> None:
    call.create(topic)
    refused = alter(call, TOPIC, topic, ("retention.ms", SET, "7"), ("retention.bytes", SET, "much"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert configs_of(call, TOPIC, topic)["retention.ms"].config_source == 5


def test_a_changed_config_applies_at_once(call: Calls, topic: str) -> None:
    call.create(topic)
    assert call.produce(topic, batch(bytes(600)))[0].error_code == 0
    alter(call, TOPIC, topic, ("max.message.bytes", SET, "500"))
    assert call.produce(topic, batch(bytes(600)))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_the_older_call_replaces_all(call: Calls, topic: str) -> None:
    call.create(topic, retention_ms="5")
    request = messages.AlterConfigsRequest
    configs = [request.AlterableConfig(name="segment.ms", value="77")]
    asked = request(resources=[request.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=configs)])
    assert call(asked, 2).responses[0].error_code == 0
    described = configs_of(call, TOPIC, topic)
    assert (described["segment.ms"].value, described["retention.ms"].config_source) == ("77", 5)


def test_broker_configs_are_the_topics_defaults(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path)) as broker:
        call = Calls(broker)
        call.create("t")
        assert alter(call, BROKER, "1", ("message.max.bytes", SET, "500")).error_code == 0
        assert call.produce("t", batch(bytes(600)))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert configs_of(call, TOPIC, "t")["max.message.bytes"].config_source == 2
        assert alter(call, BROKER, "1", ("node.id", SET, "9")).error_code == ErrorCode.INVALID_REQUEST
        assert alter(call, BROKER, "2", ("message.max.bytes", SET, "9")).error_code == ErrorCode.INVALID_REQUEST
    with start_embedded(str(tmp_path)) as broker:
        assert configs_of(Calls(broker), BROKER, "1")["message.max.bytes"].value == "500"


def test_log_dirs_tell_sizes(call: Calls, topic: str) -> None:
    call.create(topic, 2)
    call.produce(topic, batch(bytes(1000)))
    request = messages.DescribeLogDirsRequest
    asked = request(topics=[request.DescribableLogDirTopic(topic=topic, partitions=[0, 1])])
    (result,) = call(asked, 4).results
    assert [(p.partition_index, p.partition_size > 1000) for p in result.topics[0].partitions] == [(0, True), (1, False)]
    assert result.total_bytes > result.usable_bytes > 0


def test_producers_of_a_partition_are_described(call: Calls, topic: str) -> None:
    call.create(topic)
    producer = call(messages.InitProducerIdRequest(transactional_id=None), 4)
    call.produce(topic, batch(b"a", b"b", producer_id=producer.producer_id, producer_epoch=0, base_sequence=0))
    request = messages.DescribeProducersRequest
    asked = request(topics=[request.TopicRequest(name=topic, partition_indexes=[0, 9])])
    first, missing = call(asked, 0).topics[0].partitions
    (state,) = first.active_producers
    assert (state.producer_id, state.last_sequence, state.current_txn_start_offset) == (producer.producer_id, 1, -1)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_one_broker_answers_to_questions_for_many(call: Calls, topic: str) -> None:
    call.create(topic)
    request = messages.ElectLeadersRequest
    asked = request(election_type=0, topic_partitions=[request.TopicPartitions(topic=topic, partitions=[0, 9])])
    (result,) = call(asked, 2).replica_election_results
    codes = [each.error_code for each in result.partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert call(messages.ListPartitionReassignmentsRequest(), 0).topics == []
    resources = call(messages.ListConfigResourcesRequest(resource_types=[2, 4]), 1).config_resources
    assert {(TOPIC, topic), (BROKER, "1")} <= {(each.resource_type, each.resource_name) for each in resources}


def test_an_empty_list_is_a_value(call: Calls, topic: str) -> None:
    call.create(topic)
    assert alter(call, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert configs_of(call, TOPIC, topic)["cleanup.policy"].value == ""


def test_a_new_cluster_fixes_min_insync_replicas_as_its_default(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path)) as broker:
        call = Calls(broker)
        call.create("t")
        found = configs_of(call, TOPIC, "t")["min.insync.replicas"]
        assert (found.value, found.config_source) == ("1", 3)
        assert alter(call, BROKER, "", ("min.insync.replicas", DELETE, None)).error_code == 0
    with start_embedded(str(tmp_path)) as broker:
        assert configs_of(Calls(broker), TOPIC, "t")["min.insync.replicas"].config_source == 5
