"""Records put out lie in one buffer, whatever their keys and values were made of: spans of what was read, or objects."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.log.schemas import Kind
from logflume.streams.columns.column import Bytes, Column
from logflume.streams.columns.encode import FEW_ROWS, record_chunk
from logflume.streams.kernels import kernel_loader
from logflume.streams.testing import TopologyTestDriver


class Row(msgspec.Struct):
    """A record's value."""

    i: int


PARTS = st.none() | st.binary(max_size=6)


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    kernel_loader().load()


def spans(parts: list[bytes | None]) -> Bytes:
    """Return byte strings as spans of a buffer that they lie in backwards, with others between them."""
    buffer, starts = b"", list[int]()
    for part in reversed(parts):
        buffer += b"-"
        starts.append(len(buffer))
        buffer += part or b""
    sizes = np.array([-1 if part is None else len(part) for part in parts], np.int32)
    return Bytes.of_spans(np.frombuffer(buffer + b"-", np.uint8), np.array(starts[::-1], np.int64), sizes)


@given(st.lists(st.tuples(PARTS, PARTS), min_size=FEW_ROWS, max_size=FEW_ROWS + 12), st.booleans(), st.booleans(), st.data())
def test_keys_and_values_of_any_form_become_the_records_that_they_are(
    records: list[tuple[bytes | None, bytes | None]], has_key_spans: bool, has_value_spans: bool, data: st.DataObject
) -> None:
    keys, values = [key for key, _ in records], [value for _, value in records]
    times, causes = np.arange(len(records)), np.array(data.draw(st.permutations(range(len(records)))), np.int64)
    headers = data.draw(st.lists(st.sampled_from([(), (("h", b"1"),)]), min_size=len(records), max_size=len(records)))
    source = Chunk.from_columns("in", keys, values, times, headers=headers)
    chunk = record_chunk(
        spans(keys) if has_key_spans else Bytes.of_objects(keys),
        spans(values) if has_value_spans else Bytes.of_objects(values),
        times, source, causes,
    )  # fmt: skip
    if not has_key_spans and not has_value_spans:
        assert chunk is None, "objects are put together by who sends them"
        return
    assert chunk is not None
    assert (chunk.keys(), chunk.values()) == (keys, values)
    assert list(chunk.headers()) == [headers[cause] for cause in causes.tolist()]


def test_results_of_a_callable_keep_keys_and_nulls() -> None:
    """The very path: keys as they came beside values that a callable made."""
    app = lf.App("mapped")
    app.stream("in", Row).map_values(lambda row: None if row.i % 7 == 0 else {"twice": 2 * row.i}).to("out")
    driver = TopologyTestDriver(app)
    sent = [(f"k{i}" if i % 5 else None, Row(i), i) for i in range(3 * FEW_ROWS)]
    driver.input("in").send_together(sent)
    found = [(record.key, record.value, record.timestamp_ms) for record in driver.output("out").read()]
    assert found == [(key, None if i % 7 == 0 else {"twice": 2 * i}, i) for key, _, i in sent]


@given(st.lists(st.none() | st.text(st.sampled_from("a\0\u00fc\U0001f600"), max_size=4)))
def test_texts_come_out_of_spans_as_they_went_in(texts: list[str | None]) -> None:
    objects = Column.of_objects(texts, Kind.STRING)
    vector = objects.vector()
    assert vector is not None
    assert Column.of_vector(vector, len(texts), Kind.STRING, objects.memory).objects() == texts
