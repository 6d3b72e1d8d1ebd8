"""A request of a client that has quotas: handled, and charged for it (KIP-219)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from logflume.log.broker.handlers import Handlers
from logflume.log.broker.replies import Reply
from logflume.log.broker.requests import CLOSE_CONNECTION, RequestContext
from logflume.log.protocol import MessageBase


def handle_metered(
    handlers: Handlers, context: RequestContext, request: MessageBase, *, size_bytes: int, mute: Callable[[int], None]
) -> Any:
    """Handle a request and charge the client for it; returns what `Handlers.handle` does.

    `mute`: has who is over a quota, and is answered, not be read from for so many ms.
    """
    began_ns = perf_counter_ns()
    outcome = handlers.handle(context, request)
    busy_ns = perf_counter_ns() - began_ns

    def settle(response: Any) -> Any:
        if response is CLOSE_CONNECTION:
            return response
        settled, quiet_ms = handlers.core.quotas.settle(context, size_bytes, busy_ns, response)
        if quiet_ms:
            mute(quiet_ms)
        return settled

    if not isinstance(outcome, Reply):
        return settle(outcome)
    settled = Reply()
    settled.held_bytes, settled.is_long = outcome.held_bytes, outcome.is_long

    def tell(response: Any) -> None:
        settled.is_long = outcome.is_long
        settled.set(settle(response))

    outcome.then(tell)
    return settled
