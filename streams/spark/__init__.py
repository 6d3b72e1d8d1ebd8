"""Spark: the data source `format("logflume")`, and backfills that run a topology's history as a Spark job (architecture, D11)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .applications import AppFile, app_of
    from .archives import ArchiveUnreadable
    from .archiving import Meeting, archive_topic, check_archive, keep_archiving
    from .backfill import BackfillPlan, abort_backfill, abort_together, plan_backfill, plan_together, run_backfill, run_together
    from .batches import BatchDone, checked_plan, open_batches
    from .claims import is_handed_over
    from .continuous import run_continuously
    from .estimates import Estimate, HotKey, ReadOnce, StageEstimate, estimate_backfill, estimate_together
    from .handover import BackfillReport
    from .local import LocalRunner
    from .membership import RunsElsewhere
    from .pipelines import use_in_pipeline
    from .ranges import OffsetRange, RangeLost
    from .replacing import is_replaced
    from .runner import SparkRunner
    from .session import SparkSettings, SparkUnavailable, check_spark, close_session, cores_of, open_session, parse_conf
    from .source import LogflumeDataSource
    from .steps import Progress
    from .stream_sink import exactly_once
    from .tables import use_logflume

_HOME = {
    "AppFile": "applications",
    "ArchiveUnreadable": "archives",
    "BackfillPlan": "backfill",
    "BatchDone": "batches",
    "BackfillReport": "handover",
    "Estimate": "estimates",
    "HotKey": "estimates",
    "LocalRunner": "local",
    "LogflumeDataSource": "source",
    "Meeting": "archiving",
    "OffsetRange": "ranges",
    "Progress": "steps",
    "RangeLost": "ranges",
    "ReadOnce": "estimates",
    "RunsElsewhere": "membership",
    "SparkRunner": "runner",
    "SparkSettings": "session",
    "SparkUnavailable": "session",
    "StageEstimate": "estimates",
    "app_of": "applications",
    "archive_topic": "archiving",
    "check_archive": "archiving",
    "check_spark": "session",
    "checked_plan": "batches",
    "close_session": "session",
    "cores_of": "session",
    "estimate_backfill": "estimates",
    "estimate_together": "estimates",
    "exactly_once": "stream_sink",
    "is_handed_over": "claims",
    "is_replaced": "replacing",
    "keep_archiving": "archiving",
    "open_batches": "batches",
    "open_session": "session",
    "parse_conf": "session",
    "abort_backfill": "backfill",
    "abort_together": "backfill",
    "plan_backfill": "backfill",
    "plan_together": "backfill",
    "run_backfill": "backfill",
    "run_together": "backfill",
    "run_continuously": "continuous",
    "use_in_pipeline": "pipelines",
    "use_logflume": "tables",
}

__all__ = [
    "abort_backfill",
    "abort_together",
    "AppFile",
    "ArchiveUnreadable",
    "BackfillPlan",
    "BackfillReport",
    "BatchDone",
    "Estimate",
    "HotKey",
    "LocalRunner",
    "LogflumeDataSource",
    "Meeting",
    "OffsetRange",
    "Progress",
    "RangeLost",
    "ReadOnce",
    "RunsElsewhere",
    "SparkRunner",
    "SparkSettings",
    "SparkUnavailable",
    "StageEstimate",
    "app_of",
    "archive_topic",
    "check_archive",
    "check_spark",
    "checked_plan",
    "close_session",
    "cores_of",
    "estimate_backfill",
    "estimate_together",
    "exactly_once",
    "is_handed_over",
    "is_replaced",
    "keep_archiving",
    "open_batches",
    "open_session",
    "parse_conf",
    "plan_backfill",
    "plan_together",
    "run_backfill",
    "run_together",
    "run_continuously",
    "use_in_pipeline",
    "use_logflume",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: pyspark only for what needs it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
