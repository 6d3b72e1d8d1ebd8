"""Every API against ACLs: which rights each needs on which resource, by the rules of Apache Kafka.

One table. For each row: with exactly these rights nothing is refused; without any one of them the refusal names its resource.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.access import CLUSTER_NAME, Operation, Pattern, Permission, Resource
from logflume.log.broker.access.acls import Acl
from logflume.log.broker.access.words import SUPPORTED
from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import ErrorCode, KafkaError, messages, tables
from logflume.log.protocol.tables import Field, Message, Struct

from ._simulated_broker import SimulatedBroker
from ._wire import batch, create_topic_request

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:root"}
TRANSACTIONAL_BATCH = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
OPEN_SHARE_SESSION = {
    "share_session_epoch": 0,
    "topics": {"partitions": {"acknowledgement_batches": []}},
    "forgotten_topics_data": [],
    "max_records": 1,
}
NO_TASKS = dict.fromkeys(("active_tasks", "standby_tasks", "warmup_tasks", "task_offsets", "task_end_offsets", "client_tags"))
ONE_SOURCE = {
    "source_topic_regex": [],
    "state_changelog_topics": [],
    "repartition_sink_topics": [],
    "repartition_source_topics": [],
    "copartition_groups": [],
}
DRY_TOPIC = {"validate_only": True, "topics": {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}}
REFUSALS = {resource.refusal for resource in SUPPORTED}
TOPIC, GROUP, TXN, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID, Resource.CLUSTER
OP = Operation
Right = tuple[Operation, Resource]


@dataclass(frozen=True)
class Case:
    """An API with the rights that it needs.

    `refusal`: of all of them, where it is not that of the resource. `prepared`: what a super user asks for before it.
    """

    api: str
    rights: tuple[Right, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    versions: tuple[int, ...] | None = None
    refusal: ErrorCode | None = None
    label: str = ""
    topic: str = "t"
    prepared: tuple[tuple[str, dict[str, Any]], ...] = ()


def case(api: str, *rights: Right, **options: Any) -> Case:
    return Case(api, rights, **options)


def resource_fields(resource_type: int, name: str | None) -> dict[str, Any]:
    """A resource whose configs are asked for; without a name it is the group of the case."""
    return {"resources": {"resource_type": resource_type} | ({} if name is None else {"resource_name": name})}


CASES = [
    case("Produce", (OP.WRITE, TOPIC), fields={"transactional_id": None, "acks": -1}),
    case(
        "Produce",
        (OP.WRITE, TXN),
        (OP.WRITE, TOPIC),
        fields={"acks": -1, "topic_data": {"partition_data": {"records": TRANSACTIONAL_BATCH}}},
        label="transactional",
    ),
    case("Fetch", (OP.READ, TOPIC)),
    case(
        "Fetch",
        (OP.CLUSTER_ACTION, CLUSTER),
        fields={"replica_id": 5},
        versions=(12,),
        refusal=TOPIC.refusal,
        label="replica",
    ),
    case("ListOffsets", (OP.DESCRIBE, TOPIC)),
    case("Metadata", (OP.DESCRIBE, TOPIC)),
    case("OffsetCommit", (OP.READ, GROUP), (OP.READ, TOPIC)),
    case("OffsetFetch", (OP.DESCRIBE, GROUP), (OP.DESCRIBE, TOPIC), versions=(1, 7, 8, 10)),
    case("FindCoordinator", (OP.DESCRIBE, GROUP), fields={"key_type": 0}, label="group"),
    case("FindCoordinator", (OP.DESCRIBE, TXN), fields={"key_type": 1}, versions=(1, 6), label="transaction"),
    case("FindCoordinator", (OP.CLUSTER_ACTION, CLUSTER), fields={"key_type": 2}, versions=(6,), label="share"),
    case("JoinGroup", (OP.READ, GROUP)),
    case("SyncGroup", (OP.READ, GROUP)),
    case("Heartbeat", (OP.READ, GROUP)),
    case("LeaveGroup", (OP.READ, GROUP)),
    case("DescribeGroups", (OP.DESCRIBE, GROUP)),
    case("DeleteGroups", (OP.DELETE, GROUP)),
    case("OffsetDelete", (OP.DELETE, GROUP), (OP.READ, TOPIC)),
    case("CreateTopics", (OP.CREATE, TOPIC), (OP.DESCRIBE_CONFIGS, TOPIC), fields=DRY_TOPIC, topic="new"),
    case(
        "CreateTopics",
        (OP.CREATE, CLUSTER),
        (OP.DESCRIBE_CONFIGS, TOPIC),
        fields=DRY_TOPIC,
        topic="new",
        refusal=TOPIC.refusal,
        label="any topic",
    ),
    case("DeleteTopics", (OP.DELETE, TOPIC)),
    case("DeleteRecords", (OP.DELETE, TOPIC)),
    case("CreatePartitions", (OP.ALTER, TOPIC)),
    case("InitProducerId", (OP.WRITE, TXN)),
    case("InitProducerId", (OP.IDEMPOTENT_WRITE, CLUSTER), fields={"transactional_id": None}, label="idempotent"),
    case(
        "InitProducerId",
        (OP.WRITE, TOPIC),
        fields={"transactional_id": None},
        refusal=CLUSTER.refusal,
        label="some topic",
    ),
    case("OffsetForLeaderEpoch", (OP.DESCRIBE, TOPIC)),
    case("OffsetForLeaderEpoch", (OP.CLUSTER_ACTION, CLUSTER), refusal=TOPIC.refusal, label="replica"),
    case("AddPartitionsToTxn", (OP.WRITE, TXN), (OP.WRITE, TOPIC), versions=(0, 3)),
    case("AddPartitionsToTxn", (OP.CLUSTER_ACTION, CLUSTER), versions=(4, 5), label="broker"),
    case("AddOffsetsToTxn", (OP.WRITE, TXN), (OP.READ, GROUP)),
    case("EndTxn", (OP.WRITE, TXN)),
    case("TxnOffsetCommit", (OP.WRITE, TXN), (OP.READ, GROUP), (OP.READ, TOPIC)),
    case("WriteTxnMarkers", (OP.ALTER, CLUSTER)),
    case("WriteTxnMarkers", (OP.CLUSTER_ACTION, CLUSTER), label="broker"),
    case("DescribeProducers", (OP.READ, TOPIC)),
    case("DescribeTransactions", (OP.DESCRIBE, TXN)),
    *(
        case(api, (operation, resource), fields=resource_fields(code, name), label=label)
        for api, operation in (
            ("DescribeConfigs", OP.DESCRIBE_CONFIGS),
            ("AlterConfigs", OP.ALTER_CONFIGS),
            ("IncrementalAlterConfigs", OP.ALTER_CONFIGS),
        )
        for code, name, resource, label in (
            (2, "t", TOPIC, "topic"),
            (4, "", CLUSTER, "broker"),
            (16, "sub", CLUSTER, "client metrics"),
            (32, None, GROUP, "group"),
        )
    ),
    case("DescribeTopicPartitions", (OP.DESCRIBE, TOPIC)),
    case("ConsumerGroupHeartbeat", (OP.READ, GROUP), (OP.DESCRIBE, TOPIC)),
    case("ConsumerGroupDescribe", (OP.DESCRIBE, GROUP)),
    case("ShareGroupHeartbeat", (OP.READ, GROUP), (OP.DESCRIBE, TOPIC)),
    case("ShareGroupDescribe", (OP.DESCRIBE, GROUP)),
    case("ShareFetch", (OP.READ, GROUP), (OP.READ, TOPIC), fields=OPEN_SHARE_SESSION),
    case(
        "ShareAcknowledge",
        (OP.READ, GROUP),
        (OP.READ, TOPIC),
        fields={"share_session_epoch": 1, "topics": {"partitions": {"acknowledgement_batches": {"acknowledge_types": [1]}}}},
        prepared=(("ShareFetch", OPEN_SHARE_SESSION),),
    ),
    case("DescribeShareGroupOffsets", (OP.DESCRIBE, GROUP), (OP.DESCRIBE, TOPIC)),
    case("AlterShareGroupOffsets", (OP.READ, GROUP), (OP.READ, TOPIC)),
    case("DeleteShareGroupOffsets", (OP.DELETE, GROUP), (OP.READ, TOPIC), prepared=(("AlterShareGroupOffsets", {}),)),
    case(
        "StreamsGroupHeartbeat",
        (OP.READ, GROUP),
        (OP.DESCRIBE, TOPIC),
        fields={"topology": {"subtopologies": ONE_SOURCE}} | NO_TASKS,
    ),
    case("StreamsGroupDescribe", (OP.DESCRIBE, GROUP)),
    *(
        case(api, (operation, CLUSTER))
        for api, operation in {
            "DescribeAcls": OP.DESCRIBE,
            "CreateAcls": OP.ALTER,
            "DeleteAcls": OP.ALTER,
            "AlterReplicaLogDirs": OP.ALTER,
            "DescribeLogDirs": OP.DESCRIBE,
            "ElectLeaders": OP.ALTER,
            "AlterPartitionReassignments": OP.ALTER,
            "ListPartitionReassignments": OP.DESCRIBE,
            "DescribeClientQuotas": OP.DESCRIBE_CONFIGS,
            "AlterClientQuotas": OP.ALTER_CONFIGS,
            "DescribeUserScramCredentials": OP.DESCRIBE,
            "AlterUserScramCredentials": OP.ALTER,
            "DescribeQuorum": OP.DESCRIBE,
            "UpdateFeatures": OP.ALTER,
            "UnregisterBroker": OP.ALTER,
            "ListConfigResources": OP.DESCRIBE_CONFIGS,
            "AddRaftVoter": OP.ALTER,
            "RemoveRaftVoter": OP.ALTER,
            "InitializeShareGroupState": OP.CLUSTER_ACTION,
            "ReadShareGroupState": OP.CLUSTER_ACTION,
            "WriteShareGroupState": OP.CLUSTER_ACTION,
            "DeleteShareGroupState": OP.CLUSTER_ACTION,
            "ReadShareGroupStateSummary": OP.CLUSTER_ACTION,
        }.items()
    ),
]

OPEN_TO_ALL = {
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
    "DescribeCluster",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
}
"""APIs that tell and change nothing that is protected."""
FILTERED = {"ListGroups", "ListTransactions"}
"""APIs that leave out what may not be seen; see the tests below."""


class GuardedBroker:
    """A broker with an authorizer, a topic, and a way to ask as any principal."""

    def __init__(self, path: Path) -> None:
        self.broker = SimulatedBroker(path, configs=AUTHORIZER)
        self.coordinators = Coordinators(self.broker.core)
        self.handlers = Handlers(
            self.broker.core, coordinators=self.coordinators.handlers(), admission=self.coordinators.transactions
        )
        self.topic_id = b""
        self._allowed: list[Acl] = []
        self.restore()

    def close(self) -> None:
        self.coordinators.close()
        self.broker.close()

    def restore(self) -> None:
        """Take back all rights; make the topic again if it was deleted."""
        self.allow()
        if "t" not in self.broker.core.cluster.topics:
            self.ask(create_topic_request("t"), 7, principal="User:root")
            self.topic_id = self.broker.core.cluster.topics["t"].topic_id

    def allow(self, *rights: tuple[Operation, Resource, str]) -> None:
        authorizer = self.broker.core.authorizer
        assert authorizer is not None
        authorizer.remove(self._allowed)
        self._allowed = [
            Acl(resource, name, Pattern.LITERAL, "User:ANONYMOUS", "*", operation, Permission.ALLOW)
            for operation, resource, name in dict.fromkeys(rights)
        ]
        authorizer.add(self._allowed)

    def ask(self, request: Any, version: int, *, principal: str = "User:ANONYMOUS") -> Any:
        """Return the response, None if it is still awaited."""
        outcome = self.handlers.handle(RequestContext(request.api_key, version, 1, "c", "10.0.0.1", 1, principal), request)
        if isinstance(outcome, Reply):
            self.broker.time.advance(1000)
            return outcome.value if outcome.is_done else None
        return outcome


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    made = GuardedBroker(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


class Filler:
    """Makes a request that names the topic, group and transactional id of a case wherever its fields ask for one."""

    def __init__(self, table: Message, version: int, topic_id: bytes, names: Mapping[Resource, str]) -> None:
        self._table, self._version, self._topic_id, self._names = table, version, topic_id, names
        self._top = messages.message_class(table.name)

    def request(self, fields: dict[str, Any]) -> Any:
        self._fields = fields
        return self._struct(self._table.top, self._top, fields)

    def _struct(self, struct: Struct, cls: Any, fields: dict[str, Any]) -> Any:
        made = cls()
        for each in struct.fields:
            if self._version in each.versions:
                self._fill(made, struct, each, fields)
        return made

    def _fill(self, made: Any, struct: Struct, each: Field, fields: dict[str, Any]) -> None:
        given = fields.get(each.name)
        if each.name in fields and not isinstance(given, dict):
            setattr(made, each.name, given)
        elif each.type_name in self._table.structs:
            if each.is_array or given is not None:
                cls = getattr(self._top, each.type_name)
                value = self._struct(self._table.structs[each.type_name], cls, given or {})
                setattr(made, each.name, [value] if each.is_array else value)
        else:
            value = self._value(struct, each)
            if value is not None:
                setattr(made, each.name, [value] if each.is_array else value)

    def _value(self, struct: Struct, each: Field) -> Any:
        name = each.name
        if each.type_name == "uuid" and name == "topic_id":
            return self._topic_id
        if each.type_name == "records":
            return batch(b"v")
        if name in ("topic", "topic_name", "topic_names", "subscribed_topic_names", "source_topics"):
            return self._names[TOPIC]
        if name == "name" and ("opic" in struct.name or self._table.name == "DescribeTopicPartitionsRequest"):
            return None if self._has_id(struct) else self._names[TOPIC]
        if name in ("group_id", "group_ids", "groups_names", "groups"):
            return self._names[GROUP]
        if name in ("key", "coordinator_keys"):
            return self._names[TXN if self._fields.get("key_type") == 1 else GROUP]
        if name == "resource_name":
            return self._names[GROUP]
        if "transactional_id" in name and each.type_name == "string" and not name.endswith("pattern"):
            return self._names[TXN]
        if name in ("partition_indexes", "partitions") and each.is_array:
            return 0
        if name == "count":
            return 5
        return "m" if name == "member_id" else None

    def _has_id(self, struct: Struct) -> bool:
        """Whether the structure names its topic by id: then the name stays empty."""
        return any(each.name == "topic_id" and self._version in each.versions for each in struct.fields)


def errors_in(value: Any) -> Iterator[int]:
    """Yield every error code of a response."""
    if isinstance(value, list):
        for each in value:
            yield from errors_in(each)
    elif hasattr(type(value), "__slots__") and not isinstance(value, bytes | str | int):
        for name in type(value).__slots__:
            current = getattr(value, name)
            if name.endswith("error_code") and isinstance(current, int):
                yield current
            else:
                yield from errors_in(current)


def refusals_of(response: Any) -> set[int]:
    return {error for error in errors_in(response) if error in REFUSALS}


def params() -> Iterator[Any]:
    known = tables.api_names()
    for each in CASES:
        if each.api not in known:
            continue
        versions = tables.api(known[each.api]).versions
        for version in each.versions or sorted({versions.first, versions.last}):
            yield pytest.param(each, version, id=f"{each.api}-{version}{'-' if each.label else ''}{each.label}")


def make(guarded: GuardedBroker, api: str, version: int, fields: dict[str, Any], names: Mapping[Resource, str]) -> Any:
    return Filler(tables.api_named(api).request, version, guarded.topic_id, names).request(fields)


@pytest.mark.parametrize(("each", "version"), params())
def test_each_right_is_needed_and_all_of_them_are_enough(guarded: GuardedBroker, each: Case, version: int) -> None:
    key = tables.api_names()[each.api]
    if not guarded.handlers.is_handled(key, version):
        assert key not in {known.api_key for known in guarded.handlers.api_versions.api_keys}
        return
    group = f"g-{each.api}-{version}-{each.label}"
    names = {TOPIC: each.topic, GROUP: group, TXN: "x", CLUSTER: CLUSTER_NAME}
    fields = {"principal": "User:a", "host": "*"} | each.fields

    def refusals(rights: Sequence[tuple[Operation, Resource, str]]) -> set[int]:
        guarded.allow(*rights)
        for api, own in each.prepared:
            last = tables.api_named(api).versions.last
            prepared = guarded.ask(make(guarded, api, last, own, names), last, principal="User:root")
            assert refusals_of(prepared) == set(), f"{api} did not prepare {each.api}"
        return refusals_of(guarded.ask(make(guarded, each.api, version, fields, names), version))

    needed = [(operation, resource, names[resource]) for operation, resource in each.rights]
    assert (each.refusal or each.rights[0][1].refusal) in refusals([]), "nothing is allowed"
    for missing in needed if len(needed) > 1 else ():
        expected = each.refusal or missing[1].refusal
        assert refusals([right for right in needed if right != missing]) == {expected}, f"without {missing}"
    assert refusals(needed) == set()
    guarded.restore()


def test_every_api_is_in_the_table(guarded: GuardedBroker) -> None:
    names = {tables.api(known.api_key).name for known in guarded.handlers.api_versions.api_keys}
    assert names - {each.api for each in CASES} - OPEN_TO_ALL - FILTERED == set()


@pytest.mark.parametrize("api", sorted(OPEN_TO_ALL))
def test_apis_that_are_open_to_all_refuse_nobody(guarded: GuardedBroker, api: str) -> None:
    table = tables.api_named(api)
    if not guarded.handlers.is_handled(table.key, table.versions.last):
        return
    guarded.allow()
    software = {"client_software_name": "x", "client_software_version": "1"}
    request = make(guarded, api, table.versions.last, software, {TOPIC: "t", GROUP: "g", TXN: "x"})
    assert refusals_of(guarded.ask(request, table.versions.last)) == set()


def metadata_request(*names: str, may_create: bool = False, **fields: Any) -> Any:
    request = messages.MetadataRequest
    return request(
        topics=[request.MetadataRequestTopic(name=name) for name in names] if names else None,
        allow_auto_topic_creation=may_create,
        **fields,
    )


def test_a_list_of_all_topics_leaves_out_those_that_may_not_be_seen(guarded: GuardedBroker) -> None:
    guarded.ask(create_topic_request("hidden"), 7, principal="User:root")
    guarded.allow((OP.DESCRIBE, TOPIC, "t"))
    assert [topic.name for topic in guarded.ask(metadata_request(), 12).topics] == ["t"]
    described = guarded.ask(messages.DescribeTopicPartitionsRequest(response_partition_limit=100), 0)
    assert [topic.name for topic in described.topics] == ["t"]
    guarded.restore()


def test_whether_a_topic_exists_is_not_told(guarded: GuardedBroker) -> None:
    guarded.restore()
    answers = guarded.ask(metadata_request("t", "no-such-topic"), 12).topics
    assert [(each.error_code, each.topic_id) for each in answers] == [(29, bytes(16))] * 2
    by_id = messages.MetadataRequest.MetadataRequestTopic(name=None, topic_id=guarded.topic_id)
    answer = guarded.ask(messages.MetadataRequest(topics=[by_id]), 12).topics[0]
    assert (answer.error_code, answer.name) == (29, None)


@pytest.mark.parametrize("right", [(OP.CREATE, TOPIC, "auto-topic"), (OP.CREATE, CLUSTER, CLUSTER_NAME)])
def test_a_topic_is_made_by_asking_for_it_only_with_the_right_to(guarded: GuardedBroker, right: Any) -> None:
    name = f"auto-{'topic' if right[1] is TOPIC else 'cluster'}"
    describe = (OP.DESCRIBE, TOPIC, name)
    guarded.allow(describe)
    assert guarded.ask(metadata_request(name, may_create=True), 12).topics[0].error_code == 29
    assert name not in guarded.broker.core.cluster.topics
    guarded.allow(describe, right)
    assert guarded.ask(metadata_request(name, may_create=True), 12).topics[0].error_code == 0
    guarded.restore()


def test_authorized_operations_are_those_that_are_allowed(guarded: GuardedBroker) -> None:
    asked = metadata_request("t", include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
    guarded.allow((OP.ALTER, TOPIC, "t"), (OP.WRITE, TOPIC, "t"))
    answer = guarded.ask(asked, 9)
    assert answer.topics[0].topic_authorized_operations == sum(1 << op for op in (OP.WRITE, OP.ALTER, OP.DESCRIBE))
    assert answer.cluster_authorized_operations == 0, "without the right to describe the cluster"
    guarded.allow((OP.ALTER, CLUSTER, CLUSTER_NAME), (OP.READ, GROUP, "g"))
    cluster = guarded.ask(messages.DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    assert cluster.cluster_authorized_operations == sum(1 << op for op in (OP.ALTER, OP.DESCRIBE))
    groups = guarded.ask(messages.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 5).groups
    assert groups[0].authorized_operations == sum(1 << op for op in (OP.READ, OP.DESCRIBE))
    everything = guarded.ask(asked, 9, principal="User:root")
    assert everything.topics[0].topic_authorized_operations == sum(1 << op for op in SUPPORTED[TOPIC])
    assert everything.cluster_authorized_operations == sum(1 << op for op in SUPPORTED[CLUSTER])
    guarded.restore()


def test_lists_of_groups_and_transactions_leave_out_what_may_not_be_seen(guarded: GuardedBroker) -> None:
    for group in ("seen", "unseen"):
        commit = messages.OffsetCommitRequest
        partition = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        topics = [commit.OffsetCommitRequestTopic(name="t", partitions=[partition])]
        request = commit(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
        guarded.ask(request, 8, principal="User:root")
        guarded.ask(messages.InitProducerIdRequest(transactional_id=group, transaction_timeout_ms=1000), 4, principal="User:root")
    guarded.allow((OP.DESCRIBE, GROUP, "seen"), (OP.WRITE, TXN, "seen"))

    def listed() -> tuple[set[str], set[str]]:
        groups = {each.group_id for each in guarded.ask(messages.ListGroupsRequest(), 5).groups}
        found = guarded.ask(messages.ListTransactionsRequest(), 1).transaction_states
        return groups & {"seen", "unseen"}, {each.transactional_id for each in found} & {"seen", "unseen"}

    assert listed() == ({"seen"}, {"seen"})
    guarded.allow((OP.DESCRIBE, CLUSTER, CLUSTER_NAME))
    assert listed() == ({"seen", "unseen"}, set()), "who may describe the cluster sees all groups"
    guarded.restore()


def test_without_an_authorizer_acls_are_answered_with_security_disabled(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path)
    create = messages.CreateAclsRequest(creations=[messages.CreateAclsRequest.AclCreation()])
    delete = messages.DeleteAclsRequest(filters=[messages.DeleteAclsRequest.DeleteAclsFilter()])
    assert broker.call(messages.DescribeAclsRequest(), 3).error_code == ErrorCode.SECURITY_DISABLED
    assert broker.call(create, 3).results[0].error_code == ErrorCode.SECURITY_DISABLED
    assert broker.call(delete, 3).filter_results[0].error_code == ErrorCode.SECURITY_DISABLED
    broker.close()


@pytest.mark.parametrize("wrong", ["admin", "User:", ":admin", "User:admin,User:other"])
def test_a_super_user_that_is_no_principal_stops_the_start(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(KafkaError, match="separated by semicolons"):
        SimulatedBroker(tmp_path, configs=AUTHORIZER | {"super.users": f"User:root;{wrong}"})


def test_a_distinguished_name_may_be_a_super_user(tmp_path: Path) -> None:
    broker = SimulatedBroker(tmp_path, configs=AUTHORIZER | {"super.users": "User:CN=admin,OU=ops;User:root"})
    assert broker.core.authorizer is not None
    assert broker.core.authorizer.rights("User:CN=admin,OU=ops", "10.0.0.1").allows(OP.READ, TOPIC, "t")
    broker.close()
