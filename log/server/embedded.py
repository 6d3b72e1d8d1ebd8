"""The broker inside another program: its loop in a background thread, requests handed over as objects (architecture, D3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from logflume.log.broker.access import OWNER
from logflume.log.broker.handlers import require_handled
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import CLOSE_CONNECTION, RequestContext
from logflume.log.errors import InvalidInput, TransportError
from logflume.log.protocol.codec import encode
from logflume.log.storage import LogSlice

from .addresses import Address
from .shell import UNIX_LISTENER, BrokerShell

FETCH = 1
_EMBEDDED_CONNECTION = -1


class EmbeddedBroker:
    """A broker in a thread of this process. Thread-safe. Made by `start_embedded`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, shell: BrokerShell, thread: threading.Thread, stop: Callable[[], None]
    ) -> None:
        self._loop, self._shell, self._thread, self._stop = loop, shell, thread, stop
        self._is_closed = False
        self._waiting: dict[Future[Any], None] = {}

    @property
    def addresses(self) -> Sequence[Address]:
        """Where other processes reach it; the last one is the Unix socket in the data directory."""
        return tuple(self._shell.addresses)

    def submit(self, api_name: str, version: int, message: Any, *, client_id: str = "embedded") -> Future[Any]:
        """Hand over a request (`messages.FetchRequest(...)`); the future gives the response message, None for acks=0.

        `records` are taken and given as bytes-like objects without a copy: those of a Produce request must not change until
        the future is done; those of a Fetch response are memoryviews. What `version` leaves out is ignored as on the wire.

        Raises (or the future does): UnknownName, KafkaError UNSUPPORTED_VERSION, TransportError once the broker is closed.
        """
        key = require_handled(self._shell.handlers, api_name, version)
        context = RequestContext(key, version, 0, client_id, "embedded", _EMBEDDED_CONNECTION, OWNER, UNIX_LISTENER)
        future: Future[Any] = Future()
        if self._is_closed:
            raise TransportError("the embedded broker is closed; open the log again")
        self._waiting[future] = None
        try:
            self._loop.call_soon_threadsafe(self._handle, context, message, future)
        except RuntimeError as error:
            self._waiting.pop(future, None)
            raise TransportError("the embedded broker is closed; open the log again") from error
        return future

    def close(self) -> None:
        """Answer what was asked, make it durable, stop the thread. Idempotent; blocks."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self.fail_waiting()

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _handle(self, context: RequestContext, message: Any, future: Future[Any]) -> None:
        outcome = self._shell.handlers.handle(context, message)
        if not isinstance(outcome, Reply):
            self._complete(future, context, message, outcome)
            return
        outcome.then(lambda response: self._complete(future, context, message, response))

    def _complete(self, future: Future[Any], context: RequestContext, message: Any, response: Any) -> None:
        self._waiting.pop(future, None)
        if not future.set_running_or_notify_cancel():
            return
        if response is CLOSE_CONNECTION:
            future.set_exception(_why_it_failed(message, context))
            return
        if context.api_key == FETCH:
            for topic in response.responses:
                for partition in topic.partitions:
                    if isinstance(partition.records, LogSlice):
                        partition.records = memoryview(partition.records.read())
        future.set_result(response)

    def fail_waiting(self) -> None:
        """Fail what the broker did not answer before it stopped, so that nobody waits for ever."""
        for future in list(self._waiting):
            self._waiting.pop(future, None)
            if future.set_running_or_notify_cancel():
                future.set_exception(TransportError("the embedded broker was closed before it answered; open the log again"))


def _why_it_failed(message: Any, context: RequestContext) -> Exception:
    """The error that sending such a message would have been: one with a value of another type fails at every try."""
    try:
        encode(message, context.api_version, bytearray())
    except InvalidInput as error:
        return error
    return TransportError(f"the broker failed on API key {context.api_key}; its log has the cause")


def start_embedded(
    data_dir: str, *, listen: Sequence[Address] = (), configs: Mapping[str, str] | None = None, has_unix_socket: bool = True
) -> EmbeddedBroker:
    """Start a broker on a data directory in a background thread of this process; return when it is ready.

    Raises as `BrokerShell.start`.
    """
    started: Future[EmbeddedBroker] = Future()

    async def run() -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            shell = await BrokerShell.start(data_dir, listen=listen, configs=configs, has_unix_socket=has_unix_socket)
        except BaseException as error:  # handed to the caller of start_embedded  # noqa: BLE001
            started.set_exception(error)
            return
        started.set_result(EmbeddedBroker(loop, shell, thread, stopping.set))
        await stopping.wait()
        shell.handlers.answer_all()
        await shell.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="logflume-broker", daemon=True)
    thread.start()
    try:
        return started.result()
    except BaseException:
        thread.join()
        raise
