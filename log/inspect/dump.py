"""Any file of a log as entries: which kind it is by its name, then the reader of that kind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from logflume.log.errors import InvalidInput

from .batches import dump_batches
from .journals import BY_TOPIC, DECODERS
from .tables import dump_table

Entry = dict[str, object]
MAX_TEXT_BYTES = 16 << 20
"""Largest file of lines (checkpoints, properties) that is read."""
_TEMPORARY = re.compile(r"(\.[0-9a-f]+)?\.cleaned$|\.deleted$|\.swap$|\.torn$")
TEXT_NAMES = (
    "leader-epoch-checkpoint",
    "partition.metadata",
    "meta.properties",
    "logflume.checkpoint",
    "cluster.json",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "quorum-state",
)


def file_kind(path: str | os.PathLike[str]) -> str | None:
    """Return log, index, timeindex, txnindex, snapshot or text by a file's name, None for a file that is not of a log.

    >>> file_kind("t-0/00000000000000000042.timeindex")
    'timeindex'
    """
    name = _TEMPORARY.sub("", Path(path).name)
    if name in TEXT_NAMES:
        return "text"
    stem, _, suffix = name.rpartition(".")
    return suffix if suffix in ("log", "index", "timeindex", "txnindex", "snapshot") and stem.isdecimal() else None


def dump_file(path: str | os.PathLike[str], *, has_records: bool = False, decode: str = "auto") -> Iterator[Entry]:
    """Yield the entries of a file as dicts with a `kind`; bytes that are wrong are an entry of kind `damage`, the last one.

    Args:
        has_records: of a segment also the records, not the batches only.
        decode: how keys and values are shown: text, offsets, transactions, share, or auto (by the name of the topic).

    Raises InvalidInput: not a file of a log, or one that cannot be read.
    """
    text_path = os.fspath(path)
    kind = file_kind(text_path)
    if kind is None:
        raise InvalidInput(
            f"{text_path}: expected a file of a log: .log, .index, .timeindex, .txnindex, .snapshot or a checkpoint; "
            "a directory is checked by `logflume log verify`"
        )
    if not os.path.isfile(text_path):
        raise InvalidInput(f"{text_path}: no such file")
    try:
        if kind == "log":
            yield from dump_batches(text_path, shown=DECODERS[_decoder(text_path, decode)] if has_records else None)
        elif kind == "text":
            yield from _lines(text_path)
        else:
            yield from dump_table(text_path, kind)
    except OSError as error:
        raise InvalidInput(f"cannot read {text_path}: {error.strerror or error}") from error


def _decoder(path: str, decode: str) -> str:
    if decode == "auto":
        return BY_TOPIC.get(Path(path).resolve().parent.name.rpartition("-")[0], "text")
    if decode not in DECODERS:
        raise InvalidInput(f"expected a decoder of {', '.join(DECODERS)} or auto, found {decode!r}")
    return decode


def _lines(path: str) -> Iterator[Entry]:
    if os.path.getsize(path) > MAX_TEXT_BYTES:
        raise InvalidInput(f"{path}: expected a file of lines of at most {MAX_TEXT_BYTES} bytes, found {os.path.getsize(path)}")
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        for number, line in enumerate(file, start=1):
            yield {"kind": "line", "number": number, "text": line.rstrip("\n")}
