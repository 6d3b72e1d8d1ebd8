"""The asyncio face: the same log, producer, consumer and admin, with calls that are awaited.

There is one core. It does its I/O on a loop of its own (`loop.py`), so these classes work in any event loop; calls that may
wait run on a thread of their producer or consumer, which keeps their order (a poll does not hold up the others). A call that
is cancelled loses nothing: what a cancelled `poll` would have returned comes with the next one.

    async with connect_async("host:9092") as log:
        delivery = await log.producer().send("flights", b"...")
        print((await delivery).offset)
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from logflume.log.interfaces import GroupMetadata, RecordMetadata
from logflume.log.records import Chunk, Headers, TopicPartition

from .admin import Admin
from .consumer import Callback, Consumer
from .log import CONNECT_TIMEOUT_S, Log, connect
from .producer import Producer
from .retry import shielded
from .security import Security

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)

_NO_LIMIT_S = 3600.0


class _Threaded(Protocol[C_co]):
    """Something whose blocking core is used on a thread of its own."""

    @property
    def core(self) -> C_co: ...

    @property
    def thread(self) -> ThreadPoolExecutor: ...


def _awaited(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Threaded[C], P], Coroutine[Any, Any, T]]:
    """Return the awaited form of a blocking method: same arguments, result, errors and description.

    Once begun it is carried out, also when the caller is cancelled.
    """

    async def call(self: _Threaded[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = functools.partial(method, self.core, *args, **kwargs)
        return await shielded(asyncio.get_running_loop().run_in_executor(self.thread, bound))

    functools.update_wrapper(call, method)
    return call


class Delivery(Generic[T]):
    """What a record was queued as: await it for the acknowledgement; costs nothing if nobody does."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self._future).__await__()


class AsyncProducer:
    """`Producer`, awaited. Made by `AsyncLog.producer`."""

    def __init__(self, core: Producer) -> None:
        self.core = core
        self.thread = ThreadPoolExecutor(1, "logflume-producer")

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Delivery[RecordMetadata]:
        """Queue one record as `Producer.send` does; waits only while the buffer is full or the topic is not known yet."""
        send = functools.partial(
            self.core.send, topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return Delivery(await self._queue(topic, send))

    async def send_chunk(self, topic: str, chunk: Chunk, *, partition: int | None = None) -> Delivery[int]:
        """Queue all records of a chunk in order; the delivery gives their number once all are acknowledged."""
        return Delivery(await self._queue(topic, functools.partial(self.core.send_chunk, topic, chunk, partition=partition)))

    flush = _awaited(Producer.flush)
    init_transactions = _awaited(Producer.init_transactions)
    send_offsets = _awaited(Producer.send_offsets)
    commit_transaction = _awaited(Producer.commit_transaction)
    abort_transaction = _awaited(Producer.abort_transaction)

    async def begin_transaction(self) -> None:
        """Open a transaction; everything sent from now on belongs to it."""
        self.core.begin_transaction()

    async def close(self) -> None:
        """Send what is queued (up to 30 s), abort an open transaction, and let go. Idempotent."""
        await asyncio.to_thread(self.core.close)
        self.thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _queue(self, topic: str, send: Callable[[], T]) -> T:
        if self.core.can_queue(topic):
            return send()
        return await shielded(asyncio.get_running_loop().run_in_executor(self.thread, send))


class AsyncConsumer:
    """`Consumer`, awaited. Made by `AsyncLog.consumer`; an asynchronous iterator of chunks.

    The callbacks of `subscribe` are plain functions; they run on the consumer's thread, inside `poll`, where they may use `core`.
    """

    def __init__(self, core: Consumer) -> None:
        self.core = core
        self.thread = ThreadPoolExecutor(1, "logflume-consumer-calls")
        self._poll_thread = ThreadPoolExecutor(1, "logflume-consumer")
        self._polling: asyncio.Future[list[Chunk]] | None = None

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> None:
        """Join the consumer group from the next `poll` on; see `Consumer.subscribe`."""
        self.core.subscribe(topics, pattern=pattern, on_assigned=on_assigned, on_revoked=on_revoked)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group management."""
        self.core.assign(partitions)

    def assignment(self) -> tuple[TopicPartition, ...]:
        """Return the partitions being read now, sorted."""
        return self.core.assignment()

    async def poll(self, *, timeout_s: float = 1.0, max_records: int = 100_000) -> list[Chunk]:
        """Return the next records as chunks of one partition each, [] when none came in time; see `Consumer.poll`."""
        if self._polling is None:
            poll = functools.partial(self.core.poll, timeout_s=timeout_s, max_records=max_records)
            self._polling = asyncio.get_running_loop().run_in_executor(self._poll_thread, poll)
        try:
            chunks = await shielded(self._polling)
        except asyncio.CancelledError:
            self.core.wakeup()
            raise
        except BaseException:
            self._polling = None
            raise
        self._polling = None
        return chunks

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from `offset`."""
        self.core.seek(partition, offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self.core.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        self.core.resume(partitions)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between the position and the end as of the last fetch; None before the first."""
        return self.core.lag(partition)

    def group_metadata(self) -> GroupMetadata:
        """Return who this member is, for `AsyncProducer.send_offsets`."""
        return self.core.group_metadata()

    position = _awaited(Consumer.position)
    committed = _awaited(Consumer.committed)
    commit = _awaited(Consumer.commit)
    seek_to_time = _awaited(Consumer.seek_to_time)

    async def close(self, *, leave_group: bool = True) -> None:
        """Stop reading and leave the group (static members stay). Offsets are not committed. Idempotent."""
        self.core.wakeup()
        await asyncio.to_thread(self.core.close, leave_group=leave_group)
        self.thread.shutdown(wait=False)
        self._poll_thread.shutdown(wait=False)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            for chunk in await self.poll(timeout_s=_NO_LIMIT_S):
                yield chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncAdmin:
    """`Admin`, awaited. Made by `AsyncLog.admin`."""

    def __init__(self, core: Admin, thread: ThreadPoolExecutor) -> None:
        self.core = core
        self.thread = thread

    create_topic = _awaited(Admin.create_topic)
    ensure_topic = _awaited(Admin.ensure_topic)
    ensure_topics = _awaited(Admin.ensure_topics)
    delete_topic = _awaited(Admin.delete_topic)
    create_partitions = _awaited(Admin.create_partitions)
    list_topics = _awaited(Admin.list_topics)
    describe_topics = _awaited(Admin.describe_topics)
    changed_topic_configs = _awaited(Admin.changed_topic_configs)
    topic_configs = _awaited(Admin.topic_configs)
    alter_topic_configs = _awaited(Admin.alter_topic_configs)
    start_offsets = _awaited(Admin.start_offsets)
    end_offsets = _awaited(Admin.end_offsets)
    offsets_for_time = _awaited(Admin.offsets_for_time)
    delete_records = _awaited(Admin.delete_records)
    list_groups = _awaited(Admin.list_groups)
    describe_group = _awaited(Admin.describe_group)
    delete_group = _awaited(Admin.delete_group)
    remove_group_members = _awaited(Admin.remove_group_members)
    group_offsets = _awaited(Admin.group_offsets)
    set_group_offsets = _awaited(Admin.set_group_offsets)

    async def request(self, api: str, version: int | None = None, **fields: Any) -> Any:
        """Send any request of the protocol by name (for tests and tools); returns the decoded response."""
        send = functools.partial(self.core.request, api, version, **fields)
        return await asyncio.get_running_loop().run_in_executor(self.thread, send)


class AsyncLog:
    """`Log`, awaited. Made by `connect_async`; an asynchronous context manager."""

    def __init__(self, core: Log) -> None:
        self.core = core
        self._thread = ThreadPoolExecutor(1, "logflume-admin")
        self._made: list[AsyncProducer | AsyncConsumer] = []

    @property
    def where(self) -> str:
        """The data directory or bootstrap address it was opened with."""
        return self.core.where

    def producer(self, **options: Any) -> AsyncProducer:
        """Make a producer; the options are those of `Log.producer`."""
        return self._keep(AsyncProducer(self.core.producer(**options)))

    def consumer(self, **options: Any) -> AsyncConsumer:
        """Make a consumer; the options are those of `Log.consumer`."""
        return self._keep(AsyncConsumer(self.core.consumer(**options)))

    def admin(self) -> AsyncAdmin:
        """Return the admin of this log."""
        return AsyncAdmin(self.core.admin(), self._thread)

    async def close(self) -> None:
        """Close producers (what they hold is sent), consumers and connections. Idempotent."""
        made, self._made = self._made, []
        for each in made:
            await each.close()
        await asyncio.to_thread(self.core.close)
        self._thread.shutdown(wait=False)

    def _keep(self, made: Made) -> Made:
        self._made = [*(each for each in self._made if not each.core.is_closed), made]
        return made


Made = TypeVar("Made", AsyncProducer, AsyncConsumer)


class _Connecting:
    """`connect_async`'s result: awaited, or entered with `async with`, which closes the log in the end."""

    def __init__(self, opening: Callable[[], Log]) -> None:
        self._opening = opening
        self._log: AsyncLog | None = None

    def __await__(self) -> Generator[Any, None, AsyncLog]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncLog:
        self._log = await self._open()
        return self._log

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._log is not None
        await self._log.close()

    async def _open(self) -> AsyncLog:
        return AsyncLog(await asyncio.to_thread(self._opening))


def connect_async(
    where: str | os.PathLike[str],
    *,
    client_id: str = "logflume",
    timeout_s: float = CONNECT_TIMEOUT_S,
    security: Security | None = None,
) -> _Connecting:
    """Open a log as `connect` does: `async with connect_async(where) as log`, or `log = await connect_async(where)`.

    >>> import pathlib, tempfile
    >>> async def main() -> list[str]:
    ...     async with connect_async(pathlib.Path(tempfile.mkdtemp())) as log:
    ...         await log.admin().create_topic("flights")
    ...         return await log.admin().list_topics()
    >>> asyncio.run(main())
    ['flights']
    """
    return _Connecting(functools.partial(connect, where, client_id=client_id, timeout_s=timeout_s, security=security))
