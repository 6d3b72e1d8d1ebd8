"""Internal topics are changed by their owner only: each API that changes a topic, asked by each kind of client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.access import OWNER
from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import ANONYMOUS, RequestContext
from logflume.log.protocol import ErrorCode, messages

from ._simulated_broker import SimulatedBroker, make_topic
from ._wire import batch, create_topic_request, produce_request

BROKERS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
SERVICES = ("_logflume-sql-commands", "_logflume-anything")
ACLS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:root"}
TOPIC = 2
Ask = Callable[..., int]


def produce(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    return produce_request(name, batch(b"v")), 9, lambda r: r.responses[0].partition_responses[0].error_code


def delete_records(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.DeleteRecordsRequest
    topic = request.DeleteRecordsTopic(name=name, partitions=[request.DeleteRecordsPartition(partition_index=0, offset=0)])
    return request(topics=[topic]), 2, lambda r: r.topics[0].partitions[0].error_code


def delete_topic(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    topic = messages.DeleteTopicsRequest.DeleteTopicState(name=name)
    return messages.DeleteTopicsRequest(topics=[topic]), 6, lambda r: r.responses[0].error_code


def create_partitions(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    topic = messages.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=60, assignments=None)
    return messages.CreatePartitionsRequest(topics=[topic]), 3, lambda r: r.results[0].error_code


def alter(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.AlterConfigsRequest
    config = request.AlterableConfig(name="retention.ms", value="1")
    resource = request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    return request(resources=[resource]), 2, lambda r: r.responses[0].error_code


def alter_incrementally(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    request = messages.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name="cleanup.policy", config_operation=0, value="delete")
    resource = request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    return request(resources=[resource]), 1, lambda r: r.responses[0].error_code


CHANGES = (produce, delete_records, create_partitions, alter, alter_incrementally, delete_topic)


def make_broker(path: Path, **configs: str) -> tuple[SimulatedBroker, Ask]:
    """A broker with its internal topics, and a function that asks it as a principal and returns the error code."""
    broker = SimulatedBroker(path, configs=configs)
    for name in BROKERS:
        make_topic(broker.core, name, 8, {"cleanup.policy": "compact,delete"})

    def ask(change: Callable[[str], tuple[Any, int, Callable[[Any], int]]], name: str, principal: str) -> int:
        message, version, error_of = change(name)
        context = RequestContext(message.api_key, version, 1, "test", "10.0.0.1", 1, principal)
        outcome = broker.handlers.handle(context, message)
        return error_of(outcome.value if isinstance(outcome, Reply) else outcome)

    return broker, ask


def create(name: str) -> tuple[Any, int, Callable[[Any], int]]:
    return create_topic_request(name, 8), 7, lambda r: r.topics[0].error_code


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_nobody_but_the_broker_changes_its_topics(tmp_path: Path, change: Any) -> None:
    broker, ask = make_broker(tmp_path)
    for name in BROKERS:
        for principal in (ANONYMOUS, OWNER):
            assert ask(change, name, principal) == ErrorCode.INVALID_TOPIC_EXCEPTION, (name, principal)
        assert broker.core.cluster.topics[name].partition_count == 8
        assert broker.values(name, 0) == []


@pytest.mark.parametrize("name", BROKERS)
def test_nobody_makes_the_broker_s_topics_in_its_place(tmp_path: Path, name: str) -> None:
    broker = SimulatedBroker(tmp_path)
    assert broker.create(name, 1, cleanup_policy="delete").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name=name)])
    assert broker.call(asked, 8).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert name not in broker.core.cluster.topics


@pytest.mark.parametrize("name", SERVICES)
def test_topics_of_services_are_changed_by_the_owner_of_the_data(tmp_path: Path, name: str) -> None:
    broker, ask = make_broker(tmp_path)
    assert ask(create, name, ANONYMOUS) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    asked = messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name=name)])
    assert broker.call(asked, 8).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(create, name, OWNER) == 0
    for change in CHANGES:
        assert ask(change, name, ANONYMOUS) == ErrorCode.TOPIC_AUTHORIZATION_FAILED, change
    assert broker.values(name, 0) == []
    for change in CHANGES:
        assert ask(change, name, OWNER) == 0, change


def test_with_acls_who_may_alter_the_cluster_is_a_service(tmp_path: Path) -> None:
    broker, ask = make_broker(tmp_path, **ACLS)
    acl = messages.CreateAclsRequest.AclCreation
    rights = [
        acl(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=3,
            principal=who,
            host="*",
            operation=2,
            permission_type=3,
        )
        for who, kind, name in (("User:app", 2, "*"), ("User:sql", 2, "*"), ("User:sql", 4, "kafka-cluster"))
    ]
    context = RequestContext(messages.CreateAclsRequest.api_key, 3, 1, "test", "10.0.0.1", 1, "User:root")
    answer = broker.handlers.handle(context, messages.CreateAclsRequest(creations=rights))
    assert [each.error_code for each in answer.results] == [0, 0, 0]
    for principal, expected in (("User:app", ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("User:sql", 0), ("User:root", 0)):
        name = f"_logflume-{principal.removeprefix('User:')}"
        assert ask(create, name, principal) == expected
        if expected:
            assert ask(create, name, OWNER) == 0
        for change in CHANGES:
            assert ask(change, name, principal) == expected, (principal, change)
        for change in CHANGES:
            assert ask(change, BROKERS[0], principal) == ErrorCode.INVALID_TOPIC_EXCEPTION, (principal, change)


@pytest.mark.parametrize(("name", "is_made"), [("g-store-changelog", True), ("_logflume-sql-commands", False)])
def test_a_streams_group_does_not_make_internal_topics(tmp_path: Path, name: str, is_made: bool) -> None:
    broker, _ = make_broker(tmp_path)
    coordinators = Coordinators(broker.core)
    handlers = Handlers(broker.core, coordinators=coordinators.handlers())
    broker.create("in", 2)
    request = messages.StreamsGroupHeartbeatRequest
    part = request.Subtopology(
        subtopology_id="0",
        source_topics=["in"],
        source_topic_regex=[],
        state_changelog_topics=[request.TopicInfo(name=name, topic_configs=[])],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    beat = request(
        group_id="g",
        member_id="m" * 22,
        member_epoch=0,
        rebalance_timeout_ms=1000,
        topology=request.Topology(epoch=0, subtopologies=[part]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
        client_tags=[],
    )
    handlers.handle(RequestContext(request.api_key, 0, 1, "test", "10.0.0.1", 1), beat)
    assert (name in broker.core.cluster.topics) == is_made
    coordinators.close()
