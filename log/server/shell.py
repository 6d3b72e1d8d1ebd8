"""A running broker: data directory, core, coordinators, flushing, listeners and background work on one asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.core import Core
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.ports import SchemaFinder
from logflume.log.broker.replies import Reply
from logflume.log.broker.security import LoginCounts
from logflume.log.broker.security.audit import Audit
from logflume.log.broker.security.listener_settings import PLAINTEXT, SASL_PLAINTEXT, ListenerSettings
from logflume.log.broker.security.mechanisms import (
    OAUTHBEARER,
    Provider,
    Told,
    check_mechanisms,
    login_policy,
    owner_policy,
    teller,
)
from logflume.log.broker.settings.lookup import BrokerConfig
from logflume.log.errors import LogflumeError, StorageError
from logflume.log.storage import Cleaner, DataDir, FlushScheduler, OsDisk, PartitionLog, Scrubber

from .addresses import UNIX_PREFIX, Address, parse_address, unix_socket_path
from .auditfile import AuditFile
from .health import Answer, HealthServer, Page, alive, brief
from .jwks import Jwks
from .kerberos import default_realm, open_acceptor
from .listener import Guard, Listener
from .listeners import ListenerPlan, named_addresses, plan_listeners
from .metrics import CONTENT_TYPE, Metrics, Sources
from .page_users import PageUsers, page_tls
from .runtime import LoopOffload, LoopTimers, SystemClock
from .tls import ListenerTls

TLS_REFRESH_INTERVAL_S = 5.0
DISK_CHECK_INTERVAL_S, LOW_DISK_RETENTION_S = 1.0, 10.0
CHECKPOINT_PAUSE_S = 0.05
CHECKPOINT_LOOKS = 2_000
"""Logs in which a turn of the loop looks for one that has changed."""
SCRUB_CHECK_INTERVAL_S = 30.0
SHOWN = 10
"""Partitions in trouble that /readyz names."""
UNIX_LISTENER = "UNIX"
_log = logging.getLogger("logflume.server")


class BrokerShell:
    """A broker that runs. Made by `start`, ended by `stop`; everything happens on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        data_dir: DataDir,
        core: Core,
        flusher: FlushScheduler,
        offload: LoopOffload,
    ) -> None:
        self.data_dir, self.core = data_dir, core
        core.schemas.offload = self._fetch
        self._loop, self._flusher, self._offload = loop, flusher, offload
        self.coordinators = Coordinators(core)
        self.handlers = Handlers(
            core,
            coordinators=self.coordinators.handlers(),
            admission=self.coordinators.transactions,
            long_polls=[self.coordinators.share.fetch],
        )
        self.addresses: list[Address] = []
        """What is listened on, with bound ports, in the order asked for."""
        self.http_address: Address | None = None
        """Where /metrics, /healthz and /readyz are, None for nowhere."""
        self._listener: Listener | None = None
        self._health: HealthServer | None = None
        self._page_tls: ListenerTls | None = None
        self._told: Told = lambda host, mechanism, principal, reason: None
        self.logins = LoginCounts()
        self._jwks: list[Jwks] = []
        self._fetching: LoopOffload | None = None
        self._audit_file: AuditFile | None = None
        self._is_ready = False
        self._next_retention_s = 0.0
        self._background: list[asyncio.TimerHandle] = []
        self._checkpointed: dict[tuple[str, int], tuple[int, int]] = {}
        self._cleaner = Cleaner(lock_fd=data_dir.lock_fd)
        self._compaction: asyncio.Task[None] | None = None
        self._mending: asyncio.Task[None] | None = None
        self._scrubber = Scrubber()
        self._scrubbing: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        path: str,
        *,
        listen: Sequence[Address] = (),
        advertised: Address | None = None,
        configs: Mapping[str, str] | None = None,
        has_unix_socket: bool = True,
    ) -> BrokerShell:
        """Open the data directory and serve it; on return every port accepts.

        Args:
            listen: TCP or Unix addresses; port 0 takes a free one. Without any, the config `listeners` counts.
            advertised: told to clients of every listener, in place of `advertised.listeners`.
            has_unix_socket: also listen on a Unix socket in the data directory, for processes that join (D3).

        Raises:
            DataDirLocked, StorageError, CorruptLog: the directory cannot be used.
            TransportError: an address cannot be listened on.
            InvalidInput: the listeners do not fit together.
            KafkaError: INVALID_CONFIG.
        """
        loop = asyncio.get_running_loop()
        given = dict(configs or {})
        if listen or "listeners" not in given:
            given["listeners"] = named_addresses(listen)
        config = BrokerConfig(given | {"log.dirs": path})
        plans = plan_listeners(config, advertised=advertised)
        tls = {plan.name: _prepare(config, plan) for plan in plans}  # before anything is made: settings that do not fit
        disk = OsDisk()
        data_dir = DataDir.open(path, disk=disk, node_id=config.number("node.id"))
        flusher = FlushScheduler(loop)
        offload = LoopOffload(loop)
        addresses: dict[str, Address] = {}
        shell: BrokerShell | None = None
        try:
            url = config.text("confluent.schema.registry.url")
            core = Core(
                data_dir,
                disk=disk,
                config=config,
                clock=SystemClock(),
                timers=LoopTimers(loop),
                flusher=flusher,
                addresses=addresses,
                offload=offload,
                next_turn=loop.call_soon,
                make_schema_finder=(lambda: _schema_finder(url)) if url else None,
            )
            shell = cls(loop, data_dir, core, flusher, offload)
            shell._listen(addresses, plans, tls, has_unix_socket=has_unix_socket)
            await shell._serve_health()
        except BaseException:
            if shell is not None:
                await shell.stop()
            else:
                offload.close()
                await flusher.close()
                data_dir.close()
            raise
        if config.text("logflume.flush") != "fsync":
            _log.warning("logflume.flush=os: acknowledged records are with the operating system, a power cut can lose them")
        shell._every(config.number("log.flush.offset.checkpoint.interval.ms") / 1000, shell._checkpoint)
        shell._every(DISK_CHECK_INTERVAL_S, shell._check_disk)
        shell._every(DISK_CHECK_INTERVAL_S, shell._mend)
        shell._every(config.number("log.retention.check.interval.ms") / 1000, core.run_retention)
        shell._every(TLS_REFRESH_INTERVAL_S, shell._refresh_security)
        shell._every(SCRUB_CHECK_INTERVAL_S, shell._scrub)
        if config.is_on("log.cleaner.enable"):
            shell._every(config.number("log.cleaner.backoff.ms") / 1000, shell._compact)
        shell._is_ready = True
        return shell

    @property
    def http_scheme(self) -> str:
        return "http" if self._page_tls is None else "https"

    async def _serve_health(self) -> None:
        text = self.core.config.text("logflume.http.listener")
        if not text:
            return
        assert self._listener is not None
        address = parse_address(text)
        sources = Sources(self.core, self.handlers, self.coordinators, self._listener, self._flusher, self.logins, time.time())
        metrics = Metrics(sources)

        async def told() -> Answer:
            return Answer(await metrics.text(), content_type=CONTENT_TYPE)

        pages = {
            "/metrics": Page(told),
            "/healthz": Page(alive, alive),
            "/readyz": Page(self._readiness, lambda: brief(self._readiness())),
        }
        self._page_tls, users = page_tls(self.core.config, address), None
        if self._page_tls is not None:
            users = PageUsers(self.core, owner_policy(self.core, self.logins, self._told))
        self._health = HealthServer(pages, tls=self._page_tls, users=users)
        self.http_address = await self._health.start(address)

    def _readiness(self) -> Answer:
        """Say whether clients are served in full; if not, what is missing, a line each."""
        problems = [] if self._is_ready else ["the broker is starting or stopping"]
        if self.core.disk_space.is_low:
            problems.append(f"the disk is almost full: {self.core.disk_space.free_bytes} bytes are free")
        troubles = self.core.troubles.by_partition
        if troubles:
            shown = "; ".join(f"{topic}-{index}: {trouble.cause}" for (topic, index), trouble in list(troubles.items())[:SHOWN])
            problems.append(f"{len(troubles)} partitions cannot be used: {shown}")
        return Answer("\n".join([*problems, ""]).encode(), 503) if problems else Answer(b"ready\n")

    def _listen(
        self,
        addresses: dict[str, Address],
        plans: Sequence[ListenerPlan],
        tls: Mapping[str, ListenerTls | None],
        *,
        has_unix_socket: bool,
    ) -> None:
        self._listener = Listener(self._loop, self.handlers, addresses)
        self._open_audit()
        told = self._told = teller(self.handlers.complaints, self.handlers.audit)
        for plan in plans:
            settings = ListenerSettings(self.core.config, plan.name, plan.protocol)
            logins = None
            if settings.has_sasl:
                logins = login_policy(self.core, settings, self.logins, told, provider=self._provider(settings))
            guard = Guard(tls[plan.name], logins)
            self.addresses.append(self._listener.listen(plan.name, plan.address, advertised=plan.advertised, guard=guard))
            if not plan.address.is_loopback and plan.protocol == SASL_PLAINTEXT:
                text = (
                    "listener %s (%s) is not encrypted: whoever can listen in reads records, and passwords of PLAIN; use SASL_SSL"
                )
                _log.warning(text, plan.name, plan.address)
            if not plan.address.is_loopback and plan.protocol == PLAINTEXT:
                _log.warning(
                    "listener %s (%s) has no authentication: whoever reaches it %s; use a loopback address, or a network that "
                    "only those can reach who may",
                    plan.name,
                    plan.address,
                    "may do everything" if self.core.authorizer is None else "is User:ANONYMOUS to the ACLs",
                )
        if has_unix_socket:
            unix = Address(UNIX_PREFIX + unix_socket_path(self.data_dir.path), 0)
            guard = Guard(logins=owner_policy(self.core, self.logins, told))
            self.addresses.append(self._listener.listen(UNIX_LISTENER, unix, guard=guard))
        if self.addresses:
            self.data_dir.set_address(str(self.addresses[-1]))

    def _open_audit(self) -> None:
        """Write the audit log if the settings name a file. Raises StorageError."""
        path = self.core.config.text("logflume.audit.log")
        if path:
            self._audit_file = AuditFile(path)
            self.handlers.audit = Audit(self._audit_file.write, self.core.clock)

    def _provider(self, settings: ListenerSettings) -> Provider:
        """Return what the logins of a listener ask others for. Raises InvalidInput."""
        acceptor = open_acceptor(settings)
        return Provider(self._provider_keys(settings), acceptor, default_realm() if acceptor is not None else "")

    def _provider_keys(self, settings: ListenerSettings) -> Jwks | None:
        """Return the keys of a listener's identity provider, None without. Raises InvalidInput."""
        if OAUTHBEARER not in settings.parts("sasl.enabled.mechanisms"):
            return None
        keys = Jwks(
            settings.text("sasl.oauthbearer.jwks.endpoint.url", mechanism=OAUTHBEARER),
            allowed=settings.parts("logflume.sasl.oauthbearer.allowed.urls"),
            refresh_ms=settings.number("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            retry_ms=settings.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
            offload=self._fetch,
        )
        keys.refresh()
        self._jwks.append(keys)
        return keys

    def _fetch(self, work: Callable[[], Any]) -> Reply:
        """Do what waits for other servers, in a thread of its own."""
        if self._fetching is None:
            self._fetching = LoopOffload(self._loop)
        return self._fetching(work)

    def _refresh_security(self) -> None:
        """Take over certificates that were renewed, and keys of identity providers."""
        for keys in self._jwks:
            keys.refresh()
        assert self._listener is not None
        for guard in self._listener.guards.values():
            if guard.tls is not None:
                guard.tls.refresh(time.time())
        if self._page_tls is not None:
            self._page_tls.refresh(time.time())

    async def stop(self) -> None:
        """Answer what was asked, make it durable, close everything. The next start scans nothing."""
        self._is_ready, began_s = False, time.monotonic()
        for handle in self._background:
            handle.cancel()
        async with contextlib.AsyncExitStack() as stack:  # each step is taken, whatever becomes of those before it
            stack.callback(self.data_dir.close)
            if self._health is not None:
                stack.push_async_callback(self._health.close)
            stack.callback(self.core.close)
            stack.push_async_callback(self._flusher.close)
            stack.callback(self._offload.close)
            if self._fetching is not None:
                stack.callback(self._fetching.close)
            if self._audit_file is not None:
                stack.callback(self._audit_file.close)
            stack.push_async_callback(self._cleaner.close)
            stack.push_async_callback(self._end_tasks)
            stack.callback(self.coordinators.close)
            if self._listener is not None:
                stack.push_async_callback(self._listener.close)
        _log.info("stopped in %.2f s", time.monotonic() - began_s)

    async def _end_tasks(self) -> None:
        """Wait for what reads logs in threads."""
        if self._mending is not None:
            await self._mending
        self._scrubber.stop()
        if self._scrubbing is not None:
            await self._scrubbing

    def handle(self, context: Any, request: Any) -> Any:
        return self.handlers.handle(context, request)

    def _every(self, interval_s: float, action: Any) -> None:
        """Run an action again and again on the loop; an error is logged and does not end it."""

        def run() -> None:
            self._background.remove(handle)
            try:
                action()
            except LogflumeError as error:
                _log.error("background work failed: %s", error)
            self._every(interval_s, action)

        handle = self._loop.call_later(interval_s, run)
        self._background.append(handle)

    def _check_disk(self) -> None:
        """Look at the free space; while it is low, drop what retention allows, now and every LOW_DISK_RETENTION_S."""
        self.core.disk_space.check()
        if self.core.disk_space.is_low and self._loop.time() >= self._next_retention_s:
            self._next_retention_s = self._loop.time() + LOW_DISK_RETENTION_S
            self.core.run_retention()

    def _mend(self) -> None:
        """Open partitions again that are offline or have failed, in a thread, for that may read much."""
        due = self.core.mendable()
        if due and (self._mending is None or self._mending.done()):
            self._mending = self._loop.create_task(self._reopen(due))

    async def _reopen(self, due: Sequence[tuple[str, int]]) -> None:
        for key in due:
            topic = self.core.cluster.topics.get(key[0])
            if topic is None:
                continue
            outcome: PartitionLog | StorageError
            try:
                outcome = await self._loop.run_in_executor(None, self.core.reopener(key))
            except StorageError as error:
                outcome = error
            self.core.mended(key, topic.topic_id, outcome)

    def _scrub(self) -> None:
        """Check sealed segments that are due, in a thread and slowly, so that damage is known before somebody reads it."""
        max_bytes_per_s = self.core.config.number("logflume.scrub.max.bytes.per.second")
        if max_bytes_per_s and (self._scrubbing is None or self._scrubbing.done()):
            logs = [partition.log for partition in self.core.partitions.values()]
            interval_ms = self.core.config.number("logflume.scrub.interval.ms")
            self._scrubbing = self._loop.create_task(
                self._scrubber.scrub(
                    logs, now_ms=self.core.clock.wall_ms(), interval_ms=interval_ms, max_bytes_per_s=max_bytes_per_s
                )
            )

    def _compact(self) -> None:
        """Compact the logs that are due, in a process of its own; what goes wrong is logged."""
        if self._compaction is None or self._compaction.done():
            self._compaction = self._loop.create_task(self._clean())

    async def _clean(self) -> None:
        logs = [partition.log for partition in self.core.partitions.values()]
        try:
            cleaned = await self._cleaner.clean(
                logs,
                now_ms=self.core.clock.wall_ms(),
                max_bytes_per_s=float(self.core.config.text("log.cleaner.io.max.bytes.per.second")),
            )
        except OSError as error:
            _log.error("cannot start the process that compacts: %s", error)
            return
        for directory, freed_bytes in cleaned.freed_bytes.items():
            _log.log(logging.INFO if freed_bytes > 0 else logging.DEBUG, "compacted %s: %d bytes freed", directory, freed_bytes)
        for failure in cleaned.errors:
            _log.error("%s", failure)

    def _checkpoint(self) -> None:
        """Move recovery points up, so that a crash leaves little to scan: what changed, one partition at a time with pauses."""
        logs = [partition.log for partition in self.core.partitions.values()]

        def next_changed() -> PartitionLog | None:
            """Return the next log that has changed, None after a bounded number of others."""
            for _ in range(CHECKPOINT_LOOKS):
                if not logs:
                    break
                log = logs.pop()
                ends = log.log_start_offset, log.log_end_offset
                if self._checkpointed.get((log.topic_id, log.partition)) != ends:
                    self._checkpointed[log.topic_id, log.partition] = ends
                    return log
            return None

        def step() -> None:
            log = next_changed()
            if log is None:
                if logs:
                    self._loop.call_soon(step)
                return
            partition = self.core.partition(log.topic, log.partition)
            try:
                if partition is not None and partition.log is log:
                    log.checkpoint()
            except LogflumeError as error:
                _log.error("checkpoint of %s-%d: %s", log.topic, log.partition, error)
            self._loop.call_later(CHECKPOINT_PAUSE_S, step)

        step()


def _schema_finder(url: str) -> SchemaFinder:
    """Return what asks the registry; its libraries are loaded with the first topic that demands schemas."""
    from .schema_finder import RegistryFinder

    return RegistryFinder(url)


def _prepare(config: BrokerConfig, plan: ListenerPlan) -> ListenerTls | None:
    """Return the TLS of a listener, None without. Raises InvalidInput: the listener's security settings do not fit."""
    settings = ListenerSettings(config, plan.name, plan.protocol)
    if settings.has_sasl:
        check_mechanisms(settings)
    if not settings.has_tls:
        return None
    tls = ListenerTls(settings)
    tls.refresh(time.time())
    return tls
