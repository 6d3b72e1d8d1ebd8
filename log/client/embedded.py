"""The transport to a broker in this process: decoded messages go to it and come back, without sockets or frames.

A data directory that is opened several times in one process is one broker, closed with its last user.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, Protocol

from logflume.log.errors import TransportError
from logflume.log.protocol import MessageBase, messages, tables

from .errors import ClientClosed
from .transport import REQUEST_TIMEOUT_S
from .versions import TRANSACTION_V2, VersionRanges, choose_version


class EmbeddedBroker(Protocol):
    """What a broker in this process offers (`logflume.log.server.EmbeddedBroker`)."""

    def submit(self, api_name: str, version: int, message: MessageBase, *, client_id: str = ...) -> Future[Any]: ...

    def close(self) -> None: ...


class EmbeddedTransport:
    """All channels lead to the one broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.ranges: VersionRanges = {}
        self.finalized: Mapping[str, int] = {}
        self._channels: list[EmbeddedChannel] = []

    def channel(self, client_id: str) -> EmbeddedChannel:
        made = EmbeddedChannel(self, client_id)
        self._channels.append(made)
        return made

    def learn_nodes(self, nodes: Mapping[int, tuple[str, int]]) -> None:
        """There is one broker and it is here."""

    async def negotiate(self) -> None:
        """Learn the broker's versions and features, once."""
        if not self.ranges:
            request = messages.ApiVersionsRequest(client_software_name="logflume", client_software_version="0.1")
            response = await asyncio.wrap_future(self.broker.submit("ApiVersions", 3, request))
            self.finalized = {f.name: f.max_version_level for f in response.finalized_features or ()}
            self.ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def forget(self, channel: EmbeddedChannel) -> None:
        """Called by a channel that was closed."""
        if channel in self._channels:
            self._channels.remove(channel)

    async def close(self) -> None:
        for channel in list(self._channels):
            channel.close()


class EmbeddedChannel:
    """See `transport.Channel`."""

    def __init__(self, transport: EmbeddedTransport, client_id: str) -> None:
        self._transport = transport
        self._client_id = client_id
        self._is_closed = False

    async def request(
        self, message: MessageBase, *, node: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S, max_version: int = 1 << 15
    ) -> Any:
        if self._is_closed:
            raise ClientClosed("the client was closed")
        transport = self._transport
        await transport.negotiate()
        has_v2 = transport.finalized.get(TRANSACTION_V2, 0) >= 2
        version = choose_version(message.api_key, transport.ranges, has_transaction_v2=has_v2, max_version=max_version)
        name = tables.api(message.api_key).name
        future = transport.broker.submit(name, version, message, client_id=self._client_id)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            raise TransportError(f"the embedded broker did not answer {name} within {timeout_s:g} s") from None

    async def features(self, *, node: int | None = None) -> Mapping[str, int]:
        await self._transport.negotiate()
        return self._transport.finalized

    def close(self) -> None:
        self._is_closed = True
        self._transport.forget(self)


class OpenBrokers:
    """The data directories open in this process, each with the number of its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[EmbeddedBroker, int]] = {}

    def acquire(self, data_dir: str) -> EmbeddedBroker:
        """Return the broker of a directory, started if this is its first user. Raises as `start_embedded`."""
        path = os.path.realpath(data_dir)
        with self._lock:
            broker, users = self._open.get(path, (None, 0))
            if broker is None:
                from logflume.log.server import start_embedded

                broker = start_embedded(path)
            self._open[path] = (broker, users + 1)
            return broker

    def release(self, data_dir: str) -> None:
        """One user less; the last one closes the broker, which makes everything durable."""
        path = os.path.realpath(data_dir)
        with self._lock:
            broker, users = self._open.pop(path)
            if users > 1:
                self._open[path] = (broker, users - 1)
                return
            broker.close()


def open_brokers() -> OpenBrokers:
    """Return this process's open data directories (none in a forked child)."""
    return _open_brokers_of(os.getpid())


@lru_cache(maxsize=1)
def _open_brokers_of(pid: int) -> OpenBrokers:
    return OpenBrokers()
