"""Which connectors somebody wants to rest: told by any process, kept in the log, followed by every worker.

The topic `connect-configs` is Kafka Connect's, of which only the target states are here: key `target-state-NAME`, value
`{"state": "PAUSED"}` or `{"state": "STARTED"}`; without one a connector runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec

from logflume.log import Log, TopicPartition, UnknownName

from .offsets import committed
from .places import known_connectors

CONFIGS_TOPIC = "connect-configs"
_PARTITION = TopicPartition(CONFIGS_TOPIC, 0)
_PREFIX = b"target-state-"
_PAUSED, _STARTED = "PAUSED", "STARTED"


def pause_connector(log: Log, name: str) -> None:
    """Let a connector rest after its present batch, wherever it runs, until `resume_connector`; a restart does not end it.

    Raises:
        UnknownName: nobody runs it, and nothing is kept of it.
    """
    known = {*known_connectors(log), *paused_connectors(log)}
    if name not in known:
        raise UnknownName("connector", name, sorted(known))
    log.admin().ensure_topic(CONFIGS_TOPIC, partitions=1, configs={"cleanup.policy": "compact"})
    _write(log, name, _PAUSED)


def resume_connector(log: Log, name: str) -> None:
    """Let a connector that rests go on.

    Raises:
        UnknownName: it does not rest.
    """
    paused = paused_connectors(log)
    if name not in paused:
        raise UnknownName("paused connector", name, sorted(paused))
    _write(log, name, _STARTED)


def paused_connectors(log: Log, *, clock_s: Callable[[], float] = time.monotonic) -> frozenset[str]:
    """Return the names of the connectors that are to rest."""
    paused: set[str] = set()
    if wanted_states_end(log) == 0:
        return frozenset()
    for key, value in committed(log, _PARTITION, clock_s):
        if key is None or not key.startswith(_PREFIX):
            continue
        name, state = key.removeprefix(_PREFIX).decode(errors="replace"), None
        with contextlib.suppress(msgspec.DecodeError):  # a state that is none of ours stops nobody
            state = msgspec.json.decode(value or b"{}", type=dict).get("state")
        (paused.add if state == _PAUSED else paused.discard)(name)
    return frozenset(paused)


def wanted_states_end(log: Log) -> int:
    """Return a number that grows with each change of what is wanted; 0: nobody has ever wanted anything."""
    admin = log.admin()
    if CONFIGS_TOPIC not in admin.list_topics(include_internal=True):
        return 0
    return admin.end_offsets([_PARTITION])[_PARTITION]


def _write(log: Log, name: str, state: str) -> None:
    producer = log.producer()
    try:
        producer.send(CONFIGS_TOPIC, msgspec.json.encode({"state": state}), key=_PREFIX + name.encode()).result()
    finally:
        producer.close()
