"""One application for each family of operators, in one process, until it is killed or told to stop.

`python -m tests.end_to_end.families_app BOOTSTRAP STATE_DIR PREFIX GROUP [kernels]`; PREFIX begins the names of applications and
outputs, GROUP is one of `GROUPS`. With `kernels` they do the work from the first record on, without it nothing loads them.
Prints a line when all run.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import logflume.streams as lf
from logflume.cli.stopping import stop_on_signals
from logflume.log import connect
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions
from logflume.streams.seams import Plan
from tests.end_to_end.families_columns import DSL, SQL, sql_plan
from tests.streams.test_operators_engine import APPS

GROUPS = {"objects": tuple(APPS), "columns": tuple(DSL), "sql": tuple(SQL)}


def slug(name: str) -> str:
    return name.replace(" ", "-")


@cache
def plan_of(prefix: str, name: str) -> Plan:
    """Return the plan of a family's application."""
    application = f"{prefix}-{slug(name)}"
    if name in SQL:
        return sql_plan(application, name, f"{application}-out")
    app = lf.App(application)
    found = (APPS | DSL)[name](app)
    (found.to_stream() if isinstance(found, lf.Table) else found).to(f"{application}-out", partitions=1)
    return app.plan()


def choose_kernels(form: str) -> None:
    """Have the kernels do everything, or nothing."""
    if form == "kernels":
        assert kernel_loader().load("chains", "meetings", "message_rows", "sessions", "sliding")
    else:
        kernel_loader().stay_out()


def main(bootstrap: str, state_dir: str, prefix: str, group: str, form: str = "") -> None:
    stopping = stop_on_signals()
    choose_kernels(form)
    with connect(bootstrap) as log:
        engines = []
        for name in GROUPS[group]:
            options = EngineOptions(state_dir=Path(state_dir) / slug(name), commit_interval_ms=20)
            engines.append(Engine(plan_of(prefix, name), log, options))
            engines[-1].start()
        print("running", flush=True)
        stopping.wait()
        for engine in engines:
            engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
