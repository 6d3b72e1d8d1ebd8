"""Plants seeded bugs, each into a scratch copy of the tree, and runs the tests that should find it: `make mutants`.

    python -m tests.mutants [--only WORD] [--no-baseline]

Ends with 1 when a bug survives, when a pattern does not apply any more, or when the tests fail without any bug.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ._list import ROOT, Mutant, read_mutants

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "data", "demo-data", "build", "dist")
TIMEOUT_S = 300.0
PASSED, FAILED = 0, 1
"""Pytest's exit codes; any other one means that the tests could not be run."""


class Scratch:
    """A copy of the tree in which one bug at a time is planted. Files get a new time each, so that no stale bytecode is used."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=LEFT_OUT)
        self._time_s = int(time.time())

    def write(self, file: str, source: str) -> None:
        path = self.root / file
        path.write_text(source, encoding="utf-8")
        self._time_s += 1
        os.utime(path, (self._time_s, self._time_s))

    def run(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """Run tests in the copy; return pytest's exit code (None: they hang) and what it printed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
        environment = os.environ | {"PYTHONPATH": str(self.root)}
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return None, f"no end within {TIMEOUT_S:g} s"
        return done.returncode, done.stdout + done.stderr


def judge(scratch: Scratch, mutant: Mutant) -> tuple[str, str]:
    """Return (`found`, by what), or (`NOT FOUND` or `ERROR`, why)."""
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    try:
        scratch.write(mutant.file, mutant.applied(source))
    except ValueError as error:
        return "ERROR", str(error)
    try:
        code, output = scratch.run(mutant.tests)
    finally:
        scratch.write(mutant.file, source)
    if code == PASSED:
        return "NOT FOUND", " ".join(mutant.tests)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    if code is None:
        return "found", output
    if code != FAILED:
        return "ERROR", "\n".join(output.splitlines()[-15:])
    return "found", failed[0].partition(" - ")[0].removeprefix("FAILED ") if failed else "a test failed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", default="", metavar="WORD", help="only bugs whose name holds this")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a bug first")
    options = parser.parse_args()
    mutants = [mutant for mutant in read_mutants() if options.only in mutant.name]
    if not mutants:
        print(f"no seeded bug has {options.only!r} in its name")
        return 1
    with tempfile.TemporaryDirectory(prefix="logflume-mutants-") as folder:
        scratch = Scratch(Path(folder))
        if not options.no_baseline:
            code, output = scratch.run(sorted({test for mutant in mutants for test in mutant.tests}))
            if code != PASSED:
                print("without any bug the tests do not pass:", *output.splitlines()[-15:], sep="\n")
                return 1
        verdicts = []
        for mutant in mutants:
            began_s = time.monotonic()
            verdict, why = judge(scratch, mutant)
            verdicts.append(verdict)
            print(f"{verdict:9}  {mutant.name:58}  {time.monotonic() - began_s:5.1f} s  {why}", flush=True)
    print(f"{verdicts.count('found')} of {len(verdicts)} seeded bugs found")
    return 0 if verdicts.count("found") == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
