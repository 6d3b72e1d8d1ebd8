"""A process that replaces "old" by "new" without Spark and kills itself at a failpoint: ADDRESS FAILPOINT."""

import os
import signal
import sys

from logflume.streams.spark import LocalRunner, plan_backfill, run_backfill

from ._replace_apps import maker
from ._spark_apps import Once

if __name__ == "__main__":
    address, at = sys.argv[1:]
    planned = plan_backfill(maker("new", "table", 5), address, replaces="old")
    run_backfill(planned, LocalRunner(), failpoint=Once(at, lambda: os.kill(os.getpid(), signal.SIGKILL)))
