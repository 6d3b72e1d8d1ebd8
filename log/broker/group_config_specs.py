"""The settings of groups under Kafka's names, 4.3: those of one group, and the broker's defaults and bounds of them.

A group's own value is set on the resource GROUP (32) by IncrementalAlterConfigs, also before the group exists, and stays when the
group is gone. It must be within the broker's bounds when it is set; when the bounds are narrowed later, they win.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from logflume.log.protocol import ErrorCode, KafkaError

from .config_spec import I32_MAX, ConfigSpec, ConfigType, bool_spec, int_spec, text_spec

MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
_DURATION = re.compile(r"by_duration:P(?=\d|T\d)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?", re.IGNORECASE)

GROUP_BROKER_SPECS = (
    int_spec(
        "group.consumer.assignment.interval.ms",
        0,
        "Shortest time between two target assignments of a consumer group. Kafka's default is 1000.",
    ),
    ConfigSpec(
        "group.consumer.assignors",
        ConfigType.LIST,
        "uniform,range",
        "Assignors of the consumer protocol; the first is the default.",
        choices=("uniform", "range"),
        is_read_only=True,
    ),
    int_spec("group.consumer.heartbeat.interval.ms", 5_000, "How often members of the consumer protocol report.", low=1),
    int_spec("group.consumer.max.assignment.interval.ms", 15_000, "Upper bound of consumer.assignment.interval.ms."),
    int_spec("group.consumer.max.heartbeat.interval.ms", 15_000, "Upper bound of consumer.heartbeat.interval.ms.", low=1),
    int_spec("group.consumer.max.session.timeout.ms", 60_000, "Upper bound of consumer.session.timeout.ms.", low=1),
    int_spec("group.consumer.max.size", I32_MAX, "Most members of a group of the consumer protocol.", low=1),
    text_spec(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which way a group with members may change its protocol: upgrade (classic to consumer), downgrade, both or none.",
        choices=MIGRATION_POLICIES,
    ),
    int_spec("group.consumer.min.assignment.interval.ms", 0, "Lower bound of consumer.assignment.interval.ms."),
    int_spec("group.consumer.min.heartbeat.interval.ms", 5_000, "Lower bound of consumer.heartbeat.interval.ms.", low=1),
    int_spec("group.consumer.min.session.timeout.ms", 45_000, "Lower bound of consumer.session.timeout.ms.", low=1),
    int_spec("group.consumer.session.timeout.ms", 45_000, "How long a member of the consumer protocol may be silent.", low=1),
    int_spec("group.share.assignment.interval.ms", 1_000, "Shortest time between two target assignments of a share group."),
    int_spec("group.share.delivery.count.limit", 5, "How often a record is delivered before it is given up.", low=2, high=10),
    int_spec("group.share.heartbeat.interval.ms", 5_000, "How often members of a share group report.", low=1),
    int_spec("group.share.max.assignment.interval.ms", 15_000, "Upper bound of share.assignment.interval.ms."),
    int_spec("group.share.max.delivery.count.limit", 10, "Upper bound of share.delivery.count.limit.", low=5, high=25),
    int_spec("group.share.max.heartbeat.interval.ms", 15_000, "Upper bound of share.heartbeat.interval.ms.", low=1),
    int_spec(
        "group.share.max.partition.max.record.locks", 4_000, "Upper bound of share.partition.max.record.locks.", low=2_000,
        high=10_000,
    ),
    int_spec(
        "group.share.max.record.lock.duration.ms", 60_000, "Upper bound of share.record.lock.duration.ms.", low=30_000,
        high=3_600_000,
    ),
    int_spec("group.share.max.session.timeout.ms", 60_000, "Upper bound of share.session.timeout.ms.", low=1),
    int_spec("group.share.max.share.sessions", 2_000, "Most share sessions.", low=1),
    int_spec("group.share.max.size", 200, "Most members of a share group.", low=1, high=1_000),
    int_spec("group.share.min.assignment.interval.ms", 0, "Lower bound of share.assignment.interval.ms."),
    int_spec("group.share.min.delivery.count.limit", 2, "Lower bound of share.delivery.count.limit.", low=2, high=5),
    int_spec("group.share.min.heartbeat.interval.ms", 5_000, "Lower bound of share.heartbeat.interval.ms.", low=1),
    int_spec(
        "group.share.min.partition.max.record.locks", 100, "Lower bound of share.partition.max.record.locks.", low=100,
        high=2_000,
    ),
    int_spec(
        "group.share.min.record.lock.duration.ms", 15_000, "Lower bound of share.record.lock.duration.ms.", low=1_000,
        high=30_000,
    ),
    int_spec("group.share.min.session.timeout.ms", 45_000, "Lower bound of share.session.timeout.ms.", low=1),
    int_spec(
        "group.share.partition.max.record.locks", 2_000, "Most records in flight of one partition in a share group.", low=100,
        high=10_000,
    ),
    int_spec(
        "group.share.record.lock.duration.ms", 30_000, "How long a member of a share group holds what it got.", low=1_000,
        high=3_600_000,
    ),
    int_spec("group.share.session.timeout.ms", 45_000, "How long a member of a share group may be silent.", low=1),
    int_spec(
        "group.streams.assignment.interval.ms",
        0,
        "Shortest time between two target assignments of a streams group. Kafka's default is 1000.",
    ),
    int_spec("group.streams.heartbeat.interval.ms", 5_000, "How often members of a streams group report.", low=1),
    int_spec(
        "group.streams.initial.rebalance.delay.ms",
        0,
        "Wait for more members before the first tasks of a streams group are given out. Kafka's default is 3000.",
    ),
    int_spec("group.streams.max.assignment.interval.ms", 15_000, "Upper bound of streams.assignment.interval.ms."),
    int_spec("group.streams.max.heartbeat.interval.ms", 15_000, "Upper bound of streams.heartbeat.interval.ms.", low=1),
    int_spec("group.streams.max.session.timeout.ms", 60_000, "Upper bound of streams.session.timeout.ms.", low=1),
    int_spec("group.streams.max.size", I32_MAX, "Most members of a streams group.", low=1),
    int_spec("group.streams.max.standby.replicas", 2, "Upper bound of streams.num.standby.replicas."),
    int_spec("group.streams.min.assignment.interval.ms", 0, "Lower bound of streams.assignment.interval.ms."),
    int_spec("group.streams.min.heartbeat.interval.ms", 5_000, "Lower bound of streams.heartbeat.interval.ms.", low=1),
    int_spec("group.streams.min.session.timeout.ms", 45_000, "Lower bound of streams.session.timeout.ms.", low=1),
    int_spec("group.streams.num.standby.replicas", 0, "Standby tasks of each task with state in a streams group."),
    int_spec("group.streams.session.timeout.ms", 45_000, "How long a member of a streams group may be silent.", low=1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OffsetResetSpec(ConfigSpec):
    """Where a share group begins: earliest, latest, or a duration back from now."""

    def check(self, value: str) -> None:
        if value not in ("earliest", "latest") and not _DURATION.fullmatch(value):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"invalid value {value!r} for {self.name}: expected earliest, latest or by_duration:<PnDTnHnMn.nS>",
            )


def _own(name: str, doc: str, *, low: int = 1) -> ConfigSpec:
    broker_name = f"group.{name}"
    default = next(spec.default for spec in GROUP_BROKER_SPECS if spec.name == broker_name)
    return ConfigSpec(name, ConfigType.INT, default, doc, low, I32_MAX, broker_name=broker_name)


GROUP_SPECS = (
    _own("consumer.assignment.interval.ms", "Shortest time between two target assignments of this consumer group.", low=0),
    _own("consumer.heartbeat.interval.ms", "How often members of this consumer group report."),
    _own("consumer.session.timeout.ms", "How long a member of this consumer group may be silent."),
    _own("share.assignment.interval.ms", "Shortest time between two target assignments of this share group.", low=0),
    OffsetResetSpec(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Where this share group begins in a partition: earliest, latest or by_duration:<PnDTnHnMn.nS>.",
    ),
    _own("share.delivery.count.limit", "How often a record is delivered to this share group before it is given up.", low=2),
    _own("share.heartbeat.interval.ms", "How often members of this share group report."),
    text_spec(
        "share.isolation.level",
        "read_uncommitted",
        "Whether this share group reads records of open and aborted transactions.",
        choices=("read_committed", "read_uncommitted"),
    ),
    _own("share.partition.max.record.locks", "Most records in flight of one partition in this share group.", low=100),
    _own("share.record.lock.duration.ms", "How long a member of this share group holds what it got.", low=1_000),
    bool_spec("share.renew.acknowledge.enable", True, "Whether members of this share group may renew their hold on a record."),
    _own("share.session.timeout.ms", "How long a member of this share group may be silent."),
    _own("streams.assignment.interval.ms", "Shortest time between two target assignments of this streams group.", low=0),
    _own("streams.heartbeat.interval.ms", "How often members of this streams group report."),
    _own("streams.initial.rebalance.delay.ms", "Wait for more members before the first tasks are given out.", low=0),
    _own("streams.num.standby.replicas", "Standby tasks of each task with state.", low=0),
    _own("streams.session.timeout.ms", "How long a member of this streams group may be silent."),
)

GROUP_CONFIGS = {spec.name: spec for spec in GROUP_SPECS}

_BOUNDED = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "share.assignment.interval.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
    "streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
)
STANDBY_REPLICAS, MOST_STANDBY_REPLICAS = "streams.num.standby.replicas", "group.streams.max.standby.replicas"
_PROTOCOLS = ("consumer", "share", "streams")


def bounds_of(name: str) -> tuple[str | None, str | None]:
    """Return the broker settings that bound a group's setting from below and above, None where there is none.

    >>> bounds_of("consumer.session.timeout.ms")
    ('group.consumer.min.session.timeout.ms', 'group.consumer.max.session.timeout.ms')
    """
    if name == STANDBY_REPLICAS:
        return None, MOST_STANDBY_REPLICAS
    if name not in _BOUNDED:
        return None, None
    protocol, setting = name.split(".", 1)
    return f"group.{protocol}.min.{setting}", f"group.{protocol}.max.{setting}"


def check_bounds(value_of: Callable[[str], int], broker: Callable[[str], int], *, prefix: str = "") -> None:
    """Check numbers of groups against the broker's bounds and each other.

    `value_of` returns a group's setting by name, `broker` a broker's; `prefix` is put before names in errors.

    Raises KafkaError INVALID_CONFIG.
    """

    def require(is_true: bool, text: str) -> None:
        if not is_true:
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)

    for name in (*_BOUNDED, STANDBY_REPLICAS):
        value, (least, most) = value_of(name), bounds_of(name)
        if least:
            require(value >= broker(least), f"{prefix}{name} must be greater than or equal to {least} ({broker(least)}): {value}")
        if most:
            require(value <= broker(most), f"{prefix}{name} must be less than or equal to {most} ({broker(most)}): {value}")
    for protocol in _PROTOCOLS:
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        require(
            value_of(session) > value_of(heartbeat),
            f"{prefix}{session} ({value_of(session)}) must be greater than {prefix}{heartbeat} ({value_of(heartbeat)})",
        )


def check_broker_bounds(broker: Callable[[str], int]) -> None:
    """Check the broker's group settings: each default between its bounds. Raises KafkaError INVALID_CONFIG."""
    check_bounds(lambda name: broker(f"group.{name}"), broker, prefix="group.")
