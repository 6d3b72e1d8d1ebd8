"""Files of fixed entries beside a segment: its indexes, producer snapshots. Kafka's formats; read in pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

Entry = dict[str, object]
CHUNK_ENTRIES = 4096
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_VERSION = 1
_FORMATS = {
    "index": (struct.Struct(">ii"), ("relative_offset", "position")),
    "timeindex": (struct.Struct(">qi"), ("timestamp_ms", "relative_offset")),
    "txnindex": (struct.Struct(">hqqqq"), ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")),
    "snapshot": (
        struct.Struct(">qhiqiqiq"),
        (
            "producer_id",
            "producer_epoch",
            "last_sequence",
            "last_offset",
            "offset_delta",
            "timestamp_ms",
            "coordinator_epoch",
            "txn_first_offset",
        ),
    ),
}


def dump_table(path: str, kind: str) -> Iterator[Entry]:
    """Yield an entry per entry of the file, with absolute offsets; where an index is out of order or cut, one of kind damage."""
    layout, names = _FORMATS[kind]
    base_offset = int(Path(path).name.split(".")[0]) if Path(path).name.split(".")[0].isdecimal() else 0
    with open(path, "rb") as file:
        if kind == "snapshot":
            head = _snapshot_head(file.read(_SNAPSHOT_HEAD.size), path)
            yield head
            if head["kind"] == "damage":
                return
        last: tuple[int, ...] | None = None
        position = file.tell()
        while data := file.read(layout.size * CHUNK_ENTRIES):
            whole = len(data) - len(data) % layout.size
            for fields in layout.iter_unpack(data[:whole]):
                if kind in ("index", "timeindex"):
                    if last is not None and _is_empty(fields):
                        return  # the rest is room that Apache Kafka reserved
                    if last is not None and (fields[0] < last[0] or fields[1] < last[1]):
                        yield _damage(path, position, f"entry {fields} is behind {last}: expected both to rise")
                        return
                    last = fields
                entry: Entry = {"kind": kind, **dict(zip(names, fields, strict=True))}
                if "relative_offset" in entry:
                    entry["offset"] = base_offset + fields[names.index("relative_offset")]
                yield entry
                position += layout.size
            if whole < len(data):
                yield _damage(path, position, f"expected entries of {layout.size} bytes, found {len(data) - whole} at the end")


def _is_empty(fields: tuple[int, ...]) -> bool:
    return not any(fields)


def _snapshot_head(head: bytes, path: str) -> Entry:
    if len(head) < _SNAPSHOT_HEAD.size:
        return _damage(path, 0, f"expected a snapshot of at least {_SNAPSHOT_HEAD.size} bytes, found {len(head)}")
    version, crc, count = _SNAPSHOT_HEAD.unpack(head)
    found = snapshot_crc(path)
    if version != _SNAPSHOT_VERSION:
        return _damage(path, 0, f"expected a snapshot of version {_SNAPSHOT_VERSION}, found {version}")
    if found != crc:
        return _damage(path, 0, f"expected CRC {crc:#010x}, found {found:#010x}")
    return {"kind": "snapshot-head", "version": version, "entries": count, "crc": f"{crc:#010x}"}


def snapshot_crc(path: str) -> int:
    """Return the checksum over what follows it in the file."""
    crc = 0
    with open(path, "rb") as file:
        file.seek(6)
        while data := file.read(1 << 20):
            crc = crc32c(data, crc)
    return crc


def _damage(path: str, position: int, problem: str) -> Entry:
    return {"kind": "damage", "path": path, "position": position, "problem": problem}
