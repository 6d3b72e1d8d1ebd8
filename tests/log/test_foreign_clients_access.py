"""ACLs with confluent-kafka, kafka-python and aiokafka, against a broker whose clients are all User:ANONYMOUS."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, KafkaAdminClient, ResourcePattern, ResourcePatternFilter
from kafka.admin import ACLOperation as PyOperation
from kafka.admin import ACLPermissionType as PyPermission
from kafka.admin import ACLResourcePatternType as PyPattern
from kafka.admin import ResourceType as PyResource

from ._server_process import ServerProcess

CONFIGS = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
    "super.users=User:admin",
]
ANONYMOUS = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(str(tmp_path_factory.mktemp("guarded")), CONFIGS)
    yield process
    assert process.stop() == 0


@pytest.fixture
def rule(guarded: ServerProcess) -> Iterator[Callable[..., AclBinding]]:
    """Add rules for a test, and take all back at its end."""
    admin = AdminClient({"bootstrap.servers": guarded.address})

    def add(resource: ResourceType, name: str, operation: AclOperation, *, deny: bool = False, prefixed: bool = False) -> Any:
        binding = AclBinding(
            resource,
            name,
            ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
            ANONYMOUS,
            "*",
            operation,
            AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
        )
        for future in admin.create_acls([binding]).values():
            future.result(30)
        return binding

    yield add
    every = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    admin.delete_acls([every])[every].result(30)


def deliver(guarded: ServerProcess, topic: str, **config: Any) -> KafkaError | None:
    """Produce one record; return the error it came back with."""
    producer = Producer({"bootstrap.servers": guarded.address, **config})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors[0]


def test_confluent_kafka_manages_acls(guarded: ServerProcess, rule: Callable[..., AclBinding]) -> None:
    literal = rule(ResourceType.TOPIC, "other", AclOperation.READ)
    prefixed = rule(ResourceType.TOPIC, "oth", AclOperation.WRITE, prefixed=True)
    rule(ResourceType.GROUP, "other", AclOperation.READ)
    admin = AdminClient({"bootstrap.servers": guarded.address})
    match = AclBindingFilter(
        ResourceType.TOPIC, "other", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(match).result(30)) == {literal, prefixed}
    gone = admin.delete_acls([match])[match].result(30)
    assert set(gone) == {literal, prefixed}
    assert admin.describe_acls(match).result(30) == []
    bad = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "alice", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    with pytest.raises(KafkaException, match="principal"):
        admin.create_acls([bad])[bad].result(30)


def test_confluent_kafka_is_refused_what_is_denied(guarded: ServerProcess, rule: Callable[..., AclBinding]) -> None:
    assert deliver(guarded, "open") is None
    rule(ResourceType.TOPIC, "open", AclOperation.WRITE, deny=True)
    rule(ResourceType.TOPIC, "open", AclOperation.READ)
    error = deliver(guarded, "open")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer({"bootstrap.servers": guarded.address, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["open"])
    got = consumer.consume(1, timeout=30)
    assert [message.value() for message in got] == [b"v"], "what is allowed goes on"
    consumer.close()


def test_confluent_kafka_needs_a_right_on_its_transactional_id(guarded: ServerProcess, rule: Callable[..., AclBinding]) -> None:
    rule(ResourceType.TRANSACTIONAL_ID, "mine", AclOperation.WRITE, deny=True)
    producer = Producer({"bootstrap.servers": guarded.address, "transactional.id": "mine"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(30)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_confluent_kafka_consumer_hears_of_a_denied_group(guarded: ServerProcess, rule: Callable[..., AclBinding]) -> None:
    assert deliver(guarded, "grouped") is None
    rule(ResourceType.GROUP, "closed", AclOperation.READ, deny=True)
    rule(ResourceType.GROUP, "closed", AclOperation.DESCRIBE)
    consumer = Consumer({"bootstrap.servers": guarded.address, "group.id": "closed"})
    consumer.subscribe(["grouped"])
    heard = None
    for _ in range(60):
        message = consumer.poll(0.5)
        if message is not None and message.error() is not None:
            heard = message.error().code()
            break
    consumer.close()
    assert heard == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_kafka_python_manages_acls(guarded: ServerProcess, rule: Callable[..., AclBinding]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=guarded.address)
    acl = ACL(
        principal="User:test",
        host="*",
        operation=PyOperation.ALL,
        permission_type=PyPermission.ALLOW,
        resource_pattern=ResourcePattern(PyResource.TOPIC, "topic"),
    )
    assert admin.create_acls([acl])["succeeded"] == [acl]
    wanted = ACLFilter(
        principal="User:test",
        host="*",
        operation=PyOperation.ANY,
        permission_type=PyPermission.ANY,
        resource_pattern=ResourcePatternFilter(PyResource.TOPIC, "topic", PyPattern.ANY),
    )
    found, error = admin.describe_acls(wanted)
    assert error.errno == 0
    assert found == [acl]
    deleted = admin.delete_acls([wanted])
    assert [each for _, gone, _ in deleted for each in gone] == [acl]
    found, error = admin.describe_acls(wanted)
    assert found == []
    admin.close()


def test_acls_outlast_a_kill(guarded: ServerProcess, rule: Callable[..., AclBinding]) -> None:
    assert deliver(guarded, "kept") is None
    rule(ResourceType.TOPIC, "kept", AclOperation.WRITE, deny=True)
    guarded.kill()
    guarded.start()
    error = deliver(guarded, "kept")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
