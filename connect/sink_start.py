"""What a sink is told against what is there, before it starts: where it writes to, and the columns of its topics.

Columns are taken from the registry where they are not given, and misspelt ones are refused: a column that no record has would be
nulls for ever. With a name near to one of the records' it is refused before anything is written; where topics are empty when the
connector starts, at their first records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import msgspec

from logflume.log import Chunk, InvalidInput, Log, TopicPartition, near_matches
from logflume.log.schemas import Column, FormatSpec, Kind, SchemaNotFound, schema_type

from .api import SinkConnector
from .common_options import has_schemas
from .connectors.jsonl_reader import infer_columns
from .errors import ConfigErrors, Problem
from .load import ConnectorConfig, connector_spec
from .registry_options import registered_format

_SAMPLE_RECORDS = 100
_SAMPLE_WAIT_S = 5.0


def made_ready(connector: ConnectorConfig) -> ConnectorConfig:
    """Return a sink's config with the columns that the registry says its topics have, where it names none; a source's as it is.

    Raises:
        ConfigErrors: its target can't be written to; it names a column that its topics do not have; there is no schema of theirs,
            or they have different ones.
    """
    config = connector.config
    if not isinstance(connector.plugin, SinkConnector):
        return connector
    if unwritable := tuple(connector.plugin.target_problems(config)):
        raise ConfigErrors(connector.where, unwritable)
    given = config.columns("value.columns")
    if not has_schemas(config, "value"):
        return connector
    found = {topic: _columns_of(connector, topic, is_needed=not given) for topic in connector.topics}
    if given:
        for columns in found.values():
            refuse_misspelt(connector, [column.name for column in columns])
        return connector
    first, *rest = found
    if any(found[topic] != found[first] for topic in rest):
        raise _wrong(connector, f"not given, and the schemas of {', '.join(found)} differ: name the columns that all have")
    values = {**config.values, "value.columns": found[first]}
    filled = replace(connector, config=replace(config, values=values))
    problems = [problem for check in connector_spec(connector.plugin.name).checks for problem in check(filled.config)]
    if problems:
        raise ConfigErrors(connector.where, problems)
    return filled


def check_against_records(log: Log, connector: ConnectorConfig) -> None:
    """Look at the first records of a sink's topics. Raises ConfigErrors for a misspelt column."""
    if connector.is_source or connector.config.text("value.converter") != "json":
        return
    for chunk in _first_chunks(log, connector.topics):
        check_values(connector, chunk.slice(0, _SAMPLE_RECORDS).values())


def found_columns(log: Log, topic: str) -> tuple[Column, ...]:
    """Return the columns of the first records of a topic whose values are JSON objects.

    Raises:
        InvalidInput: it has none.
    """
    values = [value for chunk in _first_chunks(log, [topic]) for value in chunk.slice(0, _SAMPLE_RECORDS).values() if value]
    try:
        return infer_columns(topic, b"".join(value.replace(b"\n", b" ") + b"\n" for value in values))
    except InvalidInput:
        found = f"none of its first {len(values)} values is one" if values else "it has no values"
        raise InvalidInput(f"topic {topic}: expected JSON objects, {found}") from None


def _first_chunks(log: Log, topics: Sequence[str]) -> list[Chunk]:
    """Return what a first poll of topics brings, from their beginning."""
    found = log.admin().describe_topics(topics)
    partitions = [TopicPartition(name, each) for name, topic in found.items() for each in range(topic.partitions)]
    starts, ends = log.admin().start_offsets(partitions), log.admin().end_offsets(partitions)
    held = [partition for partition in partitions if ends[partition] > starts[partition]]
    if not held:
        return []
    consumer = log.consumer(client_id="connect-columns", offset_reset="earliest")
    try:
        consumer.assign(held)
        return consumer.poll(timeout_s=_SAMPLE_WAIT_S)
    finally:
        consumer.close()


def check_values(connector: ConnectorConfig, values: Iterable[bytes | None]) -> bool:
    """Compare a sink's columns with values in JSON; returns whether there was any to compare with.

    Raises:
        ConfigErrors: a misspelt column.
    """
    names: set[str] = set()
    for value in values:
        try:
            fields = msgspec.json.decode(value or b"null")
        except msgspec.DecodeError:
            continue  # the decoder says what is wrong with it
        names.update(fields if isinstance(fields, dict) else ())
    if names:
        refuse_misspelt(connector, names)
    return bool(names)


def refuse_misspelt(connector: ConnectorConfig, names: Collection[str]) -> None:
    """Raise ConfigErrors for columns that are not among names and near to one that no column takes."""
    columns = connector.config.columns("value.columns")
    known = {name.casefold() for name in names}
    taken = {column.name.casefold() for column in columns}
    free = [name for name in names if name.casefold() not in taken]
    near = {column.name: near_matches(column.name, free) for column in columns if column.name.casefold() not in known}
    problems = [
        Problem(
            "value.columns",
            f"no record of {', '.join(connector.topics)} has {name!r}; did you mean {' or '.join(map(repr, found))}?",
        )
        for name, found in near.items()
        if found
    ]
    if problems:
        raise ConfigErrors(connector.where, problems)


def _columns_of(connector: ConnectorConfig, topic: str, *, is_needed: bool) -> Sequence[Column]:
    """Return what the newest schema of a topic's values has; the columns that are given where there is none."""
    format = FormatSpec(connector.config.text("value.converter").upper())
    try:
        found = schema_type(registered_format(format, connector.config, "value", topic))
    except SchemaNotFound as error:
        if is_needed:
            raise _wrong(connector, f"not given, and the registry has no schema of topic {topic}: {error}") from error
        return connector.config.columns("value.columns")
    if found.kind is not Kind.STRUCT and is_needed:
        raise _wrong(connector, f"not given, and values of topic {topic} are no records: name one column of type {found}")
    return found.fields or connector.config.columns("value.columns")


def _wrong(connector: ConnectorConfig, message: str) -> ConfigErrors:
    return ConfigErrors(connector.where, [Problem("value.columns", message)])
