"""Features, and the APIs about several nodes as the only one answers them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.protocol import ErrorCode, messages

from ._simulated_broker import SimulatedBroker

Features = messages.UpdateFeaturesRequest
UPGRADE, SAFE_DOWNGRADE = 1, 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SimulatedBroker]:
    made = SimulatedBroker(tmp_path)
    made.create("t", 2)
    yield made
    made.close()


def update(broker: SimulatedBroker, *updates: tuple[str, int, int], version: int = 1, **fields: Any) -> Any:
    changes = [Features.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how) for name, level, how in updates]
    return broker.call(Features(feature_updates=changes, **fields), version)


def finalized(broker: SimulatedBroker) -> tuple[int, dict[str, int]]:
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    answer = broker.call(request, 3)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return answer.finalized_features_epoch, levels


def test_features_are_lowered_raised_and_last(broker: SimulatedBroker) -> None:
    epoch, levels = finalized(broker)
    assert (epoch, levels["group.version"], levels["transaction.version"]) == (0, 1, 2)
    assert update(broker, ("transaction.version", 1, SAFE_DOWNGRADE), ("group.version", 0, SAFE_DOWNGRADE)).error_code == 0
    broker.power_cut(random.Random(2))
    epoch, levels = finalized(broker)
    assert (epoch, levels.get("group.version"), levels["transaction.version"]) == (1, None, 1)
    assert update(broker, ("transaction.version", 2, UPGRADE), version=2).error_code == 0
    assert finalized(broker)[0] == 2
    assert update(broker, ("transaction.version", 2, UPGRADE)).error_code == 0
    assert finalized(broker)[0] == 2, "nothing changed"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("no.such.feature", 1, UPGRADE), "knows"),
        (("transaction.version", 3, UPGRADE), "0-2"),
        (("transaction.version", -1, SAFE_DOWNGRADE), "less than 0"),
        (("transaction.version", 1, UPGRADE), "downgrade"),
        (("transaction.version", 1, 7), "Upgrade type 7"),
    ],
)
def test_an_update_that_cannot_be_changes_nothing(broker: SimulatedBroker, wrong: Any, text: str) -> None:
    answer = update(broker, ("group.version", 0, SAFE_DOWNGRADE), wrong)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert text in answer.error_message
    assert {each.error_code for each in answer.results} == {ErrorCode.INVALID_UPDATE_VERSION}
    assert finalized(broker)[1]["group.version"] == 1


def test_a_dry_run_and_the_oldest_version(broker: SimulatedBroker) -> None:
    assert update(broker, ("group.version", 0, SAFE_DOWNGRADE), validate_only=True).error_code == 0
    assert finalized(broker)[1]["group.version"] == 1
    older = Features.FeatureUpdateKey(feature="group.version", max_version_level=0, allow_downgrade=True)
    assert broker.call(Features(feature_updates=[older]), 0).error_code == 0
    assert "group.version" not in finalized(broker)[1]


def test_the_apis_of_a_feature_that_is_off_are_refused(broker: SimulatedBroker) -> None:
    coordinators = Coordinators(broker.core)
    broker.handlers = Handlers(broker.core, coordinators=coordinators.handlers())
    update(broker, ("group.version", 0, SAFE_DOWNGRADE))
    beat = messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=["t"])
    assert broker.call(beat, 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    described = broker.call(messages.ConsumerGroupDescribeRequest(group_ids=["g", "h"]), 0).groups
    assert [(each.group_id, each.error_code) for each in described] == [("g", 35), ("h", 35)]
    update(broker, ("group.version", 1, UPGRADE))
    assert broker.call(messages.ConsumerGroupDescribeRequest(group_ids=["g"]), 0).groups[0].error_code == 69
    coordinators.close()


def test_the_quorum_is_this_node(broker: SimulatedBroker) -> None:
    describe = messages.DescribeQuorumRequest
    partitions = [describe.PartitionData(partition_index=0), describe.PartitionData(partition_index=1)]
    answer = broker.call(describe(topics=[describe.TopicData(topic_name="__cluster_metadata", partitions=partitions)]), 2)
    known, unknown = answer.topics[0].partitions
    node = broker.core.node_id
    assert (known.error_code, known.leader_id, [voter.replica_id for voter in known.current_voters]) == (0, node, [node])
    assert known.observers == []
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each.node_id for each in answer.nodes] == [node]


def test_partitions_stay_where_they_are(broker: SimulatedBroker) -> None:
    alter = messages.AlterPartitionReassignmentsRequest
    wanted = {0: [broker.core.node_id], 1: [1, 2], 5: [broker.core.node_id]}
    partitions = [alter.ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in wanted.items()]
    partitions.append(alter.ReassignablePartition(partition_index=0, replicas=None))
    answer = broker.call(alter(topics=[alter.ReassignableTopic(name="t", partitions=partitions)]), 1)
    assert [each.error_code for each in answer.responses[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ]
    move = messages.AlterReplicaLogDirsRequest
    topic = move.AlterReplicaLogDirTopic(name="t", partitions=[0, 9])
    dirs = [move.AlterReplicaLogDir(path=path, topics=[topic]) for path in (broker.core.data_dir.path, "/elsewhere")]
    moved = broker.call(move(dirs=dirs), 2).results
    assert [[each.error_code for each in result.partitions] for result in moved] == [
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.LOG_DIR_NOT_FOUND] * 2,
    ]


def test_nodes_cannot_come_or_go(broker: SimulatedBroker) -> None:
    own = broker.call(messages.UnregisterBrokerRequest(broker_id=broker.core.node_id), 0)
    assert own.error_code == ErrorCode.INVALID_REQUEST
    assert broker.call(messages.UnregisterBrokerRequest(broker_id=99), 0).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    add = messages.AddRaftVoterRequest
    assert broker.call(add(cluster_id=broker.core.cluster_id), 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert broker.call(add(cluster_id="another"), 1).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert broker.call(messages.RemoveRaftVoterRequest(cluster_id=None), 0).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("api", ["Create", "Renew", "Expire", "Describe"])
def test_delegation_tokens_need_a_client_that_logged_in(broker: SimulatedBroker, api: str) -> None:
    request = getattr(messages, f"{api}DelegationTokenRequest")()
    assert broker.call(request, 2).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
