"""What a disk does to state: bytes that changed, files that end too early, that are gone, half written, or of something else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

Database = Path


def databases(folder: Path) -> list[Database]:
    """Return the databases below a folder, in a fixed order."""
    return sorted(path.parent for path in folder.rglob("CURRENT"))


def damage(folder: Path, chance: random.Random, *, most: int = 3) -> str:
    """Damage some of the databases below a folder; return what was done."""
    found = databases(folder)
    chosen = chance.sample(found, min(len(found), chance.randrange(1, most + 1)))
    return ", ".join(f"{path.parent.parent.parent.name}/{path.name} {_one(path, chance)}" for path in chosen) or "nothing there"


def _one(path: Database, chance: random.Random) -> str:
    ways = list(WAYS)
    chance.shuffle(ways)
    return next((f"{way} ({words})" for way in ways if (words := WAYS[way](path, chance))), "nothing there")


def _file(path: Database, pattern: str, chance: random.Random) -> Path | None:
    files = sorted(each for each in path.iterdir() if re.fullmatch(pattern, each.name) and each.stat().st_size)
    return chance.choice(files) if files else None


def _flip(pattern: str) -> Callable[[Database, random.Random], str]:
    def do(path: Database, chance: random.Random) -> str:
        file = _file(path, pattern, chance)
        if file is None:
            return ""
        data = bytearray(file.read_bytes())
        at = chance.randrange(len(data))
        for place in range(at, min(at + 8, len(data))):
            data[place] ^= 0x5A
        file.write_bytes(data)
        return f"{file.name} at {at} of {len(data)}"

    return do


def _cut(pattern: str) -> Callable[[Database, random.Random], str]:
    def do(path: Database, chance: random.Random) -> str:
        file = _file(path, pattern, chance)
        if file is None:
            return ""
        data = file.read_bytes()
        to = chance.randrange(len(data))
        file.write_bytes(data[:to])
        return f"{file.name} to {to} of {len(data)}"

    return do


def _remove(pattern: str) -> Callable[[Database, random.Random], str]:
    def do(path: Database, chance: random.Random) -> str:
        file = _file(path, pattern, chance)
        if file is None:
            return ""
        file.unlink()
        return file.name

    return do


def _half_written(path: Database, chance: random.Random) -> str:
    for name in ("restored.sst", "999999.sst", "999998.dbtmp"):
        (path / name).write_bytes(chance.randbytes(chance.randrange(2000)))
    return "restored.sst and files that nothing names"


SORTED, WRITE_AHEAD, MANIFEST = r"\d+\.sst", r"\d+\.log", r"MANIFEST-\d+"
WAYS: dict[str, Callable[[Database, random.Random], str]] = {
    "bytes changed in a sorted file": _flip(SORTED),
    "bytes changed in the write-ahead log": _flip(WRITE_AHEAD),
    "bytes changed in the manifest": _flip(MANIFEST),
    "sorted file cut": _cut(SORTED),
    "write-ahead log cut": _cut(WRITE_AHEAD),
    "manifest cut": _cut(MANIFEST),
    "sorted file gone": _remove(SORTED),
    "write-ahead log gone": _remove(WRITE_AHEAD),
    "CURRENT gone": _remove("CURRENT"),
    "CURRENT cut": _cut("CURRENT"),
    "half written": _half_written,
}
