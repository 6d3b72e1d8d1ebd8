"""What the tests of the kernels share: rows of JSON, also malformed, and a recorder of what a program does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from logflume.log.records import Chunk
from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, TIMESTAMP, Column, FormatSpec

FIELDS = (
    Column("i", INTEGER), Column("big", BIGINT), Column("x", DOUBLE), Column("Y", DOUBLE), Column("ok", BOOLEAN),
    Column("s", STRING), Column("S2", STRING), Column("at", TIMESTAMP),
)  # fmt: skip
JSON, KAFKA = FormatSpec("JSON"), FormatSpec("KAFKA")
ENOUGH_ROWS = 64


class Recorder:
    """Keeps what a program puts out and reports, in order."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.problems: list[Any] = []

    def send(
        self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], *,
        headers: Sequence[Any] | None = None, causes: Sequence[int] | None = None, topic: str | None = None,
    ) -> None:  # fmt: skip
        assert causes is not None
        assert len(keys) == len(values) == len(timestamps_ms) == len(causes)
        each = headers or [()] * len(keys)
        self.outputs += zip([node] * len(keys), keys, values, timestamps_ms, causes, each, strict=True)

    def send_columns(self, node: str, records: Chunk, *, causes: Any = None, topic: str | None = None) -> None:
        headers = records.headers() if records.header_counts.any() else None
        times = records.timestamps_ms.tolist()
        self.send(node, records.keys(), records.values(), times, headers=headers, causes=causes.tolist())

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.problems.append((reason, node, topic, partition, offset, str(cause)))


INTEGERS = st.one_of(
    st.integers(-20, 20), st.integers(-(2**31) - 2, 2**31 + 2), st.integers(-(10**16), 10**16), st.integers(-(2**64), 2**64)
)
FLOATS = st.one_of(st.integers(-10000, 10000).map(lambda n: n / 100), st.floats(allow_nan=False, allow_infinity=False))
TEXTS = st.one_of(st.sampled_from(["", "a", "b", "u00001"]), st.text(max_size=6))
JSON_VALUES: dict[str, st.SearchStrategy[str]] = {
    "int": INTEGERS.map(str),
    "float": FLOATS.map(repr),
    "bool": st.sampled_from(["true", "false"]),
    "text": TEXTS.map(json.dumps),
    "raw_text": TEXTS.map(lambda t: msgspec.json.encode(t).decode("utf-8", "replace")),
    "null": st.just("null"),
    "odd": st.sampled_from(
        ["-0", "-0.0", "0.0", "1e5", "1E-2", "01", "+1", ".5", "1.", "NaN", "[1]", '{"a":1}', "tru", "nul", '"\x01"', "0.1",
         "123456789012345678", "1.7976931348623157e308", "0.30000000000000004", '"\x7f"', "", '"12"', '"true"',
         "100000.000000001", '{"a":[1,{"b":"\\u00e9"}],"c":{}}', "[{},[]]", "[1,]", '{"a"}', '{"a":1,}', "[[1]",
         '"\\ud83d\\ude00"', '"\\ud800"', '"\u00e9\\n\\/"', '"\\x"', "[1e5]", "[" * 70 + "]" * 70]
    ),
}  # fmt: skip
FITTING = {"i": "int", "big": "int", "x": "float", "Y": "float", "ok": "bool", "s": "text", "S2": "raw_text", "at": "int"}
EDGES = st.sampled_from([2**31 - 1, -(2**31), 2**31 - 2, 65537, 3, 0, -1, 46341])
CERTAIN: dict[str, st.SearchStrategy[str]] = {
    "i": st.one_of(EDGES, st.integers(-(2**31), 2**31 - 1)).map(str),
    "big": st.one_of(st.sampled_from([10**15 - 1, 1 - 10**15, 3 * 10**9]), st.integers(-(10**14), 10**14)).map(str),
    "x": st.one_of(st.integers(-(10**6), 10**6).map(lambda n: str(n / 100)), st.integers(-99, 99).map(str)),
    "Y": st.integers(-(10**14), 10**14).map(lambda n: f"{n}.5" if n else "0.5"),
    "ok": st.sampled_from(["true", "false", "null"]),
    "s": st.sampled_from(['"a"', '"b"', '""', "null"]),
    "S2": st.sampled_from(['"a"', '"b"', '""', "null"]),
    "at": st.integers(0, 10**13).map(str),
}
"""Values that no kernel should have to mark."""


@st.composite
def rows(draw: st.DrawFn) -> bytes | None:
    shape = draw(st.integers(0, 11))
    if shape == 0:
        return draw(st.one_of(st.none(), st.binary(max_size=20), st.sampled_from([b"{}", b"null", b"[]", b"1", b" {} ", b"{,}"])))
    names = [column.name for column in FIELDS]
    if shape >= 6:
        repeated = draw(st.lists(st.sampled_from(names), max_size=1)) if shape == 11 else []
        fields = [(n, draw(CERTAIN[n])) for n in names] + [(n, draw(st.one_of(CERTAIN[n], st.just("null")))) for n in repeated]
        return ("{" + ",".join(f'"{name}":{text}' for name, text in fields) + "}").encode()
    if shape <= 4:
        names = draw(st.lists(st.sampled_from([*names, "extra", "I", "y", "s2", "a\u00e9", 'q"']), max_size=10))
    if shape == 5:
        names += draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
    space = draw(st.sampled_from(["", "", "", " ", "\n\t"]))
    parts = []
    for name in names:
        plain = FITTING.get(name, "int")
        kind = draw(st.sampled_from([*[plain] * 12, "null", "int", *(JSON_VALUES if shape <= 2 else ())]))
        spelled = json.dumps(name, ensure_ascii=draw(st.booleans()))
        parts.append(f"{spelled}{space}:{space}{draw(JSON_VALUES[kind])}")
    data = (space + "{" + space + f"{space},{space}".join(parts) + "}").encode("utf-8", "surrogatepass")
    if shape == 1:
        cut = draw(st.integers(0, len(data)))
        return data[:cut] + draw(st.binary(max_size=2)) + data[cut + draw(st.integers(0, 2)) :]
    return data
