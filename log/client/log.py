"""`connect`: one call for the log in this process, a logflume broker, or an Apache Kafka cluster (architecture, D3)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from logflume.log.errors import DataDirLocked, InvalidInput, LogflumeError, TransportError
from logflume.log.interfaces import AssignmentStrategy, OpenTransaction

from .admin import Admin
from .cluster import Cluster
from .consumer import Consumer
from .embedded import EmbeddedTransport, open_brokers
from .errors import ClientClosed
from .loop import IoLoop, io_loop
from .producer import CLOSE_TIMEOUT_S, Producer
from .profiles import PREFIX
from .security import Security
from .transport import Transport
from .where import parse_address, parse_where, security_of, text_of
from .wire import Address, WireTransport

CONNECT_TIMEOUT_S = 15.0
LAST_CLOSE_TIMEOUT_S = 0.5
"""How long a producer or consumer has for its end when those before it used up the time of all."""


class Log:
    """See `interfaces.Log`. Made by `connect`; closes the producers and consumers it made."""

    def __init__(self, where: str, transport: Transport, loop: IoLoop, *, client_id: str, release: Callable[[], None]) -> None:
        self._where = where
        self._loop = loop
        self._transport = transport
        self._client_id = client_id
        self._release = release
        self._is_closed = False
        self._made: list[Producer | Consumer] = []

        async def start() -> tuple[Cluster, asyncio.Task[None]]:
            cluster = Cluster(transport, client_id)
            return cluster, asyncio.get_running_loop().create_task(cluster.keep_fresh())

        self._cluster, self._keeping_fresh = loop.run(start())
        self._admin = Admin(self._cluster, loop)

    def __repr__(self) -> str:
        return f"<Log at {self._where}{', closed' if self._is_closed else ''}>"

    @property
    def where(self) -> str:
        """The data directory (absolute) or bootstrap address it was opened with; `connect` takes it again."""
        return self._where

    @property
    def security(self) -> Security | None:
        """How it logs in; None: the data is opened in this process, or reached by the Unix socket of its owner."""
        transport = self._transport
        if not isinstance(transport, WireTransport) or (transport.bootstrap[0].path and not transport.security.has_sasl):
            return None
        return transport.security

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        acks: int = -1,
        linger_ms: int = 5,
        batch_size: int = 262_144,
        compression: str = "none",
        client_id: str = "logflume",
    ) -> Producer:
        """Make a producer: idempotent with acks=-1 (the default), transactional with a transactional id.

        `linger_ms` is how long a batch that is not full waits for more; `batch_size` is in bytes; `compression` is one of none,
        gzip, snappy, lz4 and zstd.

        Raises:
            InvalidInput, UnknownName: an option that cannot be.
        """
        self._check_open()
        made = Producer(
            self._cluster,
            self._loop,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            acks=acks,
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression=compression,
            client_id=client_id,
        )
        self._keep(made)
        return made

    def join_transaction(self, transaction: OpenTransaction, *, batch_size: int = 262_144) -> Producer:
        """Make a producer that writes into a transaction begun elsewhere (`Producer.share_transaction`), and never ends it.

        Each partition is written by one of the producers of a transaction only. What it sent counts once `flush` returned.
        """
        self._check_open()
        made = Producer(self._cluster, self._loop, joins=transaction, batch_size=batch_size)
        self._keep(made)
        return made

    def consumer(
        self,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        read_committed: bool = True,
        offset_reset: str = "earliest",
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 1_000,
        max_poll_interval_ms: int = 300_000,
        fetch_max_bytes: int = 8_388_608,
        fetch_max_wait_ms: int = 500,
        client_id: str = "logflume",
        assignment_strategies: Sequence[str | AssignmentStrategy] = ("range", "roundrobin"),
        group_protocol: str = "classic",
        server_assignor: str | None = None,
    ) -> Consumer:
        """Make a consumer; `offset_reset`: earliest, latest or none. Offsets are committed only by `commit` or in a transaction.

        `group_protocol`: "classic", where a member assigns by one of `assignment_strategies` that all members know (range,
        roundrobin, cooperative-sticky, or one's own; the preferred one first); or "consumer" (KIP-848), where the broker assigns
        by `server_assignor` (uniform, range; None: its default) and members hand over partitions without a common pause.

        Raises:
            InvalidInput, UnknownName: an option that cannot be.
        """
        self._check_open()
        made = Consumer(
            self._cluster,
            self._loop,
            group_id=group_id,
            group_instance_id=group_instance_id,
            read_committed=read_committed,
            offset_reset=offset_reset,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            fetch_max_bytes=fetch_max_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            client_id=client_id,
            assignment_strategies=assignment_strategies,
            group_protocol=group_protocol,
            server_assignor=server_assignor,
        )
        self._keep(made)
        return made

    def admin(self) -> Admin:
        """Return the admin of this log."""
        self._check_open()
        return self._admin

    def close(self) -> None:
        """Close producers (what they hold is sent), consumers and connections; a log of this process is made durable.

        Brokers that are gone are waited for as long as one producer would, however many there are. As Python ends it is too late:
        a generator that holds a log may be closed then, and the threads that would do it are gone, as after a kill.
        """
        if self._is_closed or sys.is_finalizing():
            return
        self._is_closed = True
        try:
            self._close_made()
        finally:
            self._loop.call(self._keeping_fresh.cancel)
            self._loop.run(self._transport.close())
            self._release()

    def _close_made(self) -> None:
        open_ones = [each for each in self._made if not each.is_closed]
        for each in open_ones:
            if isinstance(each, Producer):
                each.hurry()
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        for each in open_ones:
            each.close(timeout_s=max(deadline_s - time.monotonic(), LAST_CLOSE_TIMEOUT_S))

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _keep(self, made: Producer | Consumer) -> None:
        """Remember what is to be closed with the log, and forget what was closed since."""
        self._made = [*(each for each in self._made if not each.is_closed), made]

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed(f"the log {self._where} was closed")


def connect(
    where: str | os.PathLike[str],
    *,
    client_id: str = "logflume",
    timeout_s: float = CONNECT_TIMEOUT_S,
    security: Security | None = None,
) -> Log:
    """Open a log, by the form of `where`:

    - `"host:9092"` or `"host:9092,other:9092"`: a logflume broker or an Apache Kafka cluster (2.1 or newer);
    - `"profile:NAME"`: the addresses of a profile, with its security;
    - `"unix:/path"`: the Unix socket of a logflume broker;
    - a path (`"./data"`, with a `/` or a leading `.` or `~`, or a `pathlib.Path`): that data directory, made if missing and
      opened in this process. If another process holds it, this one joins it through the address in its lock file.

    `security` says how to log in at an address; without it, the profile or the environment does ($LOGFLUME_PROFILE,
    $LOGFLUME_SECURITY_PROTOCOL, $LOGFLUME_SASL_USERNAME ...), else nothing is encrypted and nobody logs in.

    Returns once a broker has answered, or the directory is recovered.

    Raises:
        InvalidInput: `where` is neither, or the security settings do not fit.
        LoginRefused: the broker refuses the client, or is not who it should be.
        TransportError: no broker answered within `timeout_s`; names each address and why.
        DataDirLocked: another process holds the directory and does not listen anywhere.
        StorageError: the directory is not a log, or of a newer version, or damaged.

    >>> import tempfile, pathlib
    >>> with connect(pathlib.Path(tempfile.mkdtemp())) as log:
    ...     made = log.admin().create_topic("flights")
    ...     log.admin().list_topics()
    ['flights']
    """
    target = parse_where(where)
    loop = io_loop()
    if isinstance(target, Path):
        return _open_directory(target.absolute(), loop, client_id, timeout_s)
    text = where if isinstance(where, str) and where.startswith(PREFIX) else text_of(target)
    if security is None and not target[0].path:  # by a Unix socket one is the owner of the data, unless one says otherwise
        security = security_of(where)
    return _reach(text, target, loop, client_id, timeout_s, security)


def _open_directory(path: Path, loop: IoLoop, client_id: str, timeout_s: float) -> Log:
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"{path} is a file, expected a data directory")
    brokers = open_brokers()
    try:
        transport = EmbeddedTransport(brokers.acquire(str(path)))
    except DataDirLocked as locked:
        return _join(path, locked, loop, client_id, timeout_s)
    return Log(str(path), transport, loop, client_id=client_id, release=lambda: brokers.release(str(path)))


def _join(path: Path, locked: DataDirLocked, loop: IoLoop, client_id: str, timeout_s: float) -> Log:
    """Reach the process that holds the directory."""
    from logflume.log.storage import DataDir

    holder = DataDir.holder(str(path))
    if holder is None or not holder.address:
        raise locked
    try:
        return _reach(str(path), (parse_address(holder.address),), loop, client_id, timeout_s)
    except TransportError as error:
        raise TransportError(f"{path} is held by process {holder.pid}, which cannot be reached: {error}") from None


def _reach(
    where: str,
    addresses: Sequence[Address],
    loop: IoLoop,
    client_id: str,
    timeout_s: float,
    security: Security | None = None,
) -> Log:
    log = Log(where, WireTransport(addresses, security), loop, client_id=client_id, release=lambda: None)
    try:
        loop.run(_first_answer(log), timeout_s=timeout_s)
    except LogflumeError:
        log.close()
        raise
    return log


async def _first_answer(log: Log) -> None:
    await log._cluster.refresh([])
