"""Clients that tell their metrics: what each was asked for, when it may speak, how much it told (KIP-714)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from crc32c import crc32c

from logflume.log.broker.ports import Clock
from logflume.log.protocol import ErrorCode, KafkaError
from logflume.log.protocol.classes import ZERO_UUID

from .subscriptions import ALL_METRICS, Client, Subscription, SubscriptionStore

MAX_CLIENTS = 16_384
"""Clients that are remembered; beyond that the one that was silent for longest is forgotten."""
DEFAULT_INTERVAL_MS = 300_000
ZSTD, LZ4, GZIP, SNAPPY = 4, 3, 1, 2
ACCEPTED_CODECS = (ZSTD, LZ4, GZIP, SNAPPY)
_RESERVED_IDS = (ZERO_UUID, (1).to_bytes(16, "big"))
_ASK_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
"""After these errors a client may ask for its subscription at once."""


@dataclass(slots=True)
class _Instance:
    client: Client
    connection_id: int
    version: int
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    asked_ms: int | None = None
    pushed_ms: int | None = None
    may_push: bool = False
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class TelemetryCounts:
    """What came so far: payloads and bytes that were accepted, and refusals by error."""

    pushed: int = 0
    pushed_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client is asked for. `metrics`: prefixes of names; none for nothing, `*` for all."""

    client_instance_id: bytes
    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


class ClientTelemetry:
    """All clients that ask for subscriptions or push metrics. What they push is counted; nothing is kept of it.

    Invariant: `_by_connection` and `_instances` hold the same clients; the longest silent comes first in `_instances`.
    """

    def __init__(
        self, store: SubscriptionStore, clock: Clock, random_bytes: Callable[[int], bytes], *, max_bytes: Callable[[], int]
    ) -> None:
        self._store, self._clock, self._random_bytes, self._max_bytes = store, clock, random_bytes, max_bytes
        self._instances: dict[bytes, _Instance] = {}
        self._by_connection: dict[int, set[bytes]] = {}
        self._software: dict[int, tuple[str, str]] = {}
        self.counts = TelemetryCounts()

    @property
    def client_count(self) -> int:
        return len(self._instances)

    @property
    def is_wanted(self) -> bool:
        """Return whether there is a subscription, of whichever clients."""
        return bool(self._store.subscriptions)

    def software_of(self, connection_id: int) -> tuple[str, str]:
        """Return name and version that a connection told of its client, "" if it did not."""
        return self._software.get(connection_id, ("", ""))

    def set_software(self, connection_id: int, name: str, version: str) -> None:
        """Note what a connection told of its client's software (ApiVersions)."""
        self._software[connection_id] = (name, version)

    def connection_closed(self, connection_id: int) -> None:
        self._software.pop(connection_id, None)
        for instance_id in self._by_connection.pop(connection_id, ()):
            self._instances.pop(instance_id, None)

    def ask(self, instance_id: bytes, client: Client, connection_id: int) -> Request:
        """Return what a client is asked for; a client without an id gets one. Raises KafkaError THROTTLING_QUOTA_EXCEEDED."""
        if instance_id == ZERO_UUID:
            instance_id = self._random_bytes(16)
        instance = self._instance(instance_id, client, connection_id)
        now_ms = self._clock.monotonic_ms()
        last_ms = max((at_ms for at_ms in (instance.asked_ms, instance.pushed_ms) if at_ms is not None), default=None)
        is_early = last_ms is not None and now_ms - last_ms < instance.interval_ms
        if is_early and instance.last_error not in _ASK_AGAIN:
            raise self._refuse(instance, ErrorCode.THROTTLING_QUOTA_EXCEEDED, "asked again before its interval was over")
        instance.asked_ms, instance.may_push, instance.last_error = now_ms, True, ErrorCode.NONE
        return Request(instance_id, instance.subscription_id, instance.interval_ms, instance.metrics)

    def push(
        self,
        instance_id: bytes,
        client: Client,
        connection_id: int,
        *,
        subscription_id: int,
        is_terminating: bool,
        codec: int,
        size_bytes: int,
    ) -> None:
        """Take what a client tells. Raises KafkaError."""
        if instance_id in _RESERVED_IDS:
            self.counts.refused[ErrorCode.INVALID_REQUEST.name] += 1
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a push needs the instance id that the client was given")
        instance = self._instance(instance_id, client, connection_id)
        if instance.is_terminating:
            raise self._refuse(instance, ErrorCode.INVALID_REQUEST, "spoke again after it said that it ends")
        instance.is_terminating = is_terminating
        now_ms = self._clock.monotonic_ms()
        is_due = instance.may_push or instance.pushed_ms is None or now_ms - instance.pushed_ms >= instance.interval_ms
        if not is_due and not is_terminating:
            raise self._refuse(instance, ErrorCode.THROTTLING_QUOTA_EXCEEDED, "pushed again before its interval was over")
        if is_due:
            instance.pushed_ms, instance.may_push = now_ms, False
        if subscription_id != instance.subscription_id:
            raise self._refuse(instance, ErrorCode.UNKNOWN_SUBSCRIPTION_ID, f"has subscription {instance.subscription_id}")
        if codec != 0 and codec not in ACCEPTED_CODECS:
            raise self._refuse(instance, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"used compression type {codec}")
        if size_bytes > self._max_bytes():
            text = f"pushed {size_bytes} bytes; expected at most {self._max_bytes()} (telemetry.max.bytes)"
            raise self._refuse(instance, ErrorCode.TELEMETRY_TOO_LARGE, text)
        instance.last_error = ErrorCode.NONE
        if size_bytes:
            self.counts.pushed += 1
            self.counts.pushed_bytes += size_bytes

    def _refuse(self, instance: _Instance, error: ErrorCode, what: str) -> KafkaError:
        instance.last_error = error
        self.counts.refused[error.name] += 1
        return KafkaError(error, f"client {instance.client.client_instance_id} {what}")

    def _instance(self, instance_id: bytes, client: Client, connection_id: int) -> _Instance:
        """Return the client, as the last in line, made or made anew if the subscriptions changed."""
        known = self._instances.pop(instance_id, None)
        if known is None or known.version != self._store.version:
            owner = connection_id if known is None else known.connection_id
            known = self._make(instance_id, client._replace(client_instance_id=_uuid_text(instance_id)), owner)
            if len(self._instances) >= MAX_CLIENTS:
                self._forget(next(iter(self._instances)))
        self._instances[instance_id] = known
        self._by_connection.setdefault(known.connection_id, set()).add(instance_id)
        return known

    def _make(self, instance_id: bytes, client: Client, connection_id: int) -> _Instance:
        fitting = [each for each in self._store.subscriptions if each.fits(client)]
        metrics = _joined(fitting)
        interval_ms = min((each.interval_ms for each in fitting), default=DEFAULT_INTERVAL_MS)
        content = f"{metrics}{interval_ms}".encode()
        subscription_id = crc32c(content) ^ int.from_bytes(instance_id[-4:], "big")
        signed = subscription_id - (1 << 32) if subscription_id >= 1 << 31 else subscription_id
        return _Instance(client, connection_id, self._store.version, metrics, interval_ms, signed)

    def _forget(self, instance_id: bytes) -> None:
        connection_id = self._instances.pop(instance_id).connection_id
        own = self._by_connection.get(connection_id, set())
        own.discard(instance_id)
        if not own:
            self._by_connection.pop(connection_id, None)


def _joined(subscriptions: list[Subscription]) -> tuple[str, ...]:
    """Return the prefixes of all subscriptions, each once; `*` alone if one of them wants everything."""
    metrics = dict.fromkeys(prefix for each in subscriptions for prefix in each.metrics)
    return (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))


def _uuid_text(instance_id: bytes) -> str:
    """Return an id as Kafka writes it: URL-safe base64 without padding."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(instance_id).rstrip(b"=").decode()
