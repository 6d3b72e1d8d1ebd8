"""Whether the files of a log are good: a data directory, a partition's directory or one file, of logflume or of Apache Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.storage import OsDisk, verify_log
from logflume.log.storage.checkpoint import unpack_checkpoint
from logflume.log.storage.epochs import LeaderEpochs

from .dump import dump_file, file_kind

CHECKPOINT, EPOCHS = "logflume.checkpoint", "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class Finding:
    """One file and what is wrong with it, None for nothing. `entries`: how much was looked at."""

    path: str
    size_bytes: int
    entries: int
    problem: str | None = None


def verify_path(path: str | os.PathLike[str]) -> Iterator[Finding]:
    """Yield a finding per file below a data directory or partition directory, or for one file.

    A log may be in use: the end of its last segment and index files that are still being written are not damage. Raises
    InvalidInput: nothing there that is a file of a log.
    """
    root = Path(path)
    if root.is_file():
        yield _verify_file(root)
        return
    if not root.is_dir():
        raise InvalidInput(f"{root}: no such file or directory")
    directories = [root, *sorted(each for each in root.iterdir() if each.is_dir())]
    found = [each for each in directories if any(file_kind(name) for name in _names(each))]
    if not found:
        raise InvalidInput(f"{root}: expected a data directory, a partition's directory or a file of a log; found none")
    for directory in found:
        yield from _verify_directory(directory)


def _verify_directory(directory: Path) -> Iterator[Finding]:
    names = _names(directory)
    segments = [name for name in names if name.endswith(".log") and file_kind(name) == "log"]
    is_log = bool(segments) or CHECKPOINT in names
    damage = {os.path.basename(each.path): each for each in verify_log(str(directory), disk=OsDisk())} if is_log else {}
    for name in sorted({*names, *damage}):
        if file_kind(name) is None:
            continue
        path = directory / name
        if name in damage:
            problem = f"at byte {damage[name].position}: {damage[name].cause}"
            yield Finding(str(path), _size(path), 0, problem)
        elif name in segments:
            yield Finding(str(path), _size(path), _count(path))
        else:
            yield _verify_file(path)


def _verify_file(path: Path) -> Finding:
    """Check one file alone."""
    entries = 0
    try:
        if path.name == CHECKPOINT:
            checkpoint = unpack_checkpoint(path.read_bytes(), str(path))
            return Finding(str(path), _size(path), len(checkpoint.segments) if checkpoint else 0)
        if path.name == EPOCHS and LeaderEpochs.from_bytes(path.read_bytes()) is None:
            return Finding(str(path), _size(path), 0, "expected version, count and that many lines of epoch and offset")
        for entry in dump_file(path):
            if entry["kind"] == "damage":
                return Finding(str(path), _size(path), entries, f"at byte {entry['position']}: {entry['problem']}")
            entries += 1
    except FileNotFoundError:
        return Finding(str(path), 0, entries)  # it was dropped meanwhile
    except LogflumeError as error:
        return Finding(str(path), _size(path), entries, str(error))
    return Finding(str(path), _size(path), entries)


def _count(path: Path) -> int:
    """Return the number of whole batches; the end may be under way."""
    try:
        return sum(entry["kind"] == "batch" and "problem" not in entry for entry in dump_file(path))
    except LogflumeError:
        return 0


def _names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.is_file())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
