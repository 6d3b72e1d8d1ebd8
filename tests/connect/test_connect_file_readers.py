"""The file source without a log: what it reads is what the csv module reads, resumed at any row, and broken rows are named."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.connect import Idle, Offset, SourceBatch, SourceChanged, SourceContext, load_connector
from logflume.connect.connectors.row_ends import _walk, newline_ends, quoted_row_ends
from logflume.log import InvalidInput

BASE = {"name": "f", "connector": "file-source", "topic": "t"}


def read(path: Path, kept: Mapping[str, Any] | None = None, **options: Any) -> Iterator[SourceBatch]:
    """Run the loop of the source from a kept offset to the end of the file."""
    connector = load_connector({**BASE, "file": str(path), **{name.replace("_", "."): value for name, value in options.items()}})
    context = SourceContext(task=0, tasks=1, offset_of=lambda partition: kept, clock_s=time.monotonic)
    assert connector.plugin.kind == "source"
    for item in connector.plugin.read(connector.config, context):  # type: ignore[union-attr]
        if not isinstance(item, Idle):
            yield item


def rows_of(batches: list[SourceBatch]) -> list[Any]:
    return [row for batch in batches for row in batch.values]


FIELD = st.text(st.sampled_from('ab,"\n\r é1'), max_size=6)


@given(
    rows=st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=12), block=st.sampled_from([256, 300, 4096]), size=st.integers(1, 5)
)
@settings(max_examples=60, deadline=None)
def test_csv_reads_what_the_csv_module_wrote_from_every_offset(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], block: int, size: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["a", "b", "c"])
        writer.writerows(rows)
    options = {"value_columns": "a STRING, b STRING, c STRING", "block_bytes": block, "batch_max_records": size}
    batches = list(read(path, **options))
    assert rows_of(batches) == rows
    assert not any(batch.broken for batch in batches)
    seen = 0
    for batch in batches:
        seen += len(batch.values)
        again = list(read(path, batch.offset, **options))
        assert rows_of(again) == rows[seen:]
        assert [line for b in again for line in b.positions] == [line for b in batches for line in b.positions][seen:]


@given(st.lists(st.lists(st.text(st.sampled_from('ab,"\n '), max_size=5), min_size=2, max_size=3), max_size=8))
def test_row_ends_agree_with_the_csv_module(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    ends = [0, *quoted_row_ends(data, delimiter=b",").tolist()]
    parts = [data[a:b].decode() for a, b in pairwise(ends)]
    assert [
        next(csv.reader([part.removesuffix("\n")] if "\n" not in part[:-1] else io.StringIO(part, newline=""))) for part in parts
    ] == rows


@given(st.lists(st.text(st.sampled_from('ab,"\n'), max_size=8), max_size=6).map("\n".join))
def test_counting_quotes_and_walking_agree(text: str) -> None:
    data = (text + "\n").encode()
    ends = newline_ends(data)
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord('"'))
    assert quoted_row_ends(data, delimiter=b",").tolist() == _walk(data, ends, quotes, b",").tolist()


TYPED = "n BIGINT, d DOUBLE, ok BOOLEAN, s STRING, day DATE, at TIMESTAMP, money DECIMAL(6,2), t TIME"


def test_types_nulls_and_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "n,d,ok,s,day,at,money,t\n"
        "1,1.5,true,x,1970-01-02,1970-01-01T00:00:01Z,1.5,00:00:01\n"
        ' 2 ,,FALSE,"",,1970-01-01 00:00:02,,\n'
        "three,1,true,x,,,,\n"
        "4,1,true\n"
        "\n"
        '5,1,true,"two\nlines",,,,\n'
        "6,1,perhaps,x,,,,\n"
        "7,NaN,true,NA,1970-13-01,,,\n"
        "8,1,true,x,,,,"
    )
    (batch,) = read(path, value_columns=TYPED)
    assert list(batch.values) == [
        (1, 1.5, True, "x", 1, 1000, Decimal("1.50"), 1000),
        (2, None, False, "", None, 2000, None, None),
        (5, 1.0, True, "two\nlines", None, None, None, None),
        (8, 1.0, True, "x", None, None, None, None),
    ]
    assert list(batch.positions) == [2, 3, 7, 11]
    assert [(row.line, row.column, row.reason) for row in batch.broken] == [
        (4, "n", "expected BIGINT, found 'three'"),
        (5, None, "expected 8 fields, found 3"),
        (9, "ok", "expected BOOLEAN, found 'perhaps'"),
        (10, "day", "expected DATE, found '1970-13-01'"),
    ]
    assert batch.broken[1].data == b"4,1,true"


def test_a_stray_quote_and_a_lone_carriage_return_break_one_row_each(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n1,5" pipe\n2,x\ry\n3,\xff\n4,ok\r\n')
    (batch,) = read(path, value_columns="a INT, b STRING")
    assert list(batch.values) == [(1, '5" pipe'), (4, "ok")]
    assert [(row.line, row.column) for row in batch.broken] == [(3, None), (4, "b")]


def test_an_unclosed_quote_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n1,x\n2,"' + b"y\n" * (9 << 20))
    with pytest.raises(InvalidInput, match="line 3: a row of more than 16777216 bytes; look for a quote that is not closed"):
        list(read(path, value_columns="a INT, b STRING"))


@pytest.mark.parametrize(("broken", "is_told"), [(0, False), (1, True), (5, True), (40, False), (100, False)])
def test_a_column_that_a_few_rows_make_text_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: int, is_told: bool
) -> None:
    path = tmp_path / "prices.csv"
    prices = [*["n/a ä"] * broken, *["-1.5e3", "2", " 3", ".5", ""] * 20][:100]
    path.write_text("id,price\n" + "".join(f"{at},{price}\n" for at, price in enumerate(prices)))
    assert len(rows_of(list(read(path)))) == 100
    told = [line for line in caplog.messages if f"column price is text, because {broken} of the first" in line]
    assert (len(told), "'n/a ä'" in "".join(told)) == (is_told, is_told)


def test_columns_are_inferred_and_kept_with_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,delay,name\n1,2.5,NA\n2,NA,b\n")
    (batch,) = read(path, csv_null_values="NA", key_columns="id", key_in_value="false")
    assert [str(c.type) for c in batch.schema.value] == ["DOUBLE", "STRING"]
    assert list(zip(batch.keys, batch.values, strict=True)) == [((1,), (2.5, None)), ((2,), (None, "b"))]
    with path.open("a") as file:
        file.write("3,late,c\n4,1,d\n")
    (more,) = read(path, batch.offset, csv_null_values="NA", key_columns="id", key_in_value="false")
    assert list(more.values) == [(1.0, "d")]
    assert more.broken[0].reason == "expected DOUBLE, found 'late'"


def test_event_time(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("d,h,x\n2013-01-01,5,a\n2013-07-01,5,b\n2013-07-01,25,c\n,5,d\n")
    (batch,) = read(
        path,
        value_columns="d STRING, h INT, x STRING",
        timestamp_columns="d,h",
        timestamp_format="%Y-%m-%d %H",
        timestamp_zone="America/New_York",
    )
    assert batch.timestamps_ms.tolist() == [1357034400000, 1372669200000]
    assert [(row.line, row.reason) for row in batch.broken] == [
        (4, "expected a time (%Y-%m-%d %H), found '2013-07-01 25'"),
        (5, "the event time is null"),
    ]


def test_order_check_and_sort(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ms,x\n5,a\n3,b\n,n\n5,c\n1,d\n")
    options = {"value_columns": "ms BIGINT, x STRING", "timestamp_columns": "ms"}
    batches = list(read(path, timestamp_order_check="true", batch_max_records=1, **options))
    assert rows_of(batches) == [(5, "a"), (5, "c")]
    assert [(row.line, row.reason.split(";")[0]) for batch in batches for row in batch.broken] == [
        (3, "the event time is before that of an earlier row"),
        (4, "the event time is null"),
        (6, "the event time is before that of an earlier row"),
    ]
    ordered = list(read(path, sort_by="ms", batch_max_records=1, **options))
    assert rows_of(ordered) == [(1, "d"), (3, "b"), (5, "a"), (5, "c")]
    assert [row.line for batch in ordered for row in batch.broken] == [4]
    again = list(read(path, ordered[1].offset, sort_by="ms", **options))
    assert rows_of(again) == [(5, "a"), (5, "c")]
    path.write_text("ms,x\n5,a\n3,b\n,n\n5,c\n1,e\n")
    with pytest.raises(SourceChanged, match="was changed"):
        list(read(path, ordered[1].offset, sort_by="ms", **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:20], "was truncated: 32 bytes of it have been read, but it has only 20"),
        (lambda data: data.replace(b"one", b"eno"), "was rewritten or rotated"),
        (lambda data: b"id,name\n9,other\n" + data[16:], "was rewritten or rotated"),
    ],
)
def test_a_changed_file_is_never_read_again_in_silence(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,name\n1,one\n2,two\n3,threeee\n")
    (batch,) = read(path)
    assert batch.offset["position"] == 30 or batch.offset["position"] == path.stat().st_size
    original = path.read_bytes()
    path.write_bytes(change(original))
    with pytest.raises(SourceChanged) as caught:
        list(read(path, batch.offset))
    assert message.split(":")[0] in str(caught.value)
    assert len(rows_of(list(read(path, batch.offset, on_change="restart")))) >= 1
    path.write_bytes(original + b"4,four\n")
    assert rows_of(list(read(path, batch.offset))) == [(4, "four")]


def test_a_last_line_that_was_continued_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,name\n1,on")
    (batch,) = read(path)
    assert list(batch.values) == [(1, "on")]
    path.write_text("id,name\n1,one\n")
    with pytest.raises(SourceChanged, match="was continued"):
        list(read(path, batch.offset))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [{"id": 1, "tags": ["x"], "pos": {"lat": 1}}, {"id": 2, "pos": {"lat": 1.5, "lon": 2}}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + '\n{"id": "three"}\n\n[]\n{"id": 4}')
    batches = list(read(path, batch_max_records=1, key_columns="id"))
    assert [(row[0], row[1], row[2]) for row in rows_of(batches)] == [
        ("1", ["x"], {"lat": 1.0, "lon": None}),
        ("2", None, {"lat": 1.5, "lon": 2}),
        ("three", None, None),
        ("4", None, None),
    ]
    assert [row.line for batch in batches for row in batch.broken] == [5]
    (strict,) = read(path, value_columns="id BIGINT, tags ARRAY<STRING>, pos STRUCT<lat DOUBLE>")
    assert list(strict.values) == [(1, ["x"], {"lat": 1.0}), (2, None, {"lat": 1.5}), (4, None, None)]
    assert [(row.line, row.column) for row in strict.broken] == [(3, "id"), (5, None)]
    assert rows_of(list(read(path, batches[1].offset))) == rows_of(batches)[2:]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_parquet_goes_on_inside_a_row_group(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "id": pa.array(range(50), pa.int64()),
            "at": pa.array(range(50), pa.timestamp("ms", "UTC")),
            "name": pa.array([f"n{i}" for i in range(50)]),
            "small": pa.array([None, *range(49)], pa.int16()),
        }
    )
    pq.write_table(table, path, row_group_size=16)
    batches = list(read(path, timestamp_columns="at", key_columns="name", batch_max_records=size))
    assert rows_of(batches) == [(i, i, f"n{i}", None if i == 0 else i - 1) for i in range(50)]
    assert [time for batch in batches for time in batch.timestamps_ms.tolist()] == list(range(50))
    assert rows_of(list(read(path, batches[0].offset))) == rows_of(batches)[len(batches[0].values) :]
    pq.write_table(table.slice(1), path)
    with pytest.raises(SourceChanged):
        list(read(path, batches[0].offset))


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.txt", b"a,b\n", {}, "format cannot be told from the ending '.txt'"),
        ("a.csv", b"", {}, "the file is empty"),
        ("a.csv", b"a,a\n1,2\n", {}, "the header names a twice"),
        ("a.csv", b"a,b\n1,2\n", {"key_columns": "A"}, "has no column 'A'; did you mean 'a'?"),
        ("a.csv", b"a,b\n1,2\n", {"value_columns": "c STRING"}, "no column c; the header has a, b"),
        ("a.csv", b"\x1f\x8b\x08\x00", {}, "gzip-compressed; unpack it first"),
        ("a.parquet", b"PAR0", {}, "not a Parquet file"),
        ("a.jsonl", b"nothing\n", {}, "no line of its first megabyte is a JSON object"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, options: dict[str, str], message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        list(read(path, **options))
    assert message in str(caught.value)


def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no file matches"):
        list(read(tmp_path / "*.csv"))


def test_files_are_split_among_tasks(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.csv").write_text(f"id\n{number}\n")
    connector = load_connector({**BASE, "file": str(tmp_path / "*.csv")})
    seen: list[list[int]] = []
    for task in range(3):
        offsets: dict[str, Offset] = {}
        context = SourceContext(task=task, tasks=3, offset_of=lambda p, o=offsets: o.get(p["file"]), clock_s=time.monotonic)
        seen.append([row[0] for item in connector.plugin.read(connector.config, context) for row in item.values])  # type: ignore[union-attr]
    assert sorted(row for part in seen for row in part) == list(range(12))
    assert all(part == sorted(part, key=str) for part in seen)
