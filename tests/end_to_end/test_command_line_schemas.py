"""The `logflume schema` commands against the registry of `logflume serve`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ._command import free_port, run, serving

FIRST = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
SECOND = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":"string","default":""}]}'
WRONG = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Give the addresses of a broker and of its registry."""
    address = f"127.0.0.1:{free_port()}"
    with serving(tmp_path_factory.mktemp("serve") / "data", "--workers", "0", "--registry", address) as (broker, _):
        yield broker, address


@pytest.fixture
def registry(served: tuple[str, str]) -> str:
    return served[1]


def files(folder: Path) -> tuple[str, str, str]:
    """Write the three schemas; return their paths."""
    paths = []
    for name, text in (("first", FIRST), ("second", SECOND), ("wrong", WRONG)):
        path = folder / f"{name}.avsc"
        path.write_text(text)
        paths.append(str(path))
    return paths[0], paths[1], paths[2]


def test_a_subject_is_registered_checked_compared_and_deleted(registry: str, tmp_path: Path) -> None:
    first, second, wrong = files(tmp_path)
    at = ("--registry", registry)
    made = json.loads(run("schema", "register", "orders-value", first, *at, "--json").stdout)
    assert (made["version"], made["id"]) == (1, 1)
    refused = run("schema", "check", "orders-value", wrong, *at, code=1)
    assert "/fields/0/type" in refused.stdout
    assert "TYPE_MISMATCH" in run("schema", "register", "orders-value", wrong, *at, code=1).stderr
    assert "compatible with orders-value" in run("schema", "check", "orders-value", second, *at).stdout
    run("schema", "register", "orders-value", second, *at)
    compared = run("schema", "diff", "orders-value", "1", *at).stdout
    assert '+      "name": "note",' in compared
    assert "backward: data of version 1 can be read with version 2" in compared
    history = [json.loads(line) for line in run("schema", "list", "orders-value", *at, "--json").stdout.splitlines()]
    assert [row["version"] for row in history] == [1, 2]
    assert history[1]["changed lines"].endswith("+5 -0")
    listed = [json.loads(line) for line in run("schema", "list", *at, "--json").stdout.splitlines()]
    assert {"subject": "orders-value", "versions": 2, "latest": 2, "id": 2, "type": "AVRO"} in listed
    assert '"name": "note"' in run("schema", "show", "orders-value", *at).stdout
    assert json.loads(json.loads(run("schema", "show", "1", "--id", *at, "--json").stdout)["schema"]) == json.loads(FIRST)
    assert "deleted: orders-value version 1" in run("schema", "delete", "orders-value", "--version", "1", *at).stdout
    assert "40407" in run("schema", "delete", "orders-value", "--version", "2", "--permanent", *at, code=1).stderr


def test_a_topic_can_demand_the_schemas_of_the_registry_beside_its_broker(served: tuple[str, str], tmp_path: Path) -> None:
    (broker, registry), (first, _, _) = served, files(tmp_path)
    demand = ("--config", "confluent.value.schema.validation=true")
    run("topic", "create", "strict", *demand, "--bootstrap", broker)
    lines = tmp_path / "lines"
    lines.write_text('{"id": 7}\n')
    refused = run("produce", "strict", "-f", str(lines), "--bootstrap", broker, code=1)
    assert "registered schema alone" in refused.stderr
    as_avro = ("--format", "avro", "--schema", first, "--registry", registry)
    run("produce", "strict", "-f", str(lines), *as_avro, "--bootstrap", broker)
    shown = run("consume", "strict", "--json", "--registry", registry, "--bootstrap", broker).stdout.splitlines()
    assert [json.loads(line)["value"] for line in shown] == [{"id": 7}]


def test_classes_are_written_of_each_language(registry: str, tmp_path: Path) -> None:
    files = {
        "a.avsc": FIRST,
        "b.proto": 'syntax = "proto3"; message Order { int64 id = 1; Line line = 2; } message Line { string sku = 1; }',
        "c.json": '{"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        run("schema", "register", f"{name[0]}-value", str(tmp_path / name), "--registry", registry)
        source = run("schema", "classes", f"{name[0]}-value", "--registry", registry).stdout
        assert "class Order(msgspec.Struct):\n    id: int | None = None\n" in source
        compile(source, name, "exec")
    line = run("schema", "classes", "b-value", "--message", "Line", "--registry", registry).stdout
    assert "class Line(msgspec.Struct):\n    sku: str | None = None\n" in line


def test_levels_and_modes_are_shown_and_set(registry: str) -> None:
    at = ("--registry", registry, "--json")
    assert json.loads(run("schema", "compat", *at).stdout)["compatibilityLevel"] == "BACKWARD"
    assert json.loads(run("schema", "compat", "FULL", "--subject", "s", *at).stdout)["compatibilityLevel"] == "FULL"
    assert json.loads(run("schema", "compat", "--unset", "--subject", "s", *at).stdout)["compatibilityLevel"] == "BACKWARD"
    assert json.loads(run("schema", "mode", "READONLY", "--subject", "s", *at).stdout)["mode"] == "READONLY"
    assert "Invalid compatibility level" in run("schema", "compat", "SIDEWAYS", *at, code=1).stderr


def test_what_cannot_be_is_explained(registry: str, tmp_path: Path) -> None:
    first, _, _ = files(tmp_path)
    nobody = run("schema", "list", "--registry", f"127.0.0.1:{free_port()}", code=1).stderr
    assert "no registry answers at http://127.0.0.1" in nobody
    assert "cannot read" in run("schema", "register", "s", str(tmp_path / "none.avsc"), "--registry", registry, code=1).stderr
    assert "expects NAME=SUBJECT:VERSION" in run("schema", "register", "s", first, "--reference", "x", code=1).stderr
    assert "40401" in run("schema", "show", "nothing", "--registry", registry, code=1).stderr


def test_serve_refuses_a_registry_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listen = f"127.0.0.1:{free_port()}"
        failed = run("serve", "--data", str(tmp_path / "d"), "--listen", listen, "--registry", address, code=1)
    assert f"cannot listen on {address}" in failed.stderr
    assert "--registry off" in failed.stderr
    assert not (tmp_path / "d").exists()
