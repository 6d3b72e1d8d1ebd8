"""Settings: the table of them, where a value comes from, what can be changed while the broker runs."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from logflume.log.broker.settings import table as config_specs
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.settings.spec import ConfigType
from logflume.log.broker.settings.table import BROKER_CONFIGS, CLIENT_METRICS_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.server import EmbeddedBroker, start_embedded

from ._embedded import Calls
from ._server_process import ServerProcess

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE = 0, 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with start_embedded(str(tmp_path), configs={"log.retention.hours": "2", "num.partitions": "3"}) as running:
        yield running


def described(call: Calls, resource_type: int, name: str) -> dict[str, Any]:
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
    (result,) = call(request(resources=[resource], include_synonyms=True, include_documentation=True), 4).results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def alter(call: Calls, name: str, *operations: tuple[str, int, str | None], resource_type: int = BROKER) -> Any:
    request = messages.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(name=n, config_operation=operation, value=value) for n, operation, value in operations]
    resource = request.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    return call(request(resources=[resource]), 1).responses[0]


def test_levels_of_loggers_are_settings_too(broker: EmbeddedBroker) -> None:
    call = Calls(broker)
    logger = logging.getLogger("logflume.broker")
    try:
        assert alter(call, "1", ("logflume.broker", SET, "ERROR"), resource_type=BROKER_LOGGER).error_code == 0
        assert logger.getEffectiveLevel() == logging.ERROR
        levels = described(call, BROKER_LOGGER, "1")
        assert (levels["logflume.broker"].value, levels["logflume.broker"].config_source) == ("ERROR", 6)
        assert levels["root"].config_source == 5
        loud = alter(call, "1", ("logflume.broker", SET, "LOUD"), resource_type=BROKER_LOGGER)
        assert (loud.error_code, "WARN" in loud.error_message) == (ErrorCode.INVALID_CONFIG, True)
        unknown = alter(call, "1", ("logflume.brokr", SET, "WARN"), resource_type=BROKER_LOGGER)
        assert "did you mean 'logflume.broker'" in unknown.error_message
        assert logger.getEffectiveLevel() == logging.ERROR
        assert alter(call, "1", ("logflume.broker", DELETE, None), resource_type=BROKER_LOGGER).error_code == 0
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)


def test_the_table_is_sound() -> None:
    lines = Path(config_specs.__file__).with_name("settings.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[7] for line in lines} == {"yes", *config_specs.NO_EFFECT}
    assert (len(TOPIC_CONFIGS), len(GROUP_CONFIGS), len(CLIENT_METRICS_CONFIGS)) >= (34, 17, 3)
    assert len(BROKER_CONFIGS) > 340
    for specs in (TOPIC_CONFIGS, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS, BROKER_CONFIGS):
        for spec in specs.values():
            assert spec.doc.endswith("."), spec.name
            assert all(name in BROKER_CONFIGS for name in spec.broker_names), spec.name
            if spec.default is not None:
                spec.check(spec.default)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num.partitons", "1", "did you mean 'num.partitions'"),
        ("num.partitions", "0", "expected a whole number of 1 to 2147483647"),
        ("compression.type", "gzipp", "did you mean 'gzip'"),
        ("auto.create.topics.enable", "yes", "expected true or false"),
        ("compression.gzip.level", "10", "expected a whole number of 1 to 9, or -1"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "expected a number of 0.0 to 1.0"),
        ("create.topic.policy.class.name", "com.example.Policy", "no other class is loaded"),
        ("offsets.topic.replication.factor", "40000", "of 1 to 32767"),
    ],
)
def test_what_is_not_a_setting_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(KafkaError, match="INVALID_CONFIG") as caught:
        BrokerConfig({name: value})
    assert says in str(caught.value)


def test_a_secret_is_not_shown_in_an_error() -> None:
    assert BROKER_CONFIGS["ssl.key.password"].type is ConfigType.PASSWORD
    config = BrokerConfig({"ssl.key.password": "hunter2"})
    assert config.lookup(BROKER_CONFIGS["ssl.key.password"]).value == "hunter2"


def test_a_topic_setting_is_looked_up_under_all_names_of_the_brokers(broker: EmbeddedBroker) -> None:
    call = Calls(broker)
    call.create("t", -1)
    before = described(call, TOPIC, "t")["retention.ms"]
    assert (before.value, before.config_source) == (str(2 * 3_600_000), 4)
    assert [(s.name, s.value, s.source) for s in before.synonyms] == [
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert alter(call, "", ("log.retention.ms", SET, "5000")).error_code == 0
    default = described(call, TOPIC, "t")["retention.ms"]
    assert (default.value, default.config_source) == ("5000", 3)
    assert alter(call, "1", ("log.retention.ms", SET, "6000")).error_code == 0
    assert (
        described(call, TOPIC, "t")["retention.ms"].value,
        described(call, BROKER, "1")["log.retention.ms"].config_source,
    ) == (
        "6000",
        2,
    )
    assert alter(call, "t", ("retention.ms", SET, "7000"), resource_type=TOPIC).error_code == 0
    own = described(call, TOPIC, "t")["retention.ms"]
    assert [s.source for s in own.synonyms] == [1, 2, 3, 4, 5]
    assert alter(call, "t", ("retention.ms", DELETE, None), resource_type=TOPIC).error_code == 0
    assert alter(call, "1", ("log.retention.ms", DELETE, None)).error_code == 0
    assert described(call, TOPIC, "t")["retention.ms"].value == "5000"


def test_the_clusters_defaults_are_described_alone_and_kept(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path)) as broker:
        call = Calls(broker)
        assert list(described(call, BROKER, "")) == ["min.insync.replicas"]
        assert alter(call, "", ("log.segment.bytes", SET, "2000000"), ("min.insync.replicas", DELETE, None)).error_code == 0
        assert alter(call, "1", ("max.connections", SET, "7")).error_code == 0
    with start_embedded(str(tmp_path)) as broker:
        call = Calls(broker)
        (only,) = described(call, BROKER, "").values()
        assert (only.name, only.value, only.config_source) == ("log.segment.bytes", "2000000", 3)
        assert described(call, BROKER, "1")["max.connections"].config_source == 2


@pytest.mark.parametrize(
    ("resource", "name", "value", "code"),
    [
        ("1", "num.partitions", "3", ErrorCode.INVALID_REQUEST),
        ("", "listeners", "PLAINTEXT://:1", ErrorCode.INVALID_REQUEST),
        ("", "ssl.keystore.type", "PKCS12", ErrorCode.INVALID_REQUEST),
        ("1", "max.connections", "-1", ErrorCode.INVALID_CONFIG),
        ("1", "max.conections", "1", ErrorCode.INVALID_CONFIG),
        ("7", "max.connections", "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_changed_at_run_time(broker: EmbeddedBroker, resource: str, name: str, value: str, code: int) -> None:
    call = Calls(broker)
    before = described(call, BROKER, "1")
    assert alter(call, resource, (name, SET, value)).error_code == code
    assert {n: c.value for n, c in described(call, BROKER, "1").items()} == {n: c.value for n, c in before.items()}


def test_confluents_admin_sees_every_setting_with_its_source(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path), ["num.partitions=5", "ssl.key.password=hunter2", "broker.rack=r1"])
    admin = AdminClient({"bootstrap.servers": server.address})
    resource = ConfigResource(ResourceType.BROKER, "1")
    configs = admin.describe_configs([resource])[resource].result(30)
    assert len(configs) == len(BROKER_CONFIGS)
    assert configs["num.partitions"].value == "5"
    assert configs["num.partitions"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert configs["log.retention.hours"].source == ConfigSource.DEFAULT_CONFIG.value
    assert (configs["ssl.key.password"].value, configs["ssl.key.password"].is_sensitive) == (None, True)
    assert configs["log.roll.ms"].value is None
    assert server.stop() == 0


def test_deleting_topics_can_be_turned_off(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path), configs={"delete.topic.enable": "false"}) as broker:
        call = Calls(broker)
        call.create("t")
        answer = call(messages.DeleteTopicsRequest(topic_names=["t"]), 5).responses[0]
        assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert call.create("t").error_code == ErrorCode.TOPIC_ALREADY_EXISTS
