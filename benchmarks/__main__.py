"""`python -m benchmarks [NAME...] [--json]`: run all benchmarks, or those named, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def names() -> list[str]:
    """Return the benchmarks: modules of this folder without a leading underscore, and folders that run."""
    here = Path(__file__).parent
    return sorted([path.stem for path in here.glob("[!_]*.py")] + [path.parent.name for path in here.glob("[!_]*/__main__.py")])


def main(args: list[str]) -> int:
    """Run them; the exit code is that of the worst."""
    if {"-h", "--help"} & set(args):
        print(f"{__doc__}\nThere are: {', '.join(names())}; `python -m benchmarks.NAME --help` tells of one.")
        return 0
    flags = [arg for arg in args if arg.startswith("-")]
    wanted = [arg for arg in args if not arg.startswith("-")]
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    worst = 0
    for name in wanted or names():
        if "--json" not in flags:
            print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *flags], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
