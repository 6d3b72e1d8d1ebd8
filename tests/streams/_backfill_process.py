"""A process that runs a backfill without Spark and kills itself at a failpoint: ADDRESS NAME KIND FAILPOINT."""

import os
import signal
import sys

from logflume.streams.spark import LocalRunner, plan_backfill, run_backfill

from ._spark_apps import loader

if __name__ == "__main__":
    address, name, kind, failpoint = sys.argv[1:]

    def die(reached: str) -> None:
        if reached == failpoint:
            os.kill(os.getpid(), signal.SIGKILL)

    report = run_backfill(plan_backfill(loader(name, kind), address), LocalRunner(), failpoint=die)
    print(report.results, report.entries)
