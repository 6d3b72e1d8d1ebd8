"""`make soak`: python -m tests.soak [--minutes 10] [--seed 1] [--keep DIR]. Exit code 1 when something was found."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ._checker import RULES, SHOWN
from ._run import soak


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Kills the broker again and again under its clients."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the times of the kills; default: the clock")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="pause of each client between two calls")
    parser.add_argument("--keep", type=Path, help="keep the data directory and the history here")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    print(f"soak of {options.minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        result = soak(
            directory / "data",
            seconds=options.minutes * 60,
            seed=seed,
            pause_s=options.pause_ms / 1000,
            say=lambda text: print(f"  {text}", flush=True),
        )
        if options.keep:
            result.history.dump(directory / "history.jsonl")
    for name, count in result.counts.items():
        print(f"{name:<34} {count:>10,}")
    longest = max(result.recovery_s)
    print(f"{'ready again after a kill (s)':<34} {statistics.median(result.recovery_s):>10.2f}   longest {longest:.2f}")
    print("checked: " + ", ".join(rule.__name__.replace("_", " ") for rule in RULES) + ", damaged files")
    found = Counter(anomaly.kind for anomaly in result.anomalies)
    print(f"anomalies: {dict(found) or 'none'}")
    for kind in found:
        for anomaly in [each for each in result.anomalies if each.kind == kind][:SHOWN]:
            print(f"  {kind}: {anomaly.text}")
    return 1 if result.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
