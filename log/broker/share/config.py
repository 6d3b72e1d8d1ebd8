"""The settings of share groups: those of the broker, and those of one group as they apply at the moment."""

from __future__ import annotations

import re
from dataclasses import dataclass

from logflume.log.broker.ports import GroupSettings

from .in_flight import Limits

EARLIEST, LATEST = "earliest", "latest"
READ_COMMITTED = "read_committed"
_DURATION = re.compile(
    r"by_duration:P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """Settings of the broker.

    Attributes:
        max_sessions: `group.share.max.share.sessions`, of all groups.
        fetch_max_bytes: `fetch.max.bytes`, largest answer to a ShareFetch.
    """

    max_sessions: int = 2_000
    fetch_max_bytes: int = 57_671_680


def limits_of(settings: GroupSettings, group_id: str) -> Limits:
    """Return what a group allows for each of its partitions."""
    return Limits(
        delivery_count=settings.number("share.delivery.count.limit", group_id),
        record_locks=settings.number("share.partition.max.record.locks", group_id),
        lock_ms=settings.number("share.record.lock.duration.ms", group_id),
        may_renew=settings.text("share.renew.acknowledge.enable", group_id) == "true",
    )


def duration_ms(reset: str) -> int:
    """Return the length of a `by_duration:...` in ms.

    >>> duration_ms("by_duration:P1DT0.5S")
    86400500
    """
    found = _DURATION.fullmatch(reset)
    assert found, reset
    return round(sum(float(count) * _MS[unit] for unit, count in found.groupdict().items() if count))
