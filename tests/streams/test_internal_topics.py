"""What an application writes for itself alone, in a form of its own: rows of all types come out as they went in."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import DecodeError, InvalidInput
from logflume.log.schemas import BIGINT, INTEGER, ROW_FORMAT, STRING, Column, part_decode, serde
from logflume.streams import col
from logflume.streams.kernels import kernel_loader
from logflume.streams.testing import TopologyTestDriver

from .running import kernels

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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a row of"),
        (b'{"id":1}', "not a row of"),
        (b"\x92\x01\x05", "expected a row of"),
        (b"\x94\x02\x01\x01\xa1a", "form 2"),
    ],
)
def test_other_bytes_are_refused_in_words(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        serde(ROW_FORMAT, WRITTEN).decode(data)
