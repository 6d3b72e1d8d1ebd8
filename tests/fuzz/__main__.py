"""The fuzz by hand: python -m tests.fuzz [--seconds 600] [--seed 1]. Ends with 1 when something told is not there afterwards."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from ._run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzes a broker, restarts it and reads all back.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="of the frames; default: the clock")
    parser.add_argument("--fuzzers", type=int, default=3, help="connections that send them")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    print(f"fuzz of {options.seconds:g} s, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="logflume-fuzz-") as folder:
        try:
            history = fuzz(Path(folder) / "data", seconds=options.seconds, seed=seed, fuzzers=options.fuzzers)
        except AssertionError as error:
            print(f"found: {error}")
            return 1
    print(", ".join(f"{count:,} {name}" for name, count in sorted(history.counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
