"""Session properties: which SET knows, and what they do."""

from __future__ import annotations

from collections.abc import Mapping

from logflume.log import near_matches

from .ast import Span
from .dead_letters import DEAD_LETTER_NAMES, DEAD_LETTERS, check_letter_topic
from .errors import StatementError
from .idle_properties import IDLE, idle

TABLE_SCAN = "ksql.query.pull.table.scan.enabled"
RANGE_SCAN = "ksql.query.pull.range.scan.enabled"
LIMIT_CLAUSE = "ksql.query.pull.limit.clause.enabled"
CACHE_BYTES = "ksql.streams.cache.max.bytes.buffering"
PUSH_TOKENS = "ksql.query.push.v2.continuation.tokens.enabled"
PUSH_TOKEN = "request.ksql.query.push.continuation.token"
COMPUTED = "logflume.query.once.enabled"
ENGINE, LIVE, SPARK = "engine", "live", "spark"
CACHE_NAMES = (CACHE_BYTES, "cache.max.bytes.buffering", "ksql.streams.statestore.cache.max.bytes", "statestore.cache.max.bytes")
ASSERT_TOPIC_MS = "ksql.assert.topic.default.timeout.ms"
ASSERT_SCHEMA_MS = "ksql.assert.schema.default.timeout.ms"
_BOOLEANS = frozenset(
    {
        *(TABLE_SCAN, RANGE_SCAN, LIMIT_CLAUSE, COMPUTED, PUSH_TOKENS),
        *("ksql.persistence.wrap.single.values", "ksql.timestamp.throw.on.invalid", "ksql.new.query.planner.enabled"),
    }
)
_NUMBERS = frozenset({*CACHE_NAMES, ASSERT_TOPIC_MS, ASSERT_SCHEMA_MS})

# name -> what it does. Names of ksqlDB, where it has one.
PROPERTIES: Mapping[str, str] = {
    ENGINE: "what runs queries that are made or resumed now: live (the default), or spark, by `logflume sql on-spark`",
    "auto.offset.reset": "where SELECT ... EMIT CHANGES starts: earliest (the default) or latest",
    "ksql.streams.auto.offset.reset": "the same",
    CACHE_BYTES: "0: a table puts out each change; else, by default, the last of each key at every task commit",
    **dict.fromkeys(CACHE_NAMES[1:], f"the same as {CACHE_BYTES}"),
    DEAD_LETTERS: "where queries that are made now keep records that they cannot read, evaluate or put out: a topic, '' for none",
    **dict.fromkeys(DEAD_LETTER_NAMES[1:], "the same"),
    ASSERT_TOPIC_MS: "how many milliseconds ASSERT TOPIC waits, 1000 by default",
    ASSERT_SCHEMA_MS: "how many milliseconds ASSERT SCHEMA waits, 1000 by default",
    "ksql.persistence.default.format.key": "key format where none is given, KAFKA by default",
    "ksql.persistence.default.format.value": "value format where none is given",
    "ksql.persistence.wrap.single.values": "whether a single value column is written as a record with one field, true by default",
    "ksql.schema.registry.url": "where the schemas of AVRO, PROTOBUF and JSON_SR are, e.g. http://127.0.0.1:8081",
    "ksql.output.topic.name.prefix": "put before the names of topics that CREATE ... AS makes",
    TABLE_SCAN: "whether a pull query may read all rows of a table, true by default; else WHERE gives its keys",
    RANGE_SCAN: "whether it may do so for a range of keys, true by default",
    LIMIT_CLAUSE: "whether a pull query may have LIMIT, true by default",
    COMPUTED: "whether a query that ends may have JOIN, GROUP BY and the like, computed once from its topics; true by default",
    PUSH_TOKENS: "whether SELECT ... EMIT CHANGES of one stream tells tokens, behind which a later one goes on; false by default",
    PUSH_TOKEN: "the token behind which it goes on",
    "ksql.functions.collect_list.limit": "most items that COLLECT_LIST keeps",
    "ksql.functions.collect_set.limit": "most items that COLLECT_SET keeps",
    "ksql.timestamp.throw.on.invalid": "whether a record without an event time stops the query, false by default",
    "ksql.new.query.planner.enabled": "whether a stream's SELECT says which key columns stay, false by default",
}


def check_property(name: str, value: str | None, span: Span) -> None:
    """Refuse a property that nothing reads, or a value that cannot be.

    Raises:
        StatementError: with near matches.
    """
    if name not in PROPERTIES:
        found = idle(name)
        if found is not None and (value is None or value.lower() in found.so_anyway):
            return
        if found is not None:
            raise StatementError(f"The property '{name}' does nothing here: {found.reason}.{_so_anyway(found.so_anyway)}", span)
        near = near_matches(name, [*PROPERTIES, *IDLE])
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else f"; known are {', '.join(PROPERTIES)}"
        raise StatementError(f"Unknown property: {name}{hint}", span)
    if value is not None and name.endswith("auto.offset.reset") and value.lower() not in ("earliest", "latest"):
        raise StatementError(f"'{name}' is 'earliest' or 'latest', found '{value}'", span)
    if value and name in DEAD_LETTER_NAMES:
        check_letter_topic(value, span)
    if name == ENGINE and value not in (None, LIVE, SPARK):
        raise StatementError(f"'{name}' is '{LIVE}' or '{SPARK}', found '{value}'", span)
    if value is not None and name in _NUMBERS and not (value.isdecimal() and value.isascii()):
        what = "milliseconds" if name.endswith(".ms") else "bytes"
        raise StatementError(f"'{name}' is a number of {what}, found '{value}'", span)
    if value is not None and name in _BOOLEANS and value.lower() not in ("true", "false"):
        raise StatementError(f"'{name}' is 'true' or 'false', found '{value}'", span)


def is_known(name: str) -> bool:
    """Tell whether a property is one that something reads, or one of ksqlDB's that changes nothing here."""
    return name in PROPERTIES or idle(name) is not None


def _so_anyway(values: frozenset[str]) -> str:
    return f" The value {' or '.join(repr(v) for v in sorted(values))} is taken." if values else ""
