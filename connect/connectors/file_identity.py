"""Tells whether a file is still the one an offset was taken in: by size, by hashes of its first bytes and those before it.

A file that only grew is unchanged. Truncated, rewritten and rotated files are found, so that nothing is skipped or read twice
in silence.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from logflume.connect.errors import SourceChanged

_HEAD_BYTES = 4096
_TAIL_BYTES = 1024
_EDGE_BYTES = 65_536
_ADVICE = (
    'to read it from the beginning set on.change = "restart" (records that were already produced come again), '
    "or give the connector a new name"
)


def fingerprint(fd: int, position: int) -> dict[str, Any]:
    """Return what identifies the first `position` bytes of a file that may still grow. JSON-ready."""
    head_bytes = min(position, _HEAD_BYTES)
    tail_bytes = min(position, _TAIL_BYTES)
    return {
        "head_bytes": head_bytes,
        "head": _digest(os.pread(fd, head_bytes, 0)),
        "tail_bytes": tail_bytes,
        "tail": _digest(os.pread(fd, tail_bytes, position - tail_bytes)),
    }


def check_grown_only(fd: int, path: str, position: int, kept: Mapping[str, Any]) -> None:
    """Check that the first `position` bytes are those of the kept fingerprint.

    Raises:
        SourceChanged: the file is shorter than the position, or its bytes differ.
    """
    size = os.fstat(fd).st_size
    if size < position:
        raise SourceChanged(f"{path} was truncated: {position} bytes of it have been read, but it has only {size}; {_ADVICE}")
    now = fingerprint(fd, position)
    if now != {name: kept.get(name) for name in now}:
        raise SourceChanged(
            f"{path} was rewritten or rotated: the bytes before position {position} are not those that were read; {_ADVICE}"
        )


def fingerprint_whole(fd: int, *, is_exact: bool) -> dict[str, Any]:
    """Return what identifies a file that must not change: its size and a hash of its ends, or of all of it (`is_exact`)."""
    size = os.fstat(fd).st_size
    digest = hashlib.sha256()
    if is_exact:
        at = 0
        while data := os.pread(fd, 1 << 20, at):
            digest.update(data)
            at += len(data)
    else:
        digest.update(os.pread(fd, _EDGE_BYTES, 0))
        digest.update(os.pread(fd, _EDGE_BYTES, max(size - _EDGE_BYTES, 0)))
    return {"size": size, "hash": digest.hexdigest()[:32]}


def check_same(path: str, now: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Check two whole fingerprints. Raises SourceChanged with both sizes."""
    if dict(now) != {name: kept.get(name) for name in now}:
        raise SourceChanged(
            f"{path} was changed: expected {kept.get('size')} bytes with hash {kept.get('hash')}, "
            f"found {now['size']} bytes with hash {now['hash']}; {_ADVICE}"
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
