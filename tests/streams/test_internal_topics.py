"""What an application writes for itself alone, in a form of its own: rows of all types come out as they went in."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import (
    BIGINT,
    BYTES,
    DOUBLE,
    INTEGER,
    ROW_FORMAT,
    STRING,
    Column,
    array,
    decimal,
    part_decode,
    serde,
    struct,
)  # fmt: skip
from logflume.streams import col
from logflume.streams.columns.decode import ValueDecoder
from logflume.streams.kernels import kernel_loader
from logflume.streams.testing import TopologyTestDriver

from .running import kernels
from .test_kernels_registered import chunk_of

__all__ = ["kernels"]


class Item(msgspec.Struct):
    price: Decimal
    raw: bytes | None


class Row(msgspec.Struct):
    """One of each type."""

    s: str
    n: int | None = None
    price: Decimal | None = None
    raw: bytes | None = None
    day: dt.date | None = None
    at: dt.datetime | None = None
    x: float | None = None
    ok: bool | None = None
    items: list[Item | None] | None = None
    of: dict[str, int | None] | None = None


def row(n: int) -> Row:
    if n % 5 == 0:
        return Row(f"k{n % 3}")
    day, items = dt.date(1999, 1, 1) + dt.timedelta(n), [Item(Decimal("1.10"), b"\xff"), None][: n % 3]
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=n)
    name, number = f"k{n % 3}" if n % 4 else f'ü"{n % 3}', (1 - 2 * (n % 2)) * 2 ** (n % 63)
    return Row(name, number, Decimal(n).scaleb(-2), bytes([0, n, 255]), day, at, n / 3, n % 2 == 0, items, {"é": n, "": None})


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
def test_rows_of_all_types_pass_an_internal_topic_unchanged(kernels: str) -> None:
    if kernels == "with kernels":
        kernel_loader().load("message_rows")

    def outcome(*, is_rekeyed: bool) -> list[Any]:
        app = lf.App("all-types")
        rows = app.stream("in", Row, key=str)
        (rows.select_key(col.s).repartition("again") if is_rekeyed else rows).to("out")
        driver = TopologyTestDriver(app)
        driver.input("in").send_together([(None, row(n), n) for n in range(100)])
        return [(record.value, record.timestamp_ms) for record in driver.output("out").read()]

    direct = outcome(is_rekeyed=False)
    assert len(direct) == 100
    assert outcome(is_rekeyed=True) == direct


def test_a_group_that_needs_no_column_counts_its_rows() -> None:
    app = lf.App("counted")
    app.stream("in", Row, key=str).group_by(col.s).count().to("out")
    driver = TopologyTestDriver(app)
    driver.input("in").send_together([(None, Row("a"), n) for n in range(100)])
    assert driver.output("out").read()[-1].value == {"count": 100}


WRITTEN = (Column("id", BIGINT), Column("small", INTEGER), Column("name", STRING))


def test_values_of_other_types_are_read_as_those_of_json_are() -> None:
    """A callable with a class may put text where a number is declared."""
    whole = serde(ROW_FORMAT, WRITTEN)
    assert whole.decode(whole.encode(("7", 3.0, 5))) == (7, 3, "5")
    assert whole.decode(whole.encode((None, None, None))) == (None, None, None)
    refused = whole.encode((1, 2**31, "a"))
    with pytest.raises(DecodeError, match="small"):
        whole.decode(refused)
    assert part_decode(ROW_FORMAT, WRITTEN, WRITTEN[2:])(refused) == ("a",)
    with pytest.raises(InvalidInput, match="cannot be written with columns"):
        whole.encode((2**64, 1, "a"))


def test_a_value_of_another_type_leaves_the_other_columns_as_they_are() -> None:
    item = struct(Column("PRICE", decimal(9, 2)), Column("RAW", BYTES), Column("X", DOUBLE))
    columns = (Column("id", BIGINT), Column("xs", array(DOUBLE)), Column("raws", array(BYTES)), Column("items", array(item)))
    whole = serde(ROW_FORMAT, columns)
    items = [{"PRICE": Decimal("1.10"), "RAW": b"\xff", "X": 0.5}, None]
    good = (7, [1.5, None], [b"\x00", None], items)
    assert whole.decode(whole.encode(good)) == good
    assert whole.decode(whole.encode(("7", *good[1:]))) == good
    mixed = [{"PRICE": "1.10", "RAW": b"\xff", "X": 0.5}, None]
    assert whole.decode(whole.encode((7, [1.5, "2"], ["AA==", b"\x00"], mixed))) == (7, [1.5, 2.0], [b"\0", b"\0"], items)
    with pytest.raises(DecodeError, match="id"):
        whole.decode(whole.encode((float("inf"), *good[1:])))


@pytest.mark.parametrize("kernels", ["without kernels", "with kernels"], indirect=True)
@pytest.mark.parametrize(
    "others",
    [WRITTEN[:2], (*WRITTEN, Column("more", BIGINT)), (Column("other", BIGINT), *WRITTEN[1:])],
    ids=["less", "more", "other"],
)
def test_rows_of_another_version_of_the_application_are_refused(others: tuple[Column, ...], kernels: str) -> None:
    if kernels == "with kernels":
        kernel_loader().load("message_rows")
    record = serde(ROW_FORMAT, others).encode((1, 2, "a", 4)[: len(others)])
    found: list[str] = []
    chunk = chunk_of([record] * 200)
    ValueDecoder(ROW_FORMAT, WRITTEN, frozenset({"id"})).decode(chunk, 0, 200, lambda row, error: found.append(str(error)))
    assert len(found) == 200
    assert "another version of this application" in found[0]
    assert "`logflume streams reset`" in found[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a row of"),
        (b'{"id":1}', "not a row of"),
        (b"\x90", "not a row of"),
        (b"\x92\x01\x05", "another version"),
        (b"\x94\x01\x01\x01\xa1a", "another version"),
        (b"\x93" + (serde(ROW_FORMAT, WRITTEN).encode((1, 2, "a")) or b"")[1:-2], "found 2 values"),
    ],
)
def test_other_bytes_are_refused_in_words(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        serde(ROW_FORMAT, WRITTEN).decode(data)


@pytest.mark.parametrize("nulls", [0, 1, 2])
def test_what_is_only_counted_by_another_key_is_counted_beside_nulls_too(nulls: int) -> None:
    """No column is wanted behind the internal topic, so its rows are empty, and are none where the value is null."""
    app = lf.App("counted")
    app.stream("in", Row).select_key(lambda record: "all").group_by_key().aggregate(n=lf.count()).to("by-callable")
    app.stream("in", Row).group_by(col.s).aggregate(n=lf.count()).to("by-column")
    driver = TopologyTestDriver(app, on_problem="skip")
    rows: list[Any] = [row(n) for n in range(1, 5)]
    records = [(f"k{n}", each, n) for n, each in enumerate([*rows, *[None] * nulls, *rows])]
    driver.input("in").send_together(records)
    newest = {record.key: record.value["n"] for record in driver.output("by-column").read()}
    assert sum(newest.values()) == 2 * len(rows)
    assert driver.output("by-callable").read()[-1].value == {"n": 2 * len(rows)}
