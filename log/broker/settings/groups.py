"""How the settings of groups bound each other: a group's own, and the broker's defaults and bounds of them.

A group's own value is set on the resource GROUP (32) by IncrementalAlterConfigs, also before the group exists, and stays when the
group is gone. It must be within the broker's bounds when it is set; when the bounds are narrowed later, they win.
"""

from __future__ import annotations

from collections.abc import Callable

from logflume.log.protocol import ErrorCode, KafkaError

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
