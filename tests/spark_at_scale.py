"""`make spark-at-scale`: python -m tests.spark_at_scale [--records 100000] [--families all]. Exit code 1: results differ.

For families of operators, those of `tests.kills`: (Spark over [start, cut)) + live equals live over all, record for record per
key, over records that are late, out of order, at the same time, null and broken. The cut is anywhere; ranges, slices and shuffle
partitions are drawn for each family. Compared are committed results, at the cut and at the end, and what stores hold at the end.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from logflume.log import LogflumeError, connect
from logflume.streams.spark import SparkRunner, SparkSettings, open_session, plan_backfill, run_backfill
from tests.kills._families import FEW_KEYS, named, plan_of
from tests.kills._inputs import fill
from tests.kills._instances import Instances
from tests.kills._results import differences, entries, unlike
from tests.kills._run import Job, own_broker, wait_until_done
from tests.streams.test_operators_engine import HOLDING

LIVE, BATCH = "live", "batch"
RANGES_MAX = 7
SLICES_MAX = 4
SHUFFLE_PARTITIONS_MAX = 16
CORES_TO_SHARE = 16
"""So many that partitions alone would leave some idle: then ranges are made."""


@dataclass(frozen=True)
class Outcome:
    """What came of a family. `differences`: in words; empty: it is equal. `seconds`: what Spark took, hand-over included."""

    family: str
    way: str
    seconds: float
    differences: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark_at_scale",
        description="Computes a part of the records on Spark and the rest live, for every family; compares with live over all.",
    )
    parser.add_argument("--records", type=int, default=100_000, help="per pair of topics")
    parser.add_argument("--families", default="all", help="all, groups (objects, columns, sales, sql) or names, comma between")
    parser.add_argument("--together", type=int, default=6, help="families over one log")
    parser.add_argument("--seed", type=int, default=None, help="of records, cuts and ways; default: the clock")
    parser.add_argument("--master", default="local[2]", help="Spark's")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    names = [name for name in named(options.families) if name not in HOLDING]  # those go by the clock, which no batch does
    print(f"{options.records:,} records, {len(names)} families, seed {seed}", flush=True)
    spark, found = open_session("spark-at-scale", SparkSettings(options.master)), list[Outcome]()
    for chosen in ([name for name in names if name not in FEW_KEYS], [name for name in names if name in FEW_KEYS]):
        for start in range(0, len(chosen), options.together):
            path, some = Path(tempfile.mkdtemp()), chosen[start : start + options.together]
            for outcome in compare(path, some, options.records, seed + start, spark):
                show(outcome)
                found.append(outcome)
            shutil.rmtree(path)
    spark.stop()
    print(f"{sum(1 for each in found if not each.differences)} of {len(found)} equal")
    return 1 if any(each.differences for each in found) else 0


def compare(path: Path, names: Sequence[str], records: int, seed: int, spark: Any) -> list[Outcome]:
    """Return what comes of some families. Logs and states are left in `path`."""
    chance = random.Random(seed)
    cut = chance.randrange(records // 4, records)
    has_few_keys = all(name in FEW_KEYS for name in names)
    job, broker = Job(names, records, [1], 0, seed), own_broker(path)
    found: dict[str, list[str]] = {name: [] for name in names}
    ways: dict[str, tuple[str, float]] = {}
    try:
        with connect(broker.address) as log:
            readable = fill(log, names, records, seed, has_few_keys=has_few_keys, part=range(cut))
            run_live(broker.address, path, [LIVE], job, readable)
            for name in names:
                begun = time.monotonic()
                try:
                    way = backfill(broker.address, name, cut, chance, spark)
                except LogflumeError as error:
                    way, found[name] = "", [f"{type(error).__name__}: {error}"]
                ways[name] = f"cut at {cut:,}, {way}", time.monotonic() - begun
                found[name] = found[name] or [f"at the cut: {words}" for words in differences(log, LIVE, BATCH, name)]
            readable += fill(log, names, records, seed, has_few_keys=has_few_keys, part=range(cut, records))
            run_live(broker.address, path, [LIVE, BATCH], job, readable)
            for name in names:
                found[name] += differences(log, LIVE, BATCH, name)
                found[name] += unlike(entries(log, path, LIVE, name), entries(log, path, BATCH, name))
    finally:
        broker.kill()
    return [Outcome(name, *ways[name], found[name]) for name in names]


def run_live(address: str, path: Path, prefixes: Sequence[str], job: Job, readable: int) -> None:
    """Have applications take all that there is now, one set of them after another."""
    for prefix in prefixes:
        with connect(address) as log:
            running = Instances(address, path, prefix, job.families, 1, has_kernels=True)
            try:
                wait_until_done(log, prefix, job, readable, running)
                running.stop()
            finally:
                running.end()


def backfill(address: str, name: str, records: int, chance: random.Random, spark: Any) -> str:
    """Compute what there is of a family and hand it over, in a way that is drawn; return which."""
    ranges, slices, shuffled = (chance.randint(1, most) for most in (RANGES_MAX, SLICES_MAX, SHUFFLE_PARTITIONS_MAX))
    spark.conf.set("spark.sql.shuffle.partitions", str(shuffled))
    runner = SparkRunner(
        spark,
        -(-records // ranges),
        None if ranges == 1 else CORES_TO_SHARE,
        ranges_from_records=0,
        slices=slices,
        in_place_from_rows=chance.choice([0, 1 << 40]),
        at_once_records=chance.choice([0, 1 << 40]),
    )
    report = run_backfill(plan_backfill(partial(plan_of, BATCH, name), address), runner)
    assert not any(stage.tasks == 0 for stage in report.stages)
    return f"{ranges} ranges, {slices} slices, {shuffled} shuffle partitions: {'; '.join(stage.way for stage in report.stages)}"


def show(outcome: Outcome) -> None:
    """Print a line, and below it where results differ."""
    words = "DIFFERS" if outcome.differences else "equal"
    print(f"  {outcome.family:<26} {outcome.seconds:>6.1f} s  {words:<8} {outcome.way}", flush=True)
    for line in outcome.differences:
        print(f"      {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
