"""What an instance is doing as Prometheus metrics; the names follow Kafka Streams' metrics where it has them.

prometheus-client is imported at the first question. Every metric has its unit in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .status import EngineState, EngineStatus, TaskStatus

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(status: EngineStatus) -> bytes:
    """Return a status in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    class Collector:
        def collect(self) -> Iterator[Metric]:
            return _metrics(status)

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(Collector())
    return generate_latest(registry)


def _metrics(status: EngineStatus) -> Iterator[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    same = {"application": status.application, "instance_id": status.instance_id}

    def family(kind: Any, name: str, text: str, rows: list[tuple[dict[str, str], float]]) -> Metric:
        labels = [*same, *(rows[0][0] if rows else ())]
        made: Metric = kind(f"logflume_streams_{name}", text, labels=labels)
        for more, value in rows:
            made.add_metric([*same.values(), *more.values()], value)  # type: ignore[attr-defined]
        return made

    def gauge(name: str, text: str, rows: list[tuple[dict[str, str], float]]) -> Metric:
        return family(GaugeMetricFamily, name, text, rows)

    def counter(name: str, text: str, rows: list[tuple[dict[str, str], float]]) -> Metric:
        return family(CounterMetricFamily, name, text, rows)

    def per_task(value: Callable[[TaskStatus], float]) -> list[tuple[dict[str, str], float]]:
        return [({"task": task.name}, value(task)) for task in status.tasks]

    commit = status.commit
    yield gauge("state", "1 for the state the instance is in.", [({"state": s}, float(s is status.state)) for s in EngineState])
    yield gauge("tasks", "Tasks that the instance runs.", [({}, len(status.tasks))])
    yield counter("records_in", "Records of the application's source topics processed.", [({}, status.records_in)])
    yield counter("records_out", "Records put out to sinks.", [({}, status.records_out)])
    yield counter("repartitioned_records", "Records read from own repartition topics.", [({}, status.repartitioned)])
    places = [({"node": each.node, "topic": each.topic, "reason": each.reason}, float(each.records)) for each in status.left_out]
    yield counter("dropped_records", "Records left out, by node, topic and reason.", places)
    yield counter("commits", "Task commits.", [({}, commit.commits)])
    yield counter("aborts", "Sessions that ended without a commit.", [({}, commit.aborts)])
    yield gauge("commit_latency_p50_seconds", "Of the last 512 task commits.", [({}, commit.latency_p50_ms / 1000)])
    yield gauge("commit_latency_max_seconds", "Of the last 512 task commits.", [({}, commit.latency_max_ms / 1000)])
    yield gauge("restore_remaining_records", "Records of changelogs to be read.", [({}, status.restore_remaining_records)])
    yield gauge("restore_rate_records_per_second", "Records of changelogs read.", [({}, status.restore_records_per_s)])
    standbys = [({"task": each.name}, float(each.lag_records)) for each in status.standbys if each.lag_records is not None]
    yield gauge("standby_lag_records", "What a copy of a task's state lacks of its changelogs.", standbys)
    blocked = [({"task": status.blocked.task}, status.blocked.lasted_s)] if status.blocked else []
    yield gauge("blocked_seconds", "How long a task has been in one call.", blocked)
    yield counter("task_records_in", "Records processed by a task since it was opened.", per_task(lambda t: t.records_in))
    yield counter("task_records_out", "Records put out by a task since it was opened.", per_task(lambda t: t.records_out))
    yield gauge("task_stream_time_seconds", "Largest event time seen, since 1970.", per_task(lambda t: t.stream_time_ms / 1000))
    yield gauge("task_entries_in_memory", "Entries of stores in memory.", per_task(lambda t: t.entries_in_memory))
    yield gauge("task_state_disk_bytes", "What stores take on disk, about.", per_task(lambda t: t.state_disk_bytes))
    inputs = [
        ({"task": task.name, "topic": each.topic, "partition": str(each.partition)}, each)
        for task in status.tasks
        for each in task.inputs
    ]
    known = [(labels, float(each.lag_records)) for labels, each in inputs if each.lag_records is not None]
    yield gauge("input_lag_records", "Records of an input that are not processed yet.", known)
    yield gauge("input_lag_seconds", "How far behind the clock an input is, 0 when all is processed.", [
        (labels, each.lag_ms / 1000) for labels, each in inputs if each.lag_ms is not None
    ])  # fmt: skip
    yield gauge(
        "input_buffered_records",
        "Records fetched and not processed.",
        [(labels, float(each.buffered_records)) for labels, each in inputs],
    )
