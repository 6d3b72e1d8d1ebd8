"""The options that every source or every sink has; names are Kafka Connect's where it has them. Data only."""

from __future__ import annotations

import re
from collections.abc import Iterable

from logflume.log import is_internal_topic
from logflume.log.schemas import FORMATS, format_of

from .config import Config
from .errors import Problem
from .registry_options import registry_options, registry_problems
from .spec import Option, OptionType, Spec

NONE, ALL = "none", "all"
CONVERTERS = ("json", "string", "delimited", "kafka", "bytes", "avro", "protobuf", "json_sr", "none")
_NEEDS_COLUMNS = (
    "required: Columns of the value, in SQL type syntax (`name STRING, mean_delay DOUBLE`); `logflume connect columns TOPIC` "
    "prints those of a topic of JSON"
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


def _valid_name(value: str) -> str | None:
    return None if _NAME.match(value) else f"expected 1 to 128 letters, digits, '.', '_' or '-', found {value!r}"


def _valid_topic(value: str) -> str | None:
    if _TOPIC.match(value) and value not in (".", ".."):
        return "it is internal: expected a topic of your own" if is_internal_topic(value) else None
    return f"expected a topic name (1 to 249 letters, digits, '.', '_' or '-'), found {value!r}"


def _valid_topics(values: tuple[str, ...]) -> str | None:
    if not values:
        return "expected at least one topic"
    return next((wrong for value in values if (wrong := _valid_topic(value))), None)


def _head(connector: str) -> tuple[Option, ...]:
    return (
        Option(
            name="name", type=OptionType.STRING, check=_valid_name, doc="Name of the connector; its offsets are kept under it."
        ),
        Option(name="connector", type=OptionType.STRING, allowed=(connector,), doc="Short name of the plug-in."),
        Option(name="tasks.max", type=OptionType.INTEGER, default=1, minimum=1, doc="Most tasks to split the work into."),
    )


def _errors(default_topic: str) -> tuple[Option, ...]:
    return (
        Option(
            name="errors.tolerance",
            type=OptionType.STRING,
            default=NONE,
            allowed=(NONE, ALL),
            doc="none: stop at what cannot be processed, say where and why; all: keep it in the dead-letter topic, go on.",
        ),
        Option(
            name="errors.deadletterqueue.topic.name",
            type=OptionType.STRING,
            default="",
            check=_valid_topic,
            doc=f"Topic that keeps what cannot be processed, with the cause in headers; {default_topic} when not given.",
        ),
    )


def _converter(side: str, default: str) -> Option:
    return Option(
        name=f"{side}.converter",
        type=OptionType.STRING,
        default=default,
        allowed=CONVERTERS,
        doc=f"How the {side} is written: json, string (text), delimited (CSV), kafka (as Kafka's serializers do), bytes, none; "
        "with a schema registry: avro, protobuf, json_sr.",
    )


_REGISTRY = Option(
    name="schema.registry.url",
    type=OptionType.STRING,
    default="",
    doc="Where the schemas of avro, protobuf and json_sr are; by default $LOGFLUME_REGISTRY, else http://127.0.0.1:8081.",
)


def source_spec(connector: str, own: Spec) -> Spec:
    """Return the whole spec of a source: the common options around its own."""
    return Spec(
        options=(
            *_head(connector),
            Option(
                name="topic", type=OptionType.STRING, check=_valid_topic, doc="Topic to write to; created when it is missing."
            ),
            *own.options,
            _converter("key", "kafka"),
            _converter("value", "json"),
            _REGISTRY,
            *registry_options(),
            Option(
                name="delimiter",
                type=OptionType.STRING,
                default=",",
                check=_one_character,
                doc="Delimiter of the delimited converter.",
            ),
            Option(
                name="topic.partitions",
                type=OptionType.INTEGER,
                default=1,
                minimum=1,
                doc="Partitions of the topic when it is created.",
            ),
            Option(
                name="topic.config.*",
                type=OptionType.TABLE,
                default={},
                doc="Configs of the topic when it is created, such as `topic.config.cleanup.policy = compact` for a table. "
                "`retention.ms` is -1 unless given: it goes by event time, so files of last year would be deleted at once.",
            ),
            *_errors("<name>.dead-letters"),
        ),
        checks=(registry_problems, *own.checks),
    )


def sink_spec(connector: str, own: Spec) -> Spec:
    """Return the whole spec of a sink: the common options around its own."""
    return Spec(
        options=(
            *_head(connector),
            Option(name="topics", type=OptionType.LIST, check=_valid_topics, doc="Topics to read, from their beginning."),
            Option(
                name="value.columns",
                type=OptionType.COLUMNS,
                default=(),
                doc="Columns of the value, in SQL type syntax (`name STRING, mean_delay DOUBLE`); not given: what the registry "
                "says, with the converters avro, protobuf and json_sr.",
            ),
            Option(
                name="key.columns",
                type=OptionType.COLUMNS,
                default=(),
                doc="Columns of the key, in SQL type syntax; none: the key is not read.",
            ),
            _converter("key", "kafka"),
            _converter("value", "json"),
            _REGISTRY,
            *registry_options(),
            Option(
                name="delimiter",
                type=OptionType.STRING,
                default=",",
                check=_one_character,
                doc="Delimiter of the delimited converter.",
            ),
            Option(
                name="key.windowed",
                type=OptionType.BOOLEAN,
                default=False,
                doc="Whether keys end in a window start (8 bytes, big-endian), as those of windowed results do.",
            ),
            Option(
                name="window.size.ms",
                type=OptionType.INTEGER,
                default=0,
                minimum=0,
                doc="Size of the windows; adds a column with the window's end. 0: no such column.",
            ),
            Option(
                name="window.start.column",
                type=OptionType.STRING,
                default="window_start",
                doc="Name of the column with the window's start.",
            ),
            Option(
                name="window.end.column",
                type=OptionType.STRING,
                default="window_end",
                doc="Name of the column with the window's end.",
            ),
            Option(
                name="record.timestamp.column",
                type=OptionType.STRING,
                default="",
                doc="Add the record's timestamp as a column of this name.",
            ),
            Option(
                name="record.offset.column",
                type=OptionType.STRING,
                default="",
                doc="Add the record's offset as a column of this name.",
            ),
            Option(
                name="record.partition.column",
                type=OptionType.STRING,
                default="",
                doc="Add the record's partition as a column of this name.",
            ),
            *own.options,
            Option(
                name="offset.flush.interval.ms",
                type=OptionType.INTEGER,
                default=1000,
                minimum=10,
                doc="How often what was read is made durable in the target.",
            ),
            *_errors("<name>.dead-letters"),
        ),
        checks=(registry_problems, _sink_columns, *own.checks),
    )


def _one_character(value: str) -> str | None:
    return None if len(value) == 1 else f"expected one character, found {value!r}"


def has_schemas(config: Config, side: str) -> bool:
    """Whether a registry says which columns a side has."""
    name = config.text(f"{side}.converter").upper()
    return name in FORMATS and format_of(name).schemas is not None


def _sink_columns(config: Config) -> Iterable[Problem]:
    if not config.columns("value.columns") and not has_schemas(config, "value"):
        yield Problem("value.columns", _NEEDS_COLUMNS)
    if config.flag("key.windowed") and not config.columns("key.columns"):
        yield Problem("key.windowed", "needs key.columns")
    if config.integer("window.size.ms") and not config.flag("key.windowed"):
        yield Problem("window.size.ms", "needs key.windowed = true")
    names = [column.name for side in ("key.columns", "value.columns") for column in config.columns(side)]
    names += [config.text(f"record.{part}.column") for part in ("timestamp", "offset", "partition")]
    if config.flag("key.windowed"):
        names += [
            config.text("window.start.column"),
            config.text("window.end.column") if config.integer("window.size.ms") else "",
        ]
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        yield Problem("value.columns", f"column {name!r} is given twice among key, value, window and record columns")
