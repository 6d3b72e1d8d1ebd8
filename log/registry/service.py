"""A running registry: the state, kept by the reader; changes, made by the writer; one event loop owns both.

The state is touched on the loop alone. A long computation (a big schema, a history of versions) goes to a thread, one at a time,
and what is read meanwhile is applied after it: so it sees one state, and lookups by id go on. A change is answered once it is on
disk and applied here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from logflume.log.client.errors import ClientClosed, ProducerFenced
from logflume.log.errors import LogflumeError, TransportError
from logflume.log.interfaces import Log
from logflume.log.records import TopicPartition

from .changes import Change
from .errors import Fault, RegistryError
from .loader import Loader
from .records import Entry
from .schemas import DEFAULT_LIMITS, Limits
from .state import State
from .store import DEFAULT_TOPIC, Election, Reader, Writer

T = TypeVar("T")
LIGHT_CHARS = 4_000
"""A schema of at most this size is looked at on the loop: it takes less time than the way to a thread and back."""
MAX_BODY_BYTES = 4 * 1024 * 1024
READ_TIMEOUT_S = 30.0
PREPARE_SCHEMAS, PREPARE_PAUSE_S = 2_000, 0.01
"""After the start, digests are made in steps of two milliseconds; whoever asks earlier has the rest made at once."""
WRITER_ASKED_S = 1.0
_log = logging.getLogger("logflume.registry")


@dataclass(frozen=True, slots=True)
class Settings:
    """How an instance runs. `address` is where other instances reach it: `http://host:port`."""

    address: str
    topic: str = DEFAULT_TOPIC
    group_id: str = "logflume-registry"
    limits: Limits = DEFAULT_LIMITS
    max_body_bytes: int = MAX_BODY_BYTES

    @property
    def election_id(self) -> str:
        return f"{self.group_id}-{self.topic}"


class NotWriter(RegistryError):
    """This instance does not write; the request belongs to the one that does."""

    def __init__(self) -> None:
        super().__init__(Fault.NO_WRITER, "no writer is known yet; the election is under way: try again")


class Service:
    """One instance of the registry. Made and used on one event loop."""

    def __init__(self, log: Log, partition: TopicPartition, settings: Settings) -> None:
        """`partition`: of the registry's topic, as `ensure_topic` gives it."""
        self.settings = settings
        self.state = State()
        self.loader = Loader(self.state, limits=settings.limits)
        self.next_offset = 0
        self.is_writer = False
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._partition = partition
        self._reader = Reader(log, partition, self._taken)
        self._writer = Writer(log, partition, transactional_id=settings.election_id)
        self._election = Election(
            log, partition, group_id=settings.election_id, address=settings.address, on_change=self._elected
        )
        self._changing = asyncio.Lock()
        self._computing = asyncio.Lock()
        self._is_computing = False
        self._pending: list[tuple[Sequence[Entry], int, int]] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._known_writer: tuple[str | None, float] = (None, 0.0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_wanted = False

    async def start(self) -> None:
        """Read the topic to its end, then take part in the election."""
        end = await asyncio.to_thread(self._end_offset)
        self._reader.start()
        gc.disable()  # what is read now stays: looking through it again and again would take longer than reading
        try:
            await self.wait_for(end)
            self.state.subject_names(deleted=False)
            gc.freeze()
        finally:
            gc.enable()
        self._election.start()
        self._loop.call_later(PREPARE_PAUSE_S, self._prepare)

    def _prepare(self) -> None:
        if self._is_computing or self.state.prepare(PREPARE_SCHEMAS):
            self._loop.call_later(PREPARE_PAUSE_S, self._prepare)

    async def close(self) -> None:
        await asyncio.to_thread(self._election.close)
        async with self._changing:
            await asyncio.to_thread(self._writer.end)
        await asyncio.to_thread(self._reader.close)

    # reading

    async def compute(self, work: Callable[[], T], *, size: int) -> T:
        """Return what a pure function of the state gives; `size` in characters says whether it is quick."""
        if size <= LIGHT_CHARS and not self._is_computing:
            return work()
        async with self._computing:
            self._is_computing = True
            try:
                return await asyncio.to_thread(work)
            finally:
                self._is_computing = False
                pending, self._pending = self._pending, []
                for each in pending:
                    self._apply(*each)

    async def wait_for(self, offset: int) -> None:
        """Return when all records before an offset are applied. Raises RegistryError after a while."""
        if self.next_offset >= offset:
            return
        arrived: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((offset, arrived))
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await arrived
        except TimeoutError:
            raise RegistryError(
                Fault.TIMEOUT, f"the registry's log was not read up to offset {offset} within {READ_TIMEOUT_S:g} s"
            ) from None

    def _end_offset(self) -> int:
        return self._log.admin().end_offsets([self._partition], read_committed=True)[self._partition]

    def _taken(self, entries: Sequence[Entry], next_offset: int, unreadable: int) -> None:
        self._loop.call_soon_threadsafe(self._on_taken, entries, next_offset, unreadable)

    def _on_taken(self, entries: Sequence[Entry], next_offset: int, unreadable: int) -> None:
        if self._is_computing:
            self._pending.append((entries, next_offset, unreadable))
        else:
            self._apply(entries, next_offset, unreadable)

    def _apply(self, entries: Sequence[Entry], next_offset: int, unreadable: int) -> None:
        self.state.apply(entries)
        self.state.unreadable += unreadable
        self.next_offset = next_offset
        still = []
        for offset, arrived in self._waiting:
            if offset > next_offset:
                still.append((offset, arrived))
            elif not arrived.done():
                arrived.set_result(None)
        self._waiting = still

    # writing

    async def change(self, plan: Callable[[], Change], *, size: int = 0) -> Any:
        """Make a change and return its answer, once it is on disk and in the state.

        Raises:
            NotWriter: another instance has to be asked.
            RegistryError: the change was refused, or the log failed (then it may have been made).
        """
        if not self.is_writer:
            raise NotWriter
        async with self._changing:
            if not self.is_writer:
                raise NotWriter
            change = await self.compute(plan, size=size)
            if change.entries:
                await self._write(change.entries)
            return change.answer

    async def _write(self, entries: Sequence[Entry]) -> None:
        try:
            last = await asyncio.to_thread(self._writer.write, entries)
        except (ProducerFenced, ClientClosed):
            self._lost()
            raise NotWriter from None
        except LogflumeError as error:
            self._lost()
            fault = Fault.TIMEOUT if isinstance(error, TransportError) else Fault.STORE
            raise RegistryError(fault, f"the registry's log could not be written: {error}; ask again whether it was") from error
        await self.wait_for(last + 1)

    def _lost(self) -> None:
        self.is_writer = False
        if self._is_wanted:
            self._spawn(self._begin_again())

    async def _begin_again(self) -> None:
        await asyncio.sleep(WRITER_ASKED_S)
        await self._begin()

    # the election

    def _elected(self, is_wanted: bool) -> None:
        self._loop.call_soon_threadsafe(self._on_elected, is_wanted)

    def _on_elected(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        if is_wanted:
            self._spawn(self._begin())
        else:
            self.is_writer = False

    async def _begin(self) -> None:
        """Fence who wrote before, read what it wrote, then write."""
        async with self._changing:
            if not self._is_wanted or self.is_writer:
                return
            try:
                end = await asyncio.to_thread(self._writer.begin)
                await self.wait_for(end)
            except LogflumeError as error:
                _log.warning("cannot begin to write: %s; trying again", error)
                self._spawn(self._begin_again())
                return
            if self._is_wanted:
                self.is_writer = True
                _log.info("%s writes %s from offset %d", self.settings.address, self.settings.topic, end)

    async def writer_address(self) -> str | None:
        """Return where the writer is, None while nobody is; this instance's own address once it writes."""
        if self.is_writer:
            return self.settings.address
        known, asked_s = self._known_writer
        now_s = time.monotonic()
        if known is None or now_s - asked_s > WRITER_ASKED_S:
            known = await asyncio.to_thread(self._election.writer)
            self._known_writer = (known, now_s)
        return None if known == self.settings.address else known

    @property
    def is_becoming_writer(self) -> bool:
        """Return whether the group chose this instance, which is not ready to write yet."""
        return self._is_wanted and not self.is_writer

    def forget_writer(self) -> None:
        """Ask the group again who the writer is: the one that was known could not be reached."""
        self._known_writer = (None, 0.0)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
