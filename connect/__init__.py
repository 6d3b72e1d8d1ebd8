"""Connectors move data in and out of topics: the connector API, the worker, converters, a file source, Parquet and SQL sinks."""

from .api import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Broken,
    Connector,
    Idle,
    Offset,
    Partition,
    Refused,
    RowSchema,
    SinkBatch,
    SinkConnector,
    SinkContext,
    SinkTask,
    SourceBatch,
    SourceConnector,
    SourceContext,
)
from .columns import columns_text, parse_columns
from .config import Config, fill_in
from .errors import BrokenRow, ConfigErrors, Problem, SourceChanged, TargetConflict, TargetRefused, TaskFenced
from .load import ConnectorConfig, connector_spec, load_connector
from .places import Place, places, reset_connector
from .registry import connector_names, find_connector
from .run import run_connector, run_connectors
from .secrets import Secret
from .sink_start import check_against_records, found_columns, made_ready
from .source_task import make_topics
from .spec import REQUIRED, Option, OptionType, Spec
from .status import ConnectorStatus, State, TaskStatus
from .wanted import pause_connector, paused_connectors, resume_connector
from .worker import Worker

__all__ = [
    "AT_LEAST_ONCE",
    "EXACTLY_ONCE",
    "REQUIRED",
    "Broken",
    "BrokenRow",
    "Config",
    "ConfigErrors",
    "Connector",
    "ConnectorConfig",
    "ConnectorStatus",
    "Idle",
    "Offset",
    "Option",
    "OptionType",
    "Partition",
    "Place",
    "Problem",
    "Refused",
    "RowSchema",
    "Secret",
    "SinkBatch",
    "SinkConnector",
    "SinkContext",
    "SinkTask",
    "SourceBatch",
    "SourceChanged",
    "SourceConnector",
    "SourceContext",
    "Spec",
    "State",
    "TargetConflict",
    "TargetRefused",
    "TaskFenced",
    "TaskStatus",
    "Worker",
    "check_against_records",
    "columns_text",
    "connector_names",
    "connector_spec",
    "fill_in",
    "find_connector",
    "found_columns",
    "load_connector",
    "made_ready",
    "make_topics",
    "parse_columns",
    "pause_connector",
    "paused_connectors",
    "places",
    "reset_connector",
    "resume_connector",
    "run_connector",
    "run_connectors",
]
