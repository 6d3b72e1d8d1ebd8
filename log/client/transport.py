"""How the client reaches brokers: one interface, two implementations (architecture, D3).

`wire.WireTransport` speaks TCP or a Unix socket; `embedded.EmbeddedTransport` hands decoded messages to a broker of this
process. Everything here is called on the I/O loop only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from logflume.log.protocol import MessageBase

REQUEST_TIMEOUT_S = 30.0


class Channel(Protocol):
    """Requests in order to each broker, answered in order. A long poll on a channel delays what follows on it."""

    async def request(
        self, message: MessageBase, *, node: int | None = None, timeout_s: float = REQUEST_TIMEOUT_S, max_version: int = 1 << 15
    ) -> Any:
        """Send a request to a broker (any, if `node` is None) and return the response message.

        Produce requests with acks=0 return None once they are handed to the socket.

        Raises:
            TransportError: not reached, connection lost or no answer in time. The request may have been carried out.
            KafkaError: UNSUPPORTED_VERSION.
        """
        ...

    async def features(self, *, node: int | None = None) -> Mapping[str, int]:
        """Return the finalized features of a broker: name -> level."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Makes channels; knows where each broker is."""

    def channel(self, client_id: str) -> Channel: ...

    def learn_nodes(self, nodes: Mapping[int, tuple[str, int]]) -> None:
        """Take over the brokers' addresses from metadata: node id -> (host, port)."""
        ...

    async def close(self) -> None: ...
