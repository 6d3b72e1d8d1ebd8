"""Settings of single groups (resource GROUP): where a value comes from, what is refused, and that they last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logflume.log.broker.settings.groups import bounds_of
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.broker.settings.table import BROKER_CONFIGS, GROUP_CONFIGS
from logflume.log.protocol import ErrorCode, KafkaError, messages
from logflume.log.server import start_embedded

from ._embedded import Calls

BROKER, GROUP = 4, 32
SET, DELETE, APPEND = 0, 1, 2
STATIC_BROKER, DEFAULT, OWN = 4, 5, 8


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    configs = {"group.consumer.min.session.timeout.ms": "6000", "group.share.record.lock.duration.ms": "20000"}
    with start_embedded(str(tmp_path_factory.mktemp("broker")), configs=configs) as broker:
        yield Calls(broker)


def alter(call: Calls, group: str, *changes: tuple[str, int, str | None], kind: int = GROUP, is_dry: bool = False) -> Any:
    request = messages.IncrementalAlterConfigsRequest
    configs = [request.AlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
    resource = request.AlterConfigsResource(resource_type=kind, resource_name=group, configs=configs)
    return call(request(resources=[resource], validate_only=is_dry), 1).responses[0]


def describe(call: Calls, group: str) -> Any:
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=GROUP, resource_name=group, configuration_keys=None)
    return call(request(resources=[resource], include_synonyms=True), 4).results[0]


def values(call: Calls, group: str) -> dict[str, tuple[str, int]]:
    return {c.name: (c.value, c.config_source) for c in describe(call, group).configs}


def test_every_setting_of_a_group_is_told_with_its_source(call: Calls) -> None:
    told = values(call, "nobody-yet")
    assert set(told) == set(GROUP_CONFIGS)
    assert told["consumer.session.timeout.ms"] == ("45000", DEFAULT)
    assert told["share.record.lock.duration.ms"] == ("20000", STATIC_BROKER)
    assert told["share.auto.offset.reset"] == ("latest", DEFAULT)
    synonyms = next(c for c in describe(call, "x").configs if c.name == "share.record.lock.duration.ms").synonyms
    assert [(s.name, s.value) for s in synonyms] == [
        ("group.share.record.lock.duration.ms", "20000"),
        ("group.share.record.lock.duration.ms", "30000"),
    ]


def test_a_groups_own_value_wins_until_it_is_deleted(call: Calls) -> None:
    assert alter(call, "own", ("consumer.session.timeout.ms", SET, "50000")).error_code == 0
    assert values(call, "own")["consumer.session.timeout.ms"] == ("50000", OWN)
    assert values(call, "other")["consumer.session.timeout.ms"] == ("45000", DEFAULT)
    listed = call(messages.ListConfigResourcesRequest(resource_types=[GROUP]), 1).config_resources
    assert [(each.resource_type, each.resource_name) for each in listed] == [(GROUP, "own")]
    assert alter(call, "own", ("consumer.session.timeout.ms", DELETE, None)).error_code == 0
    assert values(call, "own")["consumer.session.timeout.ms"] == ("45000", DEFAULT)
    assert call(messages.ListConfigResourcesRequest(resource_types=[GROUP]), 1).config_resources == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("consumer.session.timeout.ms", "5999", "group.consumer.min.session.timeout.ms (6000)"),
        ("consumer.session.timeout.ms", "60001", "group.consumer.max.session.timeout.ms"),
        ("consumer.heartbeat.interval.ms", "4999", "group.consumer.min.heartbeat.interval.ms"),
        ("consumer.heartbeat.interval.ms", "soon", "expected a whole number"),
        ("consumer.assignment.interval.ms", "15001", "group.consumer.max.assignment.interval.ms"),
        ("streams.num.standby.replicas", "3", "group.streams.max.standby.replicas"),
        ("share.record.lock.duration.ms", "999", "of 1000 to"),
        ("share.auto.offset.reset", "by_duration:P", "by_duration"),
        ("share.isolation.level", "read_commited", "did you mean 'read_committed'"),
        ("consumer.session.timeout", "1", "did you mean 'consumer.session.timeout.ms'"),
        ("retention.ms", "1", "unknown group config"),
    ],
)
def test_what_a_group_cannot_have(call: Calls, name: str, value: str, reason: str) -> None:
    answer = alter(call, "g", (name, SET, value))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert reason in answer.error_message
    assert values(call, "g").get(name, ("", DEFAULT))[1] in (DEFAULT, STATIC_BROKER)


def test_other_bad_requests(call: Calls) -> None:
    assert alter(call, "", ("consumer.session.timeout.ms", SET, "50000")).error_code == ErrorCode.INVALID_REQUEST
    assert describe(call, "").error_code == ErrorCode.INVALID_REQUEST
    assert alter(call, "g", ("consumer.session.timeout.ms", SET, None)).error_code == ErrorCode.INVALID_REQUEST
    assert alter(call, "g", ("consumer.session.timeout.ms", APPEND, "1")).error_code == ErrorCode.INVALID_CONFIG
    session, heartbeat = ("consumer.session.timeout.ms", SET, "6000"), ("consumer.heartbeat.interval.ms", SET, "6000")
    answer = alter(call, "g", session, heartbeat)
    assert "must be greater than consumer.heartbeat.interval.ms" in answer.error_message
    assert alter(call, "g", ("consumer.session.timeout.ms", SET, "50000"), is_dry=True).error_code == 0
    assert values(call, "g")["consumer.session.timeout.ms"] == ("45000", DEFAULT)
    answer = alter(call, "", ("group.consumer.assignment.interval.ms", SET, "20000"), kind=BROKER)
    assert (answer.error_code, "group.consumer.max.assignment.interval.ms" in answer.error_message) == (
        ErrorCode.INVALID_CONFIG,
        True,
    )


@pytest.mark.parametrize("value", ["earliest", "latest", "by_duration:P1D", "by_duration:PT1H30M", "by_duration:P2DT0.5S"])
def test_where_a_share_group_may_begin(call: Calls, value: str) -> None:
    assert alter(call, "s", ("share.auto.offset.reset", SET, value), is_dry=True).error_code == 0


def test_settings_of_groups_last(tmp_path: Path) -> None:
    with start_embedded(str(tmp_path)) as broker:
        alter(Calls(broker), "g", ("streams.num.standby.replicas", SET, "1"))
    with start_embedded(str(tmp_path)) as broker:
        assert values(Calls(broker), "g")["streams.num.standby.replicas"] == ("1", OWN)


def test_bounds_that_were_narrowed_win() -> None:
    config = BrokerConfig({"group.streams.max.standby.replicas": "1"})
    assert config.group_number("streams.num.standby.replicas", {"streams.num.standby.replicas": "2"}) == 1
    config = BrokerConfig({"group.consumer.min.session.timeout.ms": "45000"})
    assert config.group_number("consumer.session.timeout.ms", {"consumer.session.timeout.ms": "6000"}) == 45_000


def test_a_broker_does_not_start_with_defaults_outside_of_its_bounds() -> None:
    with pytest.raises(KafkaError, match=r"group.share.min.session.timeout.ms"):
        BrokerConfig({"group.share.session.timeout.ms": "1000"})
    with pytest.raises(KafkaError, match=r"must be greater than group.consumer.heartbeat.interval.ms"):
        BrokerConfig(
            {
                "group.consumer.min.session.timeout.ms": "5000",
                "group.consumer.session.timeout.ms": "5000",
            }
        )


def test_every_bound_is_a_setting_of_the_broker() -> None:
    for spec in GROUP_CONFIGS.values():
        assert {bound for bound in bounds_of(spec.name) if bound} <= set(BROKER_CONFIGS)
        assert set(spec.broker_names) <= set(BROKER_CONFIGS)
