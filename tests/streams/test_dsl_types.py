"""What a type checker knows of topologies: keys and values, from the source through functions to tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROGRAM = """
from dataclasses import dataclass
from typing import TypedDict
import msgspec
import pydantic
import logflume.streams as lf
from logflume.streams import col

class Order(msgspec.Struct):
    user: str
    cents: int

@dataclass
class Total:
    cents: int

class Row(TypedDict):
    name: str

class Model(pydantic.BaseModel):
    name: str

app = lf.App("types")
orders = app.stream("orders", Order)
reveal_type(orders)  # Stream[str, Order]
reveal_type(app.stream("numbers", int, key=int))  # Stream[int, int]
reveal_type(app.stream("anything", key=bytes))  # Stream[bytes, Any]
reveal_type(app.stream("anything"))  # Stream[Any, Any]
reveal_type(app.stream("rows", Row))  # Stream[str, Row]
reveal_type(app.stream("models", Model))  # Stream[str, Model]
reveal_type(orders.filter(lambda order: order.cents > 5))  # Stream[str, Order]
reveal_type(orders.filter(col.cents > 5))  # Stream[str, Order]
reveal_type(orders.map_values(lambda order: order.cents))  # Stream[str, int]
reveal_type(orders.map_values(lambda key, order: (key, order.cents)))  # Stream[str, tuple[str, int]]
reveal_type(orders.map_values(col.cents * 2))  # Stream[str, Any]
reveal_type(orders.flat_map_values(lambda order: [order.user]))  # Stream[str, str]
reveal_type(orders.split(col.cents > 5))  # tuple[Stream[str, Order], ...]
reveal_type(orders.select_key(lambda order: order.user))  # Stream[Any, Order]
reveal_type(orders.group_by_key())  # Grouped[str, Order]
reveal_type(orders.group_by_key().reduce(lambda a, b: a))  # Table[str, Order]
reveal_type(orders.group_by_key().count())  # Table[str, Any]
reveal_type(orders.to_table())  # Table[str, Order]
users = app.table("users", Row, key=int)
reveal_type(users)  # Table[int, Row]
reveal_type(users.map_values(lambda row: row["name"]))  # Table[int, str]
reveal_type(users.filter(lambda row: True).to_stream())  # Stream[int, Row]
def wrong(order: Total) -> int:
    return order.cents
orders.map_values(wrong)  # error
app.stream("x", Order, formt="AVRO")  # error
app.straem("x")  # error
orders.fliter(col.cents > 5)  # error
orders.group_by_key().cuont()  # error
users.to_straem()  # error
def untyped(stream: lf.Stream, table: lf.Table) -> None:
    reveal_type(stream)  # Stream[Any, Any]
"""


@pytest.mark.slow
def test_a_type_checker_knows_keys_and_values(tmp_path: Path) -> None:
    from mypy import api

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    text, errors, _ = api.run(["--strict", "--no-error-summary", "--hide-error-context", str(program)])
    assert errors == ""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        match = re.match(r".*program\.py:(\d+): (\w+): (.*)", line)
        if match:
            found.setdefault(int(match[1]), []).append(_short(match[3]) if match[2] == "note" else "error")
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        _, _, wanted = line.partition("  # ")
        if wanted == "error":
            assert "error" in found.pop(number, []), line
        elif wanted:
            assert found.pop(number, None) == [wanted], line
    assert found == {}


def _short(note: str) -> str:
    """Return a revealed type without modules."""
    plain = re.sub(r"TypedDict\('?([\w.]+)'?, \{[^}]*\}\)", r"\1", note.removeprefix('Revealed type is "').removesuffix('"'))
    return re.sub(r"[\w.]*\.(?=\w)", "", plain)
