"""Charges clients for what they use and says how long they must be quiet (KIP-13, KIP-219, KIP-599, KIP-612).

Who is over a limit gets the answer at once, with the time in it, and is not read from until that time has passed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from logflume.log.broker.ports import Clock
from logflume.log.broker.requests import RequestContext
from logflume.log.protocol import ErrorCode, KafkaError, messages

from .entities import FETCH, MUTATION, PRODUCE, REQUEST, Limit, QuotaTable
from .rates import Rate, TokenBucket

PRODUCE_API, API_VERSIONS_API, SHARE_FETCH_API = 0, 18, 78
MAX_THROTTLE_MS = 2**31 - 1
MAX_BUCKETS = 10_000
"""Clients whose use is remembered, of each quota; beyond that, those that used nothing lately are forgotten, then the oldest."""
PERCENT_PER_NS = 100 / 1_000_000_000
_USER = "User:"
_B = TypeVar("_B", Rate, TokenBucket)


class Quotas:
    """The quotas of a broker and the use they are compared with.

    `is_active` is False as long as there are no quotas: then nothing is measured and nothing costs time.
    Invariant: `_limits` holds only what follows from the present table.
    """

    def __init__(
        self,
        table: QuotaTable,
        clock: Clock,
        *,
        samples: int = 11,
        window_ms: int = 1000,
        mutation_samples: int = 11,
        mutation_window_ms: int = 1000,
    ) -> None:
        self._clock, self._samples, self._window_ms = clock, samples, window_ms
        rates = {key: _Buckets(lambda: Rate(samples, window_ms), _is_spent) for key in (PRODUCE, FETCH, REQUEST)}
        self._rates: dict[str, _Buckets[Rate]] = rates
        self._connections = _Buckets(lambda: Rate(samples, window_ms), _is_spent)
        burst_s = mutation_samples * mutation_window_ms / 1000
        self._tokens = _Buckets(lambda: TokenBucket(burst_s), _is_refilled)
        self.throttled_count = 0
        """Answers that told a client to be quiet for a while."""
        self.set_table(table)

    def set_table(self, table: QuotaTable) -> None:
        """Replace all quotas; use that was measured already counts against the new ones."""
        self.table = table
        self.is_active = bool(table.entries)
        self._limits: dict[tuple[str, str, str], Limit | None] = {}

    def settle(self, context: RequestContext, request_bytes: int, busy_ns: int, response: Any) -> tuple[Any, int]:
        """Charge a request that was handled. Returns the response, with the time in it, and how many ms to be quiet.

        Args:
            busy_ns: how long the handler ran.
            response: None for acks=0. What the handler itself put into `throttle_time_ms` counts too.
        """
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._charge(REQUEST, context, busy_ns * PERCENT_PER_NS, now_ms, most_ms=self._window_ms)
        if context.api_key == PRODUCE_API:
            wait_ms = max(wait_ms, self._charge(PRODUCE, context, request_bytes, now_ms))
        elif context.api_key == SHARE_FETCH_API and response is not None:
            wait_ms = max(wait_ms, self._charge(FETCH, context, _record_bytes(response), now_ms))
        own_ms = getattr(response, "throttle_time_ms", None)
        if own_ms is not None:
            wait_ms = max(wait_ms, own_ms)
            if wait_ms and context.api_key == API_VERSIONS_API:
                response = copy.copy(response)  # one object is the answer to everybody
            if wait_ms:
                response.throttle_time_ms = wait_ms
        if wait_ms:
            self.throttled_count += 1
        return response, wait_ms

    def charge_fetch(self, context: RequestContext, size_bytes: int) -> tuple[bool, int]:
        """Charge a fetch that found so much. Returns whether to hold the data back, and how many ms to be quiet.

        Data that is held back is not charged. A response that is over the limit all by itself is sent: it would never be less.
        """
        limit = self._limit(FETCH, context)
        if limit is None:
            return False, 0
        now_ms = self._clock.monotonic_ms()
        rate = self._rates[FETCH].get(limit, now_ms)
        was_idle = rate.is_spent(now_ms)
        rate.record(size_bytes, now_ms)
        wait_ms = min(rate.wait_ms(limit.value, now_ms), MAX_THROTTLE_MS)
        if wait_ms and not was_idle:
            rate.record(-size_bytes, now_ms)
        return bool(wait_ms) and not was_idle, wait_ms

    def charge_shared_fetch(self, context: RequestContext, size_bytes: int) -> int:
        """Charge a fetch of a share group, whose records cannot be held back any more. Returns how many ms to be quiet."""
        return self._charge(FETCH, context, size_bytes, self._clock.monotonic_ms())

    def max_fetch_bytes(self, context: RequestContext) -> int | None:
        """Return the most that one fetch of a client may give without being over its limit; None for no limit."""
        limit = self._limit(FETCH, context)
        return None if limit is None else int(limit.value * max(self._samples - 1, 1) * self._window_ms / 1000)

    def mutations(self, context: RequestContext, *, is_strict: bool) -> MutationQuota | None:
        """Return what counts the changes of topics that a request makes; None for no limit.

        `is_strict`: refuse what is over the limit; older clients, which do not know that error, are only slowed down.
        """
        limit = self._limit(MUTATION, context) if self.is_active else None
        if limit is None:
            return None
        bucket = self._tokens.get(limit, self._clock.monotonic_ms())
        return MutationQuota(bucket, limit.value, self._clock, is_strict=is_strict)

    def connection_wait_ms(self, address: str) -> int:
        """Charge a new connection of an address; return 0 to let it in, or for how long to hold it before it is closed."""
        value = self.table.ip_limit(address)
        if value is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        rate = self._connections.get(Limit(value, (address, "")), now_ms)
        rate.record(1, now_ms)
        wait_ms = min(rate.wait_ms(value, now_ms), self._window_ms)
        if wait_ms:
            rate.record(-1, now_ms)
        return wait_ms

    def _charge(self, key: str, context: RequestContext, amount: float, now_ms: int, *, most_ms: int = MAX_THROTTLE_MS) -> int:
        limit = self._limit(key, context)
        if limit is None:
            return 0
        rate = self._rates[key].get(limit, now_ms)
        rate.record(amount, now_ms)
        return min(rate.wait_ms(limit.value, now_ms), most_ms)

    def _limit(self, key: str, context: RequestContext) -> Limit | None:
        """Return the limit of who asks, looked up once; principals that are no users have none."""
        principal = context.principal
        if not principal.startswith(_USER):
            return None
        where = (key, principal, context.client_id)
        try:
            return self._limits[where]
        except KeyError:
            if len(self._limits) >= MAX_BUCKETS:
                self._limits.clear()
            found = self._limits[where] = self.table.client_limit(key, principal[len(_USER) :], context.client_id)
            return found


def _record_bytes(response: messages.ShareFetchResponse) -> int:
    """Return the bytes of records that a share fetch gives: acquired already, so they are paid for and not held back."""
    return sum(len(partition.records or b"") for topic in response.responses for partition in topic.partitions)


class MutationQuota:
    """Counts the partitions that one request creates or deletes."""

    def __init__(self, bucket: TokenBucket, limit: float, clock: Clock, *, is_strict: bool) -> None:
        self._bucket, self._limit, self._clock, self._is_strict = bucket, limit, clock, is_strict

    def take(self, partitions: int) -> None:
        """Count a change before it is made. Raises KafkaError THROTTLING_QUOTA_EXCEEDED: earlier ones used up the quota."""
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._bucket.wait_ms(self._limit, now_ms)
        if wait_ms and self._is_strict:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{MUTATION} is used up; try again in {wait_ms} ms")
        self._bucket.take(partitions, self._limit, now_ms)

    @property
    def wait_ms(self) -> int:
        """How long who asked must be quiet now."""
        return min(self._bucket.wait_ms(self._limit, self._clock.monotonic_ms()), MAX_THROTTLE_MS)


class _Buckets(Generic[_B]):
    """The use of each client, bounded: what no longer counts is forgotten first, then the oldest."""

    def __init__(self, make: Callable[[], _B], is_idle: Callable[[_B, Limit, int], bool]) -> None:
        self._make: Callable[[], _B] = make
        self._is_idle: Callable[[_B, Limit, int], bool] = is_idle
        self._by_client: dict[tuple[str, str], tuple[_B, Limit]] = {}

    def get(self, limit: Limit, now_ms: int) -> _B:
        found = self._by_client.get(limit.bucket)
        if found is None:
            if len(self._by_client) >= MAX_BUCKETS:
                self._make_room(now_ms)
            found = self._by_client[limit.bucket] = (self._make(), limit)
        return found[0]

    def _make_room(self, now_ms: int) -> None:
        self._by_client = {
            client: (use, limit) for client, (use, limit) in self._by_client.items() if not self._is_idle(use, limit, now_ms)
        }
        for client in list(self._by_client)[: max(0, len(self._by_client) - MAX_BUCKETS // 2)]:
            del self._by_client[client]


def _is_spent(rate: Rate, limit: Limit, now_ms: int) -> bool:
    return rate.is_spent(now_ms)


def _is_refilled(bucket: TokenBucket, limit: Limit, now_ms: int) -> bool:
    return bucket.is_full(limit.value, now_ms)
