"""What a record of a soak carries beside its value: key, header and timestamp follow from it, so any reader can check them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

HEADER = "sum"
_BASE_MS = int(time.time() * 1000)


class Attributes(NamedTuple):
    """Key, headers and timestamp of a record."""

    key: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def attributes(value: str) -> Attributes:
    """Return what goes with a value. The key is what stands before a `|`, else the value itself."""
    checksum = crc32(value.encode())
    return Attributes(value.partition("|")[0].encode(), [(HEADER, b"%08x" % checksum)], _BASE_MS + checksum % 100_000)


def check_attributes(value: str, key: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int) -> None:
    """Compare what a reader was given with that. Raises AssertionError, which ends the soak."""
    found = Attributes(key or b"", [(name, data or b"") for name, data in headers], timestamp_ms)
    assert found == attributes(value), f"the record {value!r} came with {found}, expected {attributes(value)}"
