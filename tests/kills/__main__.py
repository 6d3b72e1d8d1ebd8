"""`make kills`: python -m tests.kills [--records 100000] [--families all] [--instances 1,3]. Exit code 1: results differ."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.kills._families import FEW_KEYS, named
from tests.kills._run import BROKER_CONFIGS, Job, Outcome, own_broker, run
from tests.log import _kafka_java as kafka


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kills",
        description="Kills applications of every family, and their broker; compares with a run that nobody disturbs.",
    )
    parser.add_argument("--records", type=int, default=100_000, help="per pair of topics")
    parser.add_argument("--families", default="all", help="all, groups (objects, columns, sales, sql) or names, comma between")
    parser.add_argument("--instances", default="1,3", help="numbers of processes, each a run of its own")
    parser.add_argument("--strikes", type=int, default=12, help="per run: kills, lost and damaged disks, rebalances")
    parser.add_argument("--together", type=int, default=6, help="families in one process")
    parser.add_argument("--seed", type=int, default=None, help="of records and strikes; default: the clock")
    parser.add_argument("--kernels", action="store_true", help="the undisturbed run too: faster, and no oracle of the kernels")
    parser.add_argument("--kafka", action="store_true", help="on Apache Kafka, where its jars are")
    parser.add_argument("--keep", type=Path, help="keep logs and states of runs that differ here")
    options = parser.parse_args()
    if options.kafka and kafka.missing():
        print(f"--kafka {kafka.missing()}")
        return 2
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    names = named(options.families)
    print(f"{options.records:,} records, {len(names)} families, seed {seed}", flush=True)
    counts = [int(word) for word in options.instances.split(",")]
    found: list[Outcome] = []
    for chosen in ([name for name in names if name not in FEW_KEYS], [name for name in names if name in FEW_KEYS]):
        for start in range(0, len(chosen), options.together):
            families = chosen[start : start + options.together]
            print(", ".join(families), flush=True)
            path = Path(tempfile.mkdtemp(dir=options.keep))
            job = Job(families, options.records, counts, options.strikes, seed, has_calm_kernels=options.kernels)
            outcomes = run(
                path,
                job,
                start_broker=kafka_broker if options.kafka else own_broker,
                say=lambda text: print(f"  {text}", flush=True),
            )
            show(outcomes)
            found += outcomes
            if not (options.keep and any(each.differences for each in outcomes)):
                shutil.rmtree(path)
    print(f"{sum(1 for each in found if not each.differences)} of {len(found)} equal")
    return 1 if any(each.differences for each in found) else 0


def kafka_broker(path: Path) -> kafka.KafkaBroker:
    """Start Apache Kafka with its data in a folder."""
    return kafka.KafkaBroker(path, *BROKER_CONFIGS)


def show(outcomes: list[Outcome]) -> None:
    """Print a line for each, below those that differ where, and what had been done."""
    for each in outcomes:
        words = "DIFFERS" if each.differences else "equal"
        print(f"  {each.family:<26} {each.instances} {each.records:>10,} {len(each.strikes):>3} {words}", flush=True)
        for line in each.differences:
            print(f"      {line}", flush=True)
    for strikes in {tuple(each.strikes) for each in outcomes if each.differences}:
        print(f"    struck: {'; '.join(strikes)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
