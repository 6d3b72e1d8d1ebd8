"""What an operator asks of a cluster beyond topics and groups: settings with their sources, transactions, offsets of groups.

Functions over an `Admin`, for a logflume broker or an Apache Kafka cluster. Each blocks; raises KafkaError where the broker
refuses and TransportError where it is not reached.

    from logflume.log import connect, operations
    with connect("localhost:9092") as log:
        for entry in operations.describe_configs(log.admin(), "topic", "flights"):
            print(entry.name, entry.value, entry.source)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidInput, UnknownName
from .interfaces import Admin
from .protocol import ErrorCode, KafkaError, messages
from .records import TopicPartition

RESOURCES = {"topic": 2, "broker": 4, "client-metrics": 16, "group": 32}
CLUSTER = "cluster"
"""Named instead of a broker: the dynamic defaults of all brokers."""
SOURCES = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default",
    4: "static broker",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
TYPES = {1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list", 8: "class", 9: "password"}
DEFAULT_SOURCE = "default"
FENCE_TIMEOUT_S, FENCE_PAUSE_S = 30.0, 0.05
_SET, _DELETE, _TRANSACTION = 0, 1, 1
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting. `value`: None if it is not set or secret; `synonyms`: (name, value, source) of all found, winner first."""

    name: str
    value: str | None
    source: str
    type: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str
    synonyms: tuple[tuple[str, str | None, str], ...]


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """Where a share group is in a partition: everything below `start_offset` is done with. `lag_records`: -1 if unknown."""

    start_offset: int
    lag_records: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id that a coordinator remembers."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id in detail. `start_ms` is -1 when no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition: nothing from `start_offset` on is visible to read_committed readers."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


def describe_configs(admin: Admin, resource: str, name: str, *, names: Sequence[str] | None = None) -> list[ConfigEntry]:
    """Return the settings of a topic, broker, group or client-metrics subscription, sorted by name.

    Args:
        name: of the resource; of a broker its id, `cluster` for the defaults of all brokers.
        names: only these settings; None: all.
    """
    request = messages.DescribeConfigsRequest
    asked = request.DescribeConfigsResource(
        resource_type=_resource_type(resource),
        resource_name=_resource_name(resource, name),
        configuration_keys=None if names is None else list(names),
    )
    node = _node(resource, name)
    response = admin.request("DescribeConfigs", node=node, resources=[asked], include_synonyms=True, include_documentation=True)
    (result,) = response.results
    _check(result.error_code, result.error_message)
    return sorted(map(_entry, result.configs), key=lambda entry: entry.name)


def alter_configs(admin: Admin, resource: str, name: str, changes: Mapping[str, str | None], *, is_dry_run: bool = False) -> None:
    """Set settings of a resource (None: back to what lies behind); the others stay. `is_dry_run`: only check.

    Raises KafkaError: INVALID_CONFIG, INVALID_REQUEST; then nothing was changed.
    """
    request = messages.IncrementalAlterConfigsRequest
    configs = [
        request.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    asked = request.AlterConfigsResource(
        resource_type=_resource_type(resource), resource_name=_resource_name(resource, name), configs=configs
    )
    response = admin.request("IncrementalAlterConfigs", node=_node(resource, name), resources=[asked], validate_only=is_dry_run)
    _check(response.responses[0].error_code, response.responses[0].error_message)


def broker_ids(admin: Admin) -> list[int]:
    """Return the ids of the brokers, sorted."""
    return sorted(broker.node_id for broker in admin.request("Metadata", topics=[]).brokers)


def list_transactions(
    admin: Admin, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), longer_than_ms: int = -1
) -> list[TransactionListing]:
    """Return transactional ids of all coordinators, sorted; only those in these states, of these producers, open for longer."""
    found = []
    for node in broker_ids(admin):
        response = admin.request(
            "ListTransactions",
            node=node,
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
        )
        _check(response.error_code, None)
        if response.unknown_state_filters:
            raise InvalidInput(f"no such transaction state: {', '.join(response.unknown_state_filters)}")
        found += [TransactionListing(t.transactional_id, t.producer_id, t.transaction_state) for t in response.transaction_states]
    return sorted(found, key=lambda each: each.transactional_id)


def describe_transaction(admin: Admin, transactional_id: str) -> TransactionDescription:
    """Return a transactional id in detail. Raises UnknownName with near matches."""
    response = admin.request(
        "DescribeTransactions", node=_coordinator(admin, transactional_id), transactional_ids=[transactional_id]
    )
    (state,) = response.transaction_states
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise UnknownName("transactional id", transactional_id, [each.transactional_id for each in list_transactions(admin)])
    _check(state.error_code, None)
    return TransactionDescription(
        transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_state in _OPEN else -1,
        tuple(TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions),
    )


def fence(admin: Admin, transactional_id: str) -> None:
    """Abort what the producer of a transactional id has open, and refuse it from now on (InitProducerId with its id).

    Returns when the transaction has ended; raises KafkaError CONCURRENT_TRANSACTIONS if that takes longer than 30 s.
    """
    describe_transaction(admin, transactional_id)
    node = _coordinator(admin, transactional_id)
    deadline_s = time.monotonic() + FENCE_TIMEOUT_S
    while True:
        response = admin.request("InitProducerId", node=node, transactional_id=transactional_id, transaction_timeout_ms=60_000)
        is_ending = response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        if not is_ending or time.monotonic() > deadline_s:
            _check(response.error_code, "the transaction before is still being ended; try again" if is_ending else None)
            return
        time.sleep(FENCE_PAUSE_S)


def open_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Return the transactions that are open in these partitions, by their start."""
    found = []
    for node, own in _by_leader(admin, partitions).items():
        request = messages.DescribeProducersRequest
        topics = [request.TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in own.items()]
        response = admin.request("DescribeProducers", node=node, topics=topics)
        for topic in response.topics:
            for partition in topic.partitions:
                _check(partition.error_code, partition.error_message, topic=topic.name, partition=partition.partition_index)
                found += [
                    OpenTransaction(
                        TopicPartition(topic.name, partition.partition_index),
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.current_txn_start_offset,
                        producer.last_timestamp,
                    )
                    for producer in partition.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
    return sorted(found, key=lambda each: (each.partition, each.start_offset))


def hanging_transactions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Return open transactions that no coordinator knows in their partition: only `abort_hanging` ends them (KIP-664)."""
    opened = open_transactions(admin, partitions)
    producer_ids = sorted({each.producer_id for each in opened})
    known: set[tuple[int, TopicPartition]] = set()
    for listing in list_transactions(admin, producer_ids=producer_ids) if producer_ids else []:
        if listing.state in _OPEN:
            described = describe_transaction(admin, listing.transactional_id)
            known |= {(listing.producer_id, partition) for partition in described.partitions}
    return [each for each in opened if (each.producer_id, each.partition) not in known]


def abort_hanging(admin: Admin, hanging: OpenTransaction) -> None:
    """Write the abort marker of a hanging transaction to its partition."""
    request = messages.WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(name=hanging.partition.topic, partition_indexes=[hanging.partition.partition])
    marker = request.WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(0, hanging.coordinator_epoch),
    )
    (node,) = _by_leader(admin, [hanging.partition])
    response = admin.request("WriteTxnMarkers", node=node, markers=[marker])
    error = response.markers[0].topics[0].partitions[0].error_code
    _check(error, None, topic=hanging.partition.topic, partition=hanging.partition.partition)


def delete_group_offsets(admin: Admin, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    """Forget a group's committed offsets of partitions that none of its members reads. Raises KafkaError."""
    request = messages.OffsetDeleteRequest
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    topics = [
        request.OffsetDeleteRequestTopic(
            name=topic, partitions=[request.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for topic, indexes in by_topic.items()
    ]
    response = admin.request("OffsetDelete", node=_coordinator(admin, group_id, kind=0), group_id=group_id, topics=topics)
    _check(response.error_code, f"group {group_id!r}")
    for answer in response.topics:
        for partition in answer.partitions:
            _check(partition.error_code, f"group {group_id!r}", topic=answer.name, partition=partition.partition_index)


def share_group_offsets(admin: Admin, group_id: str) -> dict[TopicPartition, ShareOffset]:
    """Return where a share group is in every partition that it has read (KIP-932); nothing for a group of another kind.

    Raises KafkaError, also UNSUPPORTED_VERSION: the broker knows no share groups.
    """
    asked = messages.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
    node = _coordinator(admin, group_id, kind=0)
    (group,) = admin.request("DescribeShareGroupOffsets", node=node, groups=[asked]).groups
    _check(group.error_code, f"group {group_id!r}")
    found: dict[TopicPartition, ShareOffset] = {}
    for topic in group.topics:
        for each in topic.partitions:
            _check(each.error_code, f"group {group_id!r}", topic=topic.topic_name, partition=each.partition_index)
            if each.start_offset >= 0:
                found[TopicPartition(topic.topic_name, each.partition_index)] = ShareOffset(each.start_offset, each.lag)
    return found


def set_share_group_offsets(admin: Admin, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a share group without members go on at these offsets; what was known of records behind them is forgotten.

    Raises KafkaError.
    """
    request = messages.AlterShareGroupOffsetsRequest
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), offset in offsets.items():
        partition = request.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        by_topic.setdefault(topic, []).append(partition)
    topics = [request.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=each) for name, each in by_topic.items()]
    response = admin.request(
        "AlterShareGroupOffsets", node=_coordinator(admin, group_id, kind=0), group_id=group_id, topics=topics
    )
    _check(response.error_code, response.error_message or f"group {group_id!r}")
    for answer in response.responses:
        for partition in answer.partitions:
            _check(partition.error_code, f"group {group_id!r}", topic=answer.topic_name, partition=partition.partition_index)


def _entry(config: Any) -> ConfigEntry:
    source = SOURCES.get(config.config_source, str(config.config_source))
    return ConfigEntry(
        config.name,
        config.value,
        source,
        TYPES.get(config.config_type, ""),
        config.read_only,
        config.is_sensitive,
        config.documentation or "",
        tuple((each.name, each.value, SOURCES.get(each.source, str(each.source))) for each in config.synonyms),
    )


def _resource_type(resource: str) -> int:
    if resource not in RESOURCES:
        raise UnknownName("resource", resource, RESOURCES)
    return RESOURCES[resource]


def _resource_name(resource: str, name: str) -> str:
    return "" if resource == "broker" and name == CLUSTER else name


def _node(resource: str, name: str) -> int | None:
    """Return the broker that has to be asked: a broker's own settings are known to it alone."""
    if resource != "broker" or name == CLUSTER:
        return None
    if not name.isdecimal():
        raise InvalidInput(f"expected the id of a broker or {CLUSTER!r}, found {name!r}")
    return int(name)


def _coordinator(admin: Admin, key: str, *, kind: int = _TRANSACTION) -> int:
    response = admin.request("FindCoordinator", 3, key=key, key_type=kind)
    _check(response.error_code, response.error_message)
    return int(response.node_id)


def _by_leader(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[int, dict[str, list[int]]]:
    """Return the partitions as leader -> topic -> indexes. Raises KafkaError for one that is not there."""
    wanted = sorted(set(partitions))
    asked = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in dict.fromkeys(topic for topic, _ in wanted)]
    response = admin.request("Metadata", topics=asked, allow_auto_topic_creation=False)
    leaders: dict[TopicPartition, int] = {}
    for topic in response.topics:
        _check(topic.error_code, None, topic=topic.name)
        leaders |= {TopicPartition(topic.name, each.partition_index): each.leader_id for each in topic.partitions}
    found: dict[int, dict[str, list[int]]] = {}
    for partition in wanted:
        if partition not in leaders:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=partition.topic, partition=partition.partition)
        found.setdefault(leaders[partition], {}).setdefault(partition.topic, []).append(partition.partition)
    return found


def _check(code: int, message: str | None, **where: Any) -> None:
    if code:
        raise KafkaError(code, message, **where)
