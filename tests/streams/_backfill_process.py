"""A process that runs a backfill without Spark and kills itself at a failpoint: ADDRESS NAME KIND FAILPOINT MARKER [KEEP]."""

import sys

from logflume.streams.spark import LocalRunner, plan_backfill, run_backfill

from ._kills import KillOnce
from ._spark_apps import loader

if __name__ == "__main__":
    address, name, kind, failpoint, marker, *keep = sys.argv[1:]
    plan = plan_backfill(loader(name, kind), address, keep=next(iter(keep), None))
    report = run_backfill(plan, LocalRunner(), failpoint=KillOnce(address, name, failpoint, marker))
    print(report.results, report.entries)
