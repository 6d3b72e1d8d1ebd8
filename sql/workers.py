"""The processes of this machine that run a service's queries, as those see them that ask: who is there, and what they answer."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from logflume.log.interfaces import Log
from logflume.streams.runtime import EngineState, EngineStatus, added_up

from .connectors import ConnectorState
from .places import Role, socket_stem
from .table_state import TablePage, TableRead

_decode_page = msgspec.msgpack.Decoder(TablePage).decode

_decode_connectors = msgspec.msgpack.Decoder(list[ConnectorState]).decode

_decode_status = msgspec.msgpack.Decoder(dict[str, EngineStatus]).decode

ASK_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 1.0
_IDLE_MAX = 16


class Workers:
    """Asks the workers (and guests) of a service, over connections that are kept. Thread-safe."""

    def __init__(self, log: Log, service: str) -> None:
        self._stems = {role: socket_stem(log, service, role) for role in Role}
        self._idle: dict[Path, list[_Connection]] = {}
        self._lock = threading.Lock()

    def readers(self) -> list[Callable[[TableRead], TablePage]]:
        """Return one function for each process that may answer; one that does not answer gives an empty page."""
        paths = self._paths(Role.WORKER, Role.GUEST)
        return [lambda read, path=path: self._read(path, read) for path in paths]  # type: ignore[misc]

    def has_worker(self) -> bool:
        """Tell whether a process is up that is there to run queries."""
        return bool(reachable(self._stems[Role.WORKER]))

    def status(self) -> dict[str, list[EngineStatus]]:
        """Return what the queries are doing, by query id: as each of the other processes says."""
        found: dict[str, list[EngineStatus]] = {}
        for path in self._paths(*Role):
            answer = self._request(path, "GET", "/status", None)
            if answer is not None:
                for query_id, each in _decode_status(answer).items():
                    found.setdefault(query_id, []).append(each)
        return found

    def connectors(self) -> list[ConnectorState]:
        """Return how the connectors are that run in the other processes."""
        answers = [self._request(path, "GET", "/connectors", None) for path in self._paths(Role.WORKER, Role.GUEST)]
        return [s for answer in answers if answer is not None for s in _decode_connectors(answer)]

    def close(self) -> None:
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def _paths(self, *roles: Role) -> list[Path]:
        own = f"-{os.getpid()}.sock"
        return [path for role in roles for path in _sockets(self._stems[role]) if not path.name.endswith(own)]

    def _read(self, path: Path, read: TableRead) -> TablePage:
        from .pull_service import rich

        answer = self._request(path, "POST", "/rows", msgspec.msgpack.encode(read))
        if answer is None:
            return TablePage()
        page = _decode_page(answer)
        return TablePage(page.partitions, [[rich(value) for value in row] for row in page.rows], page.after)

    def _request(self, path: Path, method: str, target: str, body: bytes | None) -> bytes | None:
        """Return the body of an answer with status 200. A kept connection may have been closed: then once more, anew."""
        for connection in (self._kept(path), _Connection(path)):
            if connection is None:
                continue
            try:
                connection.request(method, target, body)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            with self._lock:
                idle = self._idle.setdefault(path, [])
                if len(idle) < _IDLE_MAX:
                    idle.append(connection)
                else:
                    connection.close()
            return data if answer.status == 200 else None
        with self._lock:
            self._idle.pop(path, None)
        return None

    def _kept(self, path: Path) -> _Connection | None:
        with self._lock:
            idle = self._idle.get(path)
            return idle.pop() if idle else None


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("worker", timeout=ASK_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            self.sock.connect(str(self._path))
        except ConnectionRefusedError:
            self._path.unlink(missing_ok=True)
            raise
        self.sock.settimeout(ASK_TIMEOUT_S)


def has_worker(log: Log, service: str) -> bool:
    """Return whether a worker that runs the persistent queries of a service is up on this machine."""
    return bool(reachable(socket_stem(log, service, Role.WORKER)))


def merged_status(parts: Iterable[EngineStatus]) -> EngineStatus:
    """Return one status of a query from those of the processes that share it: the worst state, the first error, sums."""
    statuses = list(parts)
    order = [EngineState.FAILED, EngineState.RESTORING, EngineState.REBALANCING, EngineState.STARTING, EngineState.RUNNING]
    worst = min(statuses, key=lambda each: order.index(each.state) if each.state in order else len(order))
    if len(statuses) == 1:
        return worst
    dropped: Counter[str] = Counter()
    for each in statuses:
        dropped.update(each.dropped)
    lags = [each.lag_records for each in statuses if each.tasks]
    return replace(
        worst,
        instance_id=next((each.instance_id for each in statuses if each.instance_id), ""),
        tasks=tuple(sorted((task for each in statuses for task in each.tasks), key=lambda task: task.name)),
        records_in=sum(each.records_in for each in statuses),
        records_out=sum(each.records_out for each in statuses),
        records_in_per_s=sum(each.records_in_per_s for each in statuses),
        records_out_per_s=sum(each.records_out_per_s for each in statuses),
        dropped=dict(dropped),
        repartitioned=sum(each.repartitioned for each in statuses),
        left_out=added_up(place for each in statuses for place in each.left_out),
        lag_records=None if not lags or None in lags else sum(lag for lag in lags if lag is not None),
        restore_remaining_records=sum(each.restore_remaining_records for each in statuses),
        restore_records_per_s=sum(each.restore_records_per_s for each in statuses),
        error=next((each.error for each in statuses if each.error), None),
    )


def reachable(stem: Path) -> list[Path]:
    """Return the sockets on which a process of this user listens, the newest first; remove those of processes that are gone."""
    found = []
    for path in _sockets(stem):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                continue
            except OSError:
                continue
        found.append(path)
    return found


def _sockets(stem: Path) -> list[Path]:
    found: list[tuple[int, Path]] = []
    for path in stem.parent.glob(f"{stem.name}-*.sock"):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                found.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(found, reverse=True)]
