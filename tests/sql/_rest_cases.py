"""Runs cases of the REST interface (ksqlDB's JSON form) through the real server: statements, inputs, answers, errors, topics."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from logflume.log import LogflumeError, TopicPartition, connect
from logflume.log.interfaces import Log
from logflume.log.schemas import MemoryRegistry, RegisteredSchema, register_schema
from logflume.sql import SqlEngine, ast
from logflume.sql.parser import parse_statement
from logflume.sql.properties import CACHE_BYTES
from logflume.sql.rest import SqlServer
from logflume.sql.scripts import split_script
from logflume.sql.testing.cases import CaseRecord, _record, _topic
from logflume.sql.testing.compare import difference
from logflume.sql.testing.values import decode, encode, encode_key

PATIENCE_S, LIVE_TIMEOUT_S = 20.0, 120.0
PARTITIONS = 4
"""Of topics that a case does not make, as in the server that the cases were recorded with."""


@dataclass(frozen=True, slots=True)
class RestCase:
    """One case, for one format."""

    file: str
    name: str
    statements: tuple[str, ...]
    test: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"{self.file} - {self.name}"


def load(path: Path) -> Iterator[RestCase]:
    """Yield the cases of a file, one for each format."""
    for test in json.loads(path.read_text(), parse_float=Decimal)["tests"]:
        for form in test.get("format") or [None]:
            statements = tuple(s.replace("{FORMAT}", form or "{FORMAT}") for s in test["statements"])
            yield RestCase(path.stem, f"{test['name']} - {form}" if form else test["name"], statements, test)


def run(case: RestCase, folder: Path) -> str | None:
    """Run a case in a log of its own; return what differs, None when nothing does."""
    registry = MemoryRegistry()
    with ExitStack() as stack:
        log = stack.enter_context(connect(folder / "log"))
        engine = stack.enter_context(SqlEngine(log, folder / "sql", registry=registry.location))
        server = stack.enter_context(SqlServer(engine))
        client = stack.enter_context(httpx.Client(base_url=server.address, timeout=LIVE_TIMEOUT_S))
        return _Run(case, log, engine, client, registry).judge()


class _Run:
    def __init__(self, case: RestCase, log: Log, engine: SqlEngine, client: httpx.Client, registry: MemoryRegistry) -> None:
        self.case, self.log, self.engine, self.client, self.registry = case, log, engine, client, registry
        # As ksqlDB is: it refuses what would have to be computed.
        self.properties = {
            "auto.offset.reset": "earliest",
            CACHE_BYTES: "0",
            "logflume.query.once.enabled": "false",
            **case.test.get("properties", {}),
        }
        self.error = case.test.get("expectedError")

    def judge(self) -> str | None:
        found = [s for text in self.case.statements for s in split_script(text)]
        selects = [f"{s.text};" for s in found if s.text.lstrip().upper().startswith("SELECT")]
        others = [f"{s.text};" for s in found if not s.text.lstrip().upper().startswith("SELECT")]
        self._make_topics(others)
        answer = self.client.post("/ksql", json={"ksql": "\n".join(others), "streamsProperties": self._settings()})
        if answer.status_code != 200:
            return self._judged_error(answer)
        expected = list(self.case.test.get("responses", []))
        admin = [e["admin"] for e in expected if "admin" in e]
        if (differs := _entities(answer.json(), admin)) is not None:
            return differs
        queries = [e["query"] for e in expected if "query" in e]
        if self.case.test.get("inputConditions", {}).get("waitForActivePushQuery"):
            return self._live(selects[0], queries[0])
        self._write_inputs()
        for select, rows in zip(selects, queries or [None] * len(selects), strict=False):
            differs = self._asked(select, rows)
            if differs is not None or self.error is not None:
                return differs
        if self.error is not None:
            return f"expected an error: {self.error}"
        return self._outputs()

    def _settings(self) -> dict[str, Any]:
        return {name: str(value) for name, value in self.properties.items()}

    def _make_topics(self, statements: list[str]) -> None:
        admin = self.log.admin()
        for raw in self.case.test.get("topics", []):
            topic = _topic(raw, self.case.id)
            admin.create_topic(topic.name, partitions=raw.get("partitions", PARTITIONS))
            for schema in topic.schemas:
                self.registry.put(
                    f"{topic.name}-{schema.side}", RegisteredSchema(schema.id or 0, schema.kind, schema.text, schema.references)
                )
        for text in statements:
            try:
                statement = parse_statement(text)
            except LogflumeError:
                continue
            if isinstance(statement, ast.CreateSource):
                given = {p.name: p.value for p in statement.properties}
                topic = given.get("KAFKA_TOPIC")
                if topic and "PARTITIONS" not in given and topic not in admin.list_topics():
                    admin.create_topic(topic, partitions=PARTITIONS)

    def _judged_error(self, answer: httpx.Response) -> str | None:
        if self.error is None:
            return f"refused: {answer.text}"
        body = answer.json()
        wanted = {"KsqlStatementErrorMessage": "statement_error", "KsqlErrorMessage": "generic_error"}
        tag = wanted.get(str(self.error.get("type", "")).rpartition(".")[2])
        if tag == "statement_error" and body["@type"] != tag:
            return f"expected {tag}, found {body}"
        status = self.error.get("status")
        return None if status in (None, answer.status_code) else f"expected status {status}, found {answer.status_code}"

    def _write_inputs(self) -> None:
        by_topic = {source.topic: source for source in self.engine.catalog.sources.values()}
        producer = self.log.producer()
        for raw in self.case.test.get("inputs", []):
            record: CaseRecord = _record(raw, "input")
            source = by_topic[record.topic]
            for spec, columns in ((source.key_format, source.key), (source.value_format, source.value)):
                if spec.registry and columns:
                    register_schema(spec, columns)
            value = encode(record.value, source.value_format, source.value)
            headers = [(name, data) for name, data in record.headers or ()]
            stamp = record.timestamp_ms or 0
            producer.send(record.topic, value, key=encode_key(record, source), timestamp_ms=stamp, headers=headers)
        producer.close()

    def _asked(self, select: str, expected: list[Any] | None) -> str | None:
        """Ask until the answer is as expected, for queries take a moment to see what was written."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            asked = {"ksql": select, "streamsProperties": self._settings()}
            if self.error is not None:
                return self._refused(asked)
            answer = self.client.post("/query", json=asked)
            if answer.status_code != 200:
                if answer.json()["error_code"] != 50302 or time.monotonic() > deadline:
                    return self._judged_error(answer)
                continue
            if expected is None:
                return None
            differs = _answers(json.loads(answer.text, parse_float=Decimal), expected)
            if differs is None or time.monotonic() > deadline:
                return differs
            threading.Event().wait(0.02)

    def _refused(self, asked: Mapping[str, Any]) -> str | None:
        """Ask what should be refused, again while the state is not there; what is not refused may have rows without end."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with self.client.stream("POST", "/query", json=asked) as answer:
                if answer.status_code == 200:
                    return f"no error for {asked['ksql']}"
                answer.read()
            if answer.json()["error_code"] != 50302 or time.monotonic() > deadline:
                return self._judged_error(answer)

    def _live(self, select: str, expected: list[Any]) -> str | None:
        """Follow a query whose records are written once its answer has begun: from then on it misses none."""
        has_begun = threading.Event()

        def follow() -> httpx.Response:
            asked = {"ksql": select, "streamsProperties": self._settings()}
            with self.client.stream("POST", "/query", json=asked) as answer:
                has_begun.set()
                answer.read()
                return answer

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(follow)
            has_begun.wait(LIVE_TIMEOUT_S)
            self._write_inputs()
            got = answer.result(LIVE_TIMEOUT_S)
        if got.status_code != 200:
            return self._judged_error(got)
        return _answers(json.loads(got.text, parse_float=Decimal), expected)

    def _outputs(self) -> str | None:
        wanted = [_record(raw, "output") for raw in self.case.test.get("outputs", [])]
        for topic in dict.fromkeys(each.topic for each in wanted):
            expected = [each for each in wanted if each.topic == topic]
            source = next((s for s in self.engine.catalog.sources.values() if s.topic == topic), None)
            if source is None:
                return f"nothing writes to {topic}"
            records = sorted(_read(self.log, topic, len(expected)), key=lambda r: (r.timestamp_ms, r.offset))
            if len(records) < len(expected):
                return f"{topic}: expected {len(expected)} records, found {len(records)}"
            for record, each in zip(records, expected, strict=False):
                for data, spec, columns, want in (
                    (record.key, source.key_format, source.key, each.key),
                    (record.value, source.value_format, source.value, each.value),
                ):
                    differs = difference(decode(data, spec, columns), want)
                    if differs is not None:
                        return f"{topic}: {differs}"
        return None


def _read(log: Log, topic: str, count: int) -> list[Any]:
    admin = log.admin()
    partitions = [TopicPartition(topic, n) for n in range(admin.describe_topics([topic])[topic].partitions)]
    consumer = log.consumer()
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    records: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count and time.monotonic() < deadline:
        records += [record for chunk in consumer.poll(timeout_s=0.2) for record in chunk.records()]
    consumer.close()
    return records


def _entities(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str | None:
    """Compare the tags of the answers that are told; a case that ends in an error tells of the first only."""
    wanted = [e["@type"] for e in expected]
    tags = [e["@type"] for e in found][: len(wanted)]
    return None if tags == wanted else f"expected entities {wanted}, found {tags}"


def _answers(found: list[Any], expected: list[Any]) -> str | None:
    """Compare the head, the rows as they are in any order, and the last words."""
    if not found or "header" not in found[0]:
        return f"no header in {found}"
    head = expected[0]["header"]
    if "schema" in head and head["schema"] != found[0]["header"]["schema"]:
        return f"expected {head['schema']}, found {found[0]['header']['schema']}"
    last = [each for each in found[1:] if "row" not in each]
    if last != [each for each in expected[1:] if "row" not in each]:
        return f"expected to end with {expected[-1]}, found {last}"
    rows = Counter(_canonical(each["row"]) for each in found[1:] if "row" in each)
    wanted = Counter(_canonical(each["row"]) for each in expected[1:] if "row" in each)
    return None if rows == wanted else f"expected rows {sorted(wanted - rows)}, found {sorted(rows - wanted)}"


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps({**row, "columns": sorted(map(_text, row["columns"]))}, sort_keys=True, default=str)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=lambda d: float(d) if isinstance(d, Decimal) else str(d))
