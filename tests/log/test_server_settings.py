"""Settings of a broker process: files, environment, command line; and listeners."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import InvalidInput
from logflume.log.protocol import messages
from logflume.log.server import Address, gather_configs, read_config_file
from logflume.log.server.config_files import parse_properties, refuse_contradictions
from logflume.log.server.listeners import ListenerPlan, plan_listeners

from ._server_process import ServerProcess
from ._wire import Wire

SERVER_PROPERTIES = """\
# as Apache Kafka ships it, with its usual keys
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.partitions : 2
offsets.topic.replication.factor 1
log.retention.hours=168
log.segment.bytes=\\
    1073741824
"""


def plans(**configs: str) -> list[ListenerPlan]:
    return plan_listeners(BrokerConfig({name.replace("_", "."): value for name, value in configs.items()}))


def test_kafkas_own_file_starts_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(SERVER_PROPERTIES + f"log.dirs={tmp_path / 'logs'}\n")
    command = [sys.executable, "-m", "logflume.log.server", "--config-file", str(path), "--config", "broker.rack=here"]
    environment = {**os.environ, "LOGFLUME_CONFIG_NUM_PARTITIONS": "4", "LOGFLUME_CONFIG_BROKER_RACK": "there"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
        with Wire(port) as wire:
            answer = wire.call(messages.MetadataRequest(topics=[]), 12)
            assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [(7, "127.0.0.1", port, "here")]
            topic = messages.MetadataRequest.MetadataRequestTopic(name="made")
            made = wire.call(messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 12)
            assert len(made.topics[0].partitions) == 4
        assert (tmp_path / "logs" / "meta.properties").exists()
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_each_listener_tells_its_own_address(tmp_path: Path) -> None:
    configs = [
        "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.2:0",
        "advertised.listeners=OUTSIDE://broker.example:19092",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    ]
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path)]
    command += [part for config in configs for part in ("--config", config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        inside, outside = process.stdout.readline().split(" on ")[1].split(", ")[:2]
        with Wire(int(inside.rpartition(":")[2])) as wire:
            (node,) = wire.call(messages.MetadataRequest(topics=[]), 12).brokers
            assert f"{node.host}:{node.port}" == inside
        with Wire(int(outside.rpartition(":")[2]), host="127.0.0.2") as wire:
            (node,) = wire.call(messages.DescribeClusterRequest(), 0).brokers
            assert (node.host, node.port) == ("broker.example", 19092)
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_listeners_are_read_in_every_form() -> None:
    assert plans(listeners="127.0.0.1:9092") == [ListenerPlan("PLAINTEXT", Address("127.0.0.1", 9092))]
    assert plans(listeners="PLAINTEXT://:9092")[0].address == Address("", 9092)
    assert plans(listeners="PLAINTEXT://[::1]:9092")[0].address == Address("::1", 9092)
    assert plans(listeners="unix:/tmp/a.sock")[0].address.unix_path == "/tmp/a.sock"
    two = plans(listeners="PLAINTEXT://127.0.0.1:1,PLAINTEXT2://127.0.0.1:2")
    assert [plan.name for plan in two] == ["PLAINTEXT", "PLAINTEXT2"]


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ({"listeners": "OUTSIDE://:9092"}, "add OUTSIDE:PLAINTEXT to listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://:9092", "listener_security_protocol_map": "PLAINTEXT:TLS"}, "found 'PLAINTEXT:TLS'"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"}, "two listeners named PLAINTEXT"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT2://a:1"}, "both want port 1"),
        ({"listeners": "PLAINTEXT://a:1", "advertised_listeners": "OTHER://a:1"}, "OTHER, which is not one of the listeners"),
        ({"listeners": "PLAINTEXT://a:1", "advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "a host that they can reach"),
        ({"listeners": "PLAINTEXT://a:1", "inter_broker_listener_name": "INSIDE"}, "INSIDE is not one of the listeners"),
        ({"listeners": "PLAINTEXT://a"}, "expected HOST:PORT"),
    ],
)
def test_listeners_that_do_not_fit_are_refused(configs: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        plans(**configs)
    assert says in str(caught.value)


def test_a_toml_file_and_what_wins(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        'num.partitions = 4\nauto.create.topics.enable = false\nlisteners = ["PLAINTEXT://a:1", "PLAINTEXT2://a:2"]\n'
        'max.connections = 5\n"max.connections.per.ip" = 3\n[log.retention]\nms = 1000\n'
    )
    assert read_config_file(path) == {
        "num.partitions": "4",
        "auto.create.topics.enable": "false",
        "listeners": "PLAINTEXT://a:1,PLAINTEXT2://a:2",
        "max.connections": "5",
        "max.connections.per.ip": "3",
        "log.retention.ms": "1000",
    }
    environment = {"LOGFLUME_CONFIG_NUM_PARTITIONS": "5", "LOGFLUME_CONFIG_MAX_CONNECTIONS": "6"}
    configs = gather_configs(str(path), ["num.partitions=6"], environment)
    assert (configs["num.partitions"], configs["max.connections"], configs["log.retention.ms"]) == ("6", "6", "1000")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.toml", b"num.partitions =", "is not TOML"),
        ("a.toml", b"max.connections = 5\nmax.connections.per.ip = 3", "put a name in quotes"),
        ("a.toml", b"at = 1979-05-27", "expected text, a number"),
        ("a.properties", b"a=1\nb=2\na=3", "line 3: a is set for the second time"),
        ("a.properties", b"=3", "line 1: expected NAME=VALUE"),
        ("a.properties", b"\xff\xfe", "is not UTF-8"),
        ("a.properties", b"#" * (1 << 21), "expected at most"),
        ("a.properties", b"a=\\u12", "four hexadecimal digits"),
    ],
)
def test_a_file_that_is_not_right_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        read_config_file(path)
    assert says in str(caught.value)


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=12)))
def test_properties_survive_javas_escapes(settings: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return "".join(f"\\u{ord(char):04x}" for char in text)

    settings = {name: value for name, value in settings.items() if all(ord(char) < 0x10000 for char in name + value)}
    lines = [f"{escaped(name)}={escaped(value)}" for name, value in settings.items()]
    found = parse_properties("\n".join(lines))
    assert found == {name: value.rstrip() for name, value in settings.items()}


def test_a_broker_that_cannot_be_as_asked_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logflume.log.server", "--data", str(tmp_path / "d")]
    for options, says in (
        (["--config", "listeners=SSL://127.0.0.1:0"], "ssl.keystore.location"),
        (["--config", "listeners=SASL_PLAINTEXT://127.0.0.1:0"], "or set sasl.enabled.mechanisms to others"),
        (["--config", "num.partitions=many"], "expected a whole number"),
        (["--config-file", str(tmp_path / "none")], "cannot read the config file"),
    ):
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists()


def test_a_static_setting_counts(tmp_path: Path) -> None:
    server = ServerProcess(str(tmp_path), ["auto.create.topics.enable=false"])
    with Wire(server.port) as wire:
        topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
        answer = wire.call(messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 12)
        assert answer.topics[0].error_code == 3
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("options", "configs", "said"),
    [
        (
            {"listen": ["127.0.0.1:29095"]},
            {"listeners": "SASL_SSL://127.0.0.1:29095"},
            "--listen 127.0.0.1:29095 and listeners=SASL",
        ),
        ({"listen": ["127.0.0.1:1"]}, {"listeners": "PLAINTEXT://127.0.0.1:1,PLAINTEXT2://127.0.0.1:2"}, "give one of them"),
        ({"advertise": "a:1"}, {"advertised.listeners": "PLAINTEXT://b:1"}, "--advertise a:1 and advertised.listeners"),
        ({"data": "/a"}, {"log.dirs": "/b"}, "--data /a and log.dirs=/b"),
        ({"data": "/a"}, {"log.dir": "/b"}, "--data /a and log.dir=/b"),
        ({"http": "127.0.0.1:1"}, {"logflume.http.listener": "127.0.0.1:2"}, "--http 127.0.0.1:1 and logflume.http.listener"),
    ],
)
def test_an_option_and_a_setting_that_contradict_each_other_are_refused(
    options: dict[str, Any], configs: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        refuse_contradictions(configs, **options)


def test_an_option_and_a_setting_that_agree_are_taken() -> None:
    refuse_contradictions({"listeners": "PLAINTEXT://127.0.0.1:1"}, listen=["127.0.0.1:1"])
    refuse_contradictions({"listeners": "127.0.0.1:1, 127.0.0.1:2"}, listen=["127.0.0.1:1", "127.0.0.1:2"])
    refuse_contradictions({"log.dirs": "/a/b"}, data="/a/./b")
    refuse_contradictions({"num.partitions": "4"}, listen=["127.0.0.1:1"], data="/a", http="127.0.0.1:2", advertise="a:1")
