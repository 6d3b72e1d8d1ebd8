"""Apache Avro's own command line tools (Java) on what the serde writes: they read it, and write the same bytes of what they read.

Runs where LOGFLUME_AVRO_TOOLS names the jar, which `mvn dependency:copy -Dartifact=org.apache.avro:avro-tools:1.12.0` brings.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.schemas import Column, DataType, FormatSpec, MemoryRegistry, serde

from .test_schemas_registered import types, values

JAR = os.environ.get("LOGFLUME_AVRO_TOOLS", "")
ROWS = 15


def tool(name: str, schema: Path, data: Path) -> bytes:
    command = ["java", "-XX:TieredStopAtLevel=1", "-jar", JAR, name, "--schema-file", str(schema), str(data)]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def documents(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at)
        yield found
        at += len(text[at:]) - len(text[at:].lstrip())


def rows_of(found: list[DataType]) -> st.SearchStrategy[tuple[list[DataType], list[tuple[Any, ...]]]]:
    row = st.tuples(*(st.none() | values(type) for type in found))
    return st.tuples(st.just(found), st.lists(row, min_size=ROWS, max_size=ROWS))


@pytest.mark.slow
@pytest.mark.skipif(not Path(JAR).is_file(), reason="needs Java, and avro-tools' jar as LOGFLUME_AVRO_TOOLS")
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(types(), min_size=2, max_size=6).flatmap(rows_of))
def test_apache_avro_reads_what_is_written_and_writes_the_same(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[DataType], list[tuple[Any, ...]]]
) -> None:
    found, rows = case
    folder, registry = tmp_path_factory.mktemp("avro"), MemoryRegistry()
    spec = FormatSpec("AVRO", registry=registry.location, subject="t-value")
    written = [serde(spec, [Column(f"C{i}", type) for i, type in enumerate(found)]).encode(row) or b"" for row in rows]
    schema, data, shown = folder / "schema.avsc", folder / "data", folder / "shown"
    schema.write_text(registry.latest("t-value").text)
    data.write_bytes(b"".join(payload[5:] for payload in written))
    shown.write_bytes(tool("fragtojson", schema, data))
    read = list(documents(shown.read_text()))
    assert [[each[f"C{i}"] is None for i in range(len(found))] for each in read] == [[v is None for v in row] for row in rows]
    assert tool("jsontofrag", schema, shown) == data.read_bytes()
