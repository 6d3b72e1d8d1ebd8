"""Keys of windows as `logflume consume` shows them."""

from __future__ import annotations

import json

import pytest

from logflume.cli.common import text_of
from logflume.cli.consume import json_line, plain, text_line
from logflume.log import Record

DAY_MS = 1795305600000
START, END = DAY_MS.to_bytes(8, "big"), (DAY_MS + 60_500).to_bytes(8, "big")


def record(key: bytes | None) -> Record:
    return Record(topic="t", partition=0, offset=3, timestamp_ms=1, key=key, value=b"v", headers=())


def test_the_key_of_a_window_is_shown_with_its_start() -> None:
    assert text_line(record(b"u1" + START), plain) == "0:3\tu1@2026-11-22T00:00:00.000Z\tv"
    found = json.loads(json_line(record(b"u1" + START), plain))
    assert (found["key"], found["window_start"]) == ("u1", "2026-11-22T00:00:00.000Z")
    assert "window_end" not in found


def test_the_key_of_a_session_is_shown_with_start_and_end() -> None:
    found = json.loads(json_line(record(b"u1" + END + START), plain))
    assert found["key"] == "u1"
    assert (found["window_start"], found["window_end"]) == ("2026-11-22T00:00:00.000Z", "2026-11-22T00:01:00.500Z")


@pytest.mark.parametrize(
    "key", [None, b"", b"u1", START, b"\0\0\0\0\1" + START, b"u1" + (5).to_bytes(8, "big"), b"long enough a text"]
)
def test_other_keys_stay_what_they_are(key: bytes | None) -> None:
    assert json.loads(json_line(record(key), plain))["key"] == text_of(key)
