"""Where connectors are, told and forgotten: offsets of sources in `connect-offsets`, of sinks in their consumer groups."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from logflume.log import InvalidInput, Log, UnknownName
from logflume.log.operations import list_transactions

from .offsets import OffsetStore, kept_connectors
from .transaction import transaction

_GROUP_PREFIX = "connect-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one part of a connector's input is. `end`: of the topic, for a sink; None for a source.

    `members`: how many tasks of a sink are in its group now.
    """

    connector: str
    kind: str
    part: str
    at: str
    end: int | None = None
    members: int = 0


def places(log: Log, *, clock_s: Callable[[], float] = time.monotonic) -> list[Place]:
    """Return where all connectors are that have committed something, by name."""
    return sorted([*_source_places(log, clock_s), *_sink_places(log)], key=lambda place: (place.connector, place.part))


def reset_connector(log: Log, name: str, *, clock_s: Callable[[], float] = time.monotonic) -> list[Place]:
    """Forget where a connector is: it begins anew when it runs next. Return what was forgotten.

    A source that runs is fenced: its tasks stop. What it has written stays, and is written again. A sink whose target keeps the
    place (sql-sink, parquet-sink) goes on from there: empty the target too.

    Raises:
        UnknownName: nothing is kept of such a connector. InvalidInput: a sink that runs.
    """
    known = places(log, clock_s=clock_s)
    found = [place for place in known if place.connector == name]
    if not found:
        raise UnknownName("connector with a place", name, sorted({place.connector for place in known}))
    running = next((place for place in found if place.members), None)
    if running is not None:
        raise InvalidInput(
            f"connector {name!r} runs: {running.members} of its tasks are in group {_GROUP_PREFIX}{name}; stop it first"
        )
    if any(place.kind == "source" for place in found):
        _forget_source(log, name, clock_s)
    if any(place.kind == "sink" for place in found):
        log.admin().delete_group(f"{_GROUP_PREFIX}{name}")
    return found


def known_connectors(log: Log, *, clock_s: Callable[[], float] = time.monotonic) -> list[str]:
    """Return the names of the connectors that run or have committed something, sorted."""
    groups = {group.removeprefix(_GROUP_PREFIX) for group in log.admin().list_groups() if group.startswith(_GROUP_PREFIX)}
    ids = re.compile(re.escape(_GROUP_PREFIX) + r"(.+)-\d+")
    tasks = (ids.fullmatch(each.transactional_id) for each in list_transactions(log.admin()))
    return sorted({*groups, *(task[1] for task in tasks if task), *kept_connectors(log, clock_s=clock_s)})


def _source_places(log: Log, clock_s: Callable[[], float]) -> Iterator[Place]:
    for name in kept_connectors(log, clock_s=clock_s):
        offsets = OffsetStore(log, name)
        offsets.read(clock_s=clock_s)
        for partition, offset in offsets.all():
            yield Place(name, "source", _text(partition), _text(offset))


def _sink_places(log: Log) -> Iterator[Place]:
    admin = log.admin()
    for group in admin.list_groups():
        if not group.startswith(_GROUP_PREFIX):
            continue
        offsets, members = admin.group_offsets(group), len(admin.describe_group(group).members)
        ends = admin.end_offsets(list(offsets))
        for tp, kept in offsets.items():
            part = f"{tp.topic}-{tp.partition}"
            yield Place(group.removeprefix(_GROUP_PREFIX), "sink", part, str(kept.offset), ends[tp], members)


def _forget_source(log: Log, name: str, clock_s: Callable[[], float]) -> None:
    """Take over all tasks' transactional ids, so that none commits any more, then write that there are no offsets."""
    ids = re.compile(re.escape(f"{_GROUP_PREFIX}{name}") + r"-\d+")
    tasks = [each.transactional_id for each in list_transactions(log.admin()) if ids.fullmatch(each.transactional_id)]
    for each in [*tasks, f"{_GROUP_PREFIX}{name}-0"]:
        fencing = log.producer(transactional_id=each)
        fencing.init_transactions()
        fencing.close()
    offsets = OffsetStore(log, name)
    offsets.read(clock_s=clock_s)
    producer = log.producer(transactional_id=f"{_GROUP_PREFIX}{name}-0")
    try:
        producer.init_transactions()
        with transaction(producer, clock_s=clock_s):
            for partition, _ in offsets.all():
                offsets.send(producer, partition, None)
    finally:
        producer.close()


def _text(fields: object) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)
