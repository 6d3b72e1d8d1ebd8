"""A process that runs backfills without Spark and kills itself at a failpoint: ADDRESS NAME KIND FAILPOINT MARKER [KEEP].

KIND: one, or several with + between them, which are computed together as NAME-KIND.
"""

import sys

from logflume.streams.spark import LocalRunner, plan_backfill, plan_together, run_together

from ._kills import KillOnce
from ._spark_apps import loader

if __name__ == "__main__":
    address, name, kind, failpoint, marker, *keep = sys.argv[1:]
    kept = next(iter(keep), None)
    if "+" in kind:
        plans = plan_together([loader(f"{name}-{each}", each) for each in kind.split("+")], address, keep=kept)
    else:
        plans = [plan_backfill(loader(name, kind), address, keep=kept)]
    for report in run_together(plans, LocalRunner(), failpoint=KillOnce(address, name, failpoint, marker)):
        print(report.results, report.entries)
