"""The broker's metrics in Prometheus' text format: read from its state when they are asked for, so that they cost nothing else.

prometheus-client is imported at the first question. Every metric has its unit in its name and a help text (units are base units:
bytes and seconds). Labels are bounded: API names, topics (the largest MAX_LABELLED), groups (MAX_LABELLED).
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from logflume.log.broker.coordinators import Coordinators
from logflume.log.broker.core import Core, Partition
from logflume.log.broker.groups.offsets import CommittedOffset
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.security import LoginCounts
from logflume.log.broker.transactions.metadata import TxnState
from logflume.log.histogram import Histogram
from logflume.log.protocol import tables
from logflume.log.storage import FlushScheduler

from .listener import Listener

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABELLED = 1000
"""Topics and groups with metrics of their own."""
PARTITIONS_AT_A_TIME, TRANSACTIONS_AT_A_TIME = 2_000, 10_000
"""That are looked at in one turn of the loop."""


Reading = Iterator["Metric | None"]


@dataclass(frozen=True, slots=True)
class Sources:
    """What metrics are read from."""

    core: Core
    handlers: Handlers
    coordinators: Coordinators
    listener: Listener
    flusher: FlushScheduler
    logins: LoginCounts
    started_s: float
    """Wall time of the start."""


class _Collected:
    """Metrics that were read, as prometheus-client asks for them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


class Metrics:
    """Answers `/metrics`. Use on the broker's thread: it reads the state without locks, a bounded part in each turn."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, which is written in another thread."""
        families = []
        for family in self.read():
            if family is None:
                await asyncio.sleep(0)
            else:
                families.append(family)
        return await asyncio.get_running_loop().run_in_executor(None, _written, families)

    def read(self) -> Reading:
        """Read every metric, with a pause (None) where others are to have their turn."""
        yield from self._broker()
        yield from self._requests()
        yield from self._connections()
        yield from self._security()
        yield from self._log()
        yield from self._topics()
        yield from self._groups()
        yield from self._share_groups()
        yield from self._transactions()
        yield from self._clients()

    def _partitions(self) -> Iterator[tuple[str, Partition | None]]:
        """Yield the partitions with their topics, and None instead of one for a pause."""
        for number, ((topic, _), partition) in enumerate(list(self._sources.core.partitions.items()), start=1):
            yield topic, partition
            if number % PARTITIONS_AT_A_TIME == 0:
                yield "", None

    def _broker(self) -> Iterator[Metric]:
        source, core = self._sources, self._sources.core
        info = {"version": _version(), "node_id": str(core.node_id), "cluster_id": core.cluster_id}
        yield _gauge("logflume_broker_info", "The broker's version and identity.", 1, info)
        yield _gauge("logflume_broker_uptime_seconds", "Time since the broker started.", time.time() - source.started_s)
        space = core.disk_space
        yield _gauge("logflume_disk_free_bytes", "Free space of the data directory's file system.", space.free_bytes)
        yield _gauge("logflume_disk_is_low", "1 while records are refused because the disk is almost full.", int(space.is_low))

    def _requests(self) -> Iterator[Metric]:
        traffic = self._sources.listener.traffic
        help_text = "Time from when a request was received until its answer was ready, by API."
        by_api = {tables.api(key).name: histogram for key, histogram in sorted(traffic.requests.items())}
        yield _histograms("logflume_request_duration_seconds", help_text, "api", by_api)
        yield _counter(
            "logflume_requests_failed", "Requests that ended their connection: malformed or not handled.", traffic.failed
        )
        yield _counter("logflume_network_received_bytes", "Bytes received from clients.", traffic.received_bytes)
        yield _counter("logflume_network_sent_bytes", "Bytes sent to clients.", traffic.sent_bytes)

    def _connections(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        listener, sessions = self._sources.listener, len(self._sources.handlers.fetch.sessions)
        yield _gauge("logflume_connections", "Open connections.", listener.connection_count)
        left_out = self._sources.handlers.complaints.left_out
        yield _counter("logflume_log_lines_left_out", "Lines about clients beyond one a second and address.", left_out)
        refused = CounterMetricFamily("logflume_connections_refused", "Connections refused, by the limit.", labels=["limit"])
        for limit, count in listener.admission.refused.items():
            refused.add_metric([limit], count)
        yield refused
        held_bytes = listener.budget.used_bytes
        yield _gauge("logflume_request_memory_bytes", "Memory held by requests under way and unsent responses.", held_bytes)
        yield _gauge("logflume_fetch_sessions", "Fetch sessions (KIP-227).", sessions)

    def _security(self) -> Iterator[Metric]:
        """Logins, TLS handshakes, and how long the certificates of listeners are still good for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        listener, now_s = self._sources.listener, time.time()
        logins = CounterMetricFamily("logflume_logins", "Logins by mechanism and outcome.", labels=["mechanism", "outcome"])
        for key, count in sorted(self._sources.logins.by_outcome.items()):
            logins.add_metric(key, count)
        yield logins
        handshakes = CounterMetricFamily("logflume_tls_handshakes", "TLS handshakes by outcome.", labels=["outcome"])
        for outcome, count in sorted(listener.handshakes.outcomes.items()):
            handshakes.add_metric([outcome], count)
        yield handshakes
        yield _gauge("logflume_tls_handshakes_open", "TLS handshakes under way.", len(listener.handshakes))
        left = GaugeMetricFamily(
            "logflume_certificate_expiry_seconds", "Time until a listener's certificate ends.", labels=["listener"]
        )
        failed = CounterMetricFamily(
            "logflume_certificate_reloads_failed", "Changed certificates that could not be taken over.", labels=["listener"]
        )
        for name, guard in listener.guards.items():
            if guard.tls is not None:
                left.add_metric([name], guard.tls.certificate.expires_in_s(now_s))
                failed.add_metric([name], guard.tls.failed_reloads)
        yield left
        yield failed

    def _log(self) -> Reading:
        core, flusher = self._sources.core, self._sources.flusher
        yield _gauge("logflume_topics", "Topics.", len(core.cluster.topics))
        yield _gauge("logflume_partitions", "Partitions.", len(core.partitions))
        failed = damages = 0
        for _, partition in self._partitions():
            if partition is None:
                yield None
            else:
                failed += partition.log.has_failed
                damages += len(partition.log.damages)
        yield _gauge("logflume_partitions_failed", "Partitions that take nothing since a disk error.", failed)
        yield _gauge("logflume_damages", "Places in logs found bad since they were opened; none is served.", damages)
        offline = sum(key not in core.partitions for key in core.troubles.by_partition)
        yield _gauge("logflume_partitions_offline", "Partitions that could not be opened; others are served.", offline)
        help_text = "Time of a group commit: fsync of everything that was waiting."
        yield _histograms("logflume_flush_duration_seconds", help_text, "", {"": flusher.durations})

    def _topics(self) -> Reading:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        sizes: dict[str, int] = {}
        appended: dict[str, int] = {}
        for topic, partition in self._partitions():
            if partition is None:
                yield None
            else:
                sizes[topic] = sizes.get(topic, 0) + partition.log.size_bytes
                appended[topic] = appended.get(topic, 0) + partition.log.log_end_offset
        size = GaugeMetricFamily("logflume_topic_size_bytes", "Size of a topic on disk.", labels=["topic"])
        records = CounterMetricFamily(
            "logflume_topic_records_appended",
            "Sum of the log end offsets of a topic: records and markers so far.",
            labels=["topic"],
        )
        for topic in heapq.nlargest(MAX_LABELLED, sizes, key=lambda name: sizes[name]):
            size.add_metric([topic], sizes[topic])
            records.add_metric([topic], appended[topic])
        yield size
        yield records

    def _groups(self) -> Reading:
        from prometheus_client.core import GaugeMetricFamily

        coordinator = self._sources.coordinators.groups
        groups = list(coordinator.groups())
        kinds = GaugeMetricFamily("logflume_groups", "Consumer groups by protocol.", labels=["protocol"])
        for kind, count in sorted(Counter(group.kind for group in groups).items()):
            kinds.add_metric([kind], count)
        yield kinds
        members = GaugeMetricFamily("logflume_group_members", "Members of a group.", labels=["group"])
        lags = GaugeMetricFamily(
            "logflume_group_lag_records", "Records between a group's committed offsets and the end.", labels=["group", "topic"]
        )
        left = PARTITIONS_AT_A_TIME
        for group in groups[:MAX_LABELLED]:
            members.add_metric([group.group_id], len(group.members))
            committed = list(coordinator.committed_offsets(group.group_id).items())
            lag_of: dict[str, int] = {}
            for start in range(0, len(committed), PARTITIONS_AT_A_TIME):
                some = committed[start : start + PARTITIONS_AT_A_TIME]
                self._add_lag(lag_of, some)
                left -= len(some)
                if left <= 0:
                    left = PARTITIONS_AT_A_TIME
                    yield None
            for topic, lag in lag_of.items():
                lags.add_metric([group.group_id, topic], lag)
        yield members
        yield lags

    def _share_groups(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        share = self._sources.coordinators.share
        groups = list(share.groups.all())
        yield _gauge("logflume_share_groups", "Share groups (KIP-932).", len(groups))
        yield _gauge("logflume_share_sessions", "Share sessions.", len(share.fetch.sessions))
        members = GaugeMetricFamily("logflume_share_group_members", "Members of a share group.", labels=["group"])
        in_flight = GaugeMetricFamily(
            "logflume_share_group_in_flight_records",
            "Records of a share group that are given out or wait behind such.",
            labels=["group"],
        )
        for group in groups[:MAX_LABELLED]:
            members.add_metric([group.group_id], len(group.members))
            states = [partition.state for partition in share.partitions.of_group(group.group_id)]
            in_flight.add_metric([group.group_id], sum(state.next_offset - state.start_offset for state in states))
        yield members
        yield in_flight

    def _add_lag(self, lag: dict[str, int], some: Sequence[tuple[tuple[str, int], CommittedOffset]]) -> None:
        for (topic, index), committed in some:
            partition = self._sources.core.partition(topic, index)
            if partition is not None:
                lag[topic] = lag.get(topic, 0) + max(0, partition.log.durable_offset - committed.offset)

    def _clients(self) -> Iterator[Metric]:
        """Who is over a quota, and what clients tell of themselves (KIP-714)."""
        from prometheus_client.core import CounterMetricFamily

        core, counts = self._sources.core, self._sources.core.telemetry.counts
        throttled = core.quotas.throttled_count
        yield _counter("logflume_quota_throttled", "Answers that told a client over its quota to be quiet.", throttled)
        known = core.telemetry.client_count
        yield _gauge("logflume_telemetry_clients", "Clients that asked which of their metrics are wanted.", known)
        yield _counter("logflume_telemetry_pushes", "Payloads of metrics that clients pushed.", counts.pushed)
        yield _counter("logflume_telemetry_received_bytes", "Bytes of metrics that clients pushed.", counts.pushed_bytes)
        refused = CounterMetricFamily("logflume_telemetry_refused", "Refused requests of telemetry, by error.", labels=["error"])
        for error, count in sorted(counts.refused.items()):
            refused.add_metric([error], count)
        yield refused

    def _transactions(self) -> Reading:
        now_ms = self._sources.core.clock.wall_ms()
        transactions = list(self._sources.coordinators.transactions.transactions())
        opened: list[int] = []
        for start in range(0, len(transactions), TRANSACTIONS_AT_A_TIME):
            some = transactions[start : start + TRANSACTIONS_AT_A_TIME]
            opened += [txn.start_ms for txn in some if txn.state is TxnState.ONGOING]
            yield None
        yield _gauge("logflume_transactional_ids", "Transactional ids that are remembered.", len(transactions))
        yield _gauge("logflume_transactions_open", "Transactions that are neither committed nor aborted.", len(opened))
        oldest_s = max(0, now_ms - min(opened, default=now_ms)) / 1000
        yield _gauge("logflume_transactions_oldest_open_seconds", "Age of the oldest open transaction, 0 without one.", oldest_s)


def _written(families: Sequence[Metric]) -> bytes:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry: Any = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collected(families))
    return generate_latest(registry)


def _version() -> str:
    try:
        return metadata.version("logflume")
    except metadata.PackageNotFoundError:
        return "unknown"


def _gauge(name: str, help_text: str, value: float, labels: dict[str, str] | None = None) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, help_text, labels=list(labels or {}))
    family.add_metric(list((labels or {}).values()), value)
    return family


def _counter(name: str, help_text: str, value: float) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, help_text, value=value)


def _histograms(name: str, help_text: str, label: str, by_value: dict[str, Histogram]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, help_text, labels=[label] if label else [])
    for value, histogram in by_value.items():
        family.add_metric([value] if label else [], histogram.cumulative(), histogram.total_s)
    return family
