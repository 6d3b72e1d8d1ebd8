"""Seeded bugs as data: `mutants.toml` read and checked. A bug is one text replaced in one file, with the tests that find it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A seeded bug. `tests`: what pytest is given; one of them has to fail."""

    name: str
    file: str
    pattern: str
    replacement: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Return the source of `file` with the bug in it. Raises ValueError unless the pattern is there exactly once."""
        count = source.count(self.pattern)
        if count != 1:
            raise ValueError(f"{self.name}: expected its pattern once in {self.file}, found it {count} times; adapt {LIST.name}")
        return source.replace(self.pattern, self.replacement)


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """Return all seeded bugs. Raises TypeError for a wrong field, ValueError for a name that is there twice."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    names = [mutant.name for mutant in mutants]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"mutants with one name: {', '.join(sorted(repeated))}")
    return mutants
