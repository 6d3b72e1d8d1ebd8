"""What all instances of a running application say, look by look, and what follows from two looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from logflume.log import InvalidInput
from logflume.log.page_door import Asker

from .peers import instances, statuses
from .positions import addresses

if TYPE_CHECKING:
    from logflume.log import Log, TopicPartition

Statuses = Mapping[str, Mapping[str, Any]]
"""Instance id -> its status, as JSON gives it."""
_NAMED_MAX = 5
"""Partitions of one address that a message names."""


def looks(
    log: Log,
    application: str,
    interval_s: float,
    *,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Statuses, float]]:
    """Yield statuses and the seconds since the last ones, for ever.

    Raises:
        InvalidInput: nothing runs at the first look.
    """
    admin, asker = log.admin(), Asker(log.security)
    last_s = monotonic_s()
    is_first = True
    while True:
        answers = (status for _, status in statuses(instances(admin, application), asker))
        now = {status["instance_id"]: status for status in answers if "instance_id" in status}  # else it is something else
        if is_first and not now:
            raise InvalidInput(
                f"no instance of {application!r} answers; it may not run, or have no endpoint that can be reached from here "
                f'(app.run(endpoint="HOST:PORT")){_last_run(silent(log, application, now))}'
            )
        now_s, is_first = monotonic_s(), False
        yield now, max(now_s - last_s, 1e-3)
        last_s = now_s
        sleep(interval_s)


def silent(log: Log, application: str, now: Statuses) -> dict[TopicPartition, str]:
    """Return the partitions that nobody runs who has answered, and where each was run when its task last committed.

    A task of an instance that has died is among them until another takes it over.
    """
    run = {(each["topic"], each["partition"]) for status in now.values() for task in status["tasks"] for each in task["inputs"]}
    known = addresses(log.admin().group_offsets(application))
    return {partition: address for partition, address in sorted(known.items()) if partition not in run}


def _last_run(silent: Mapping[TopicPartition, str]) -> str:
    """Return the end of a sentence: which partitions were last run where.

    >>> from logflume.log import TopicPartition
    >>> _last_run({TopicPartition("in", n): "h:1" for n in range(2)}), _last_run({})
    ('; in-0, in-1 were last run at h:1', '')
    >>> _last_run({TopicPartition("in", n): "h:1" for n in range(9)})
    '; in-0, in-1, in-2, in-3, in-4 and 4 more were last run at h:1'
    """
    places: dict[str, list[str]] = {}
    for (topic, partition), address in silent.items():
        places.setdefault(address, []).append(f"{topic}-{partition}")
    said = []
    for address, names in places.items():
        more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
        said.append(f"; {', '.join(names[:_NAMED_MAX])}{more} {'was' if len(names) == 1 else 'were'} last run at {address}")
    return "".join(said)


def rows_by_node(status: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows have left each node of an instance.

    >>> rows_by_node({"tasks": [{"nodes": {"in": 2}}, {"nodes": {"in": 3, "out": 1}}]})
    {'in': 5, 'out': 1}
    >>> rows_by_node({"tasks": [{}]})
    {}
    """
    rows: dict[str, int] = {}
    for task in status.get("tasks", ()):
        for node, number in task.get("nodes", {}).items():
            rows[node] = rows.get(node, 0) + number
    return rows


def node_rates(before: Statuses, now: Statuses, elapsed_s: float) -> dict[str, float]:
    """Return how many rows a second left each node, in all instances together; a task that has moved counts from then on.

    >>> then, now = ({"i": {"tasks": [{"nodes": {"in": rows}}]}} for rows in (2, 8))
    >>> node_rates(then, now, 2.0)
    {'in': 3.0}
    """
    rates: dict[str, float] = {}
    for instance, status in now.items():
        then = rows_by_node(before.get(instance, {}))
        for node, rows in rows_by_node(status).items():
            rates[node] = rates.get(node, 0.0) + max(0, rows - then.get(node, rows)) / elapsed_s
    return rates
