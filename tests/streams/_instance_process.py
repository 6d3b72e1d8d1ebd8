"""Runs an application until it is killed: `python -m tests.streams._instance_process ADDRESS STATE_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

import logflume.streams as lf
from logflume.log import connect
from logflume.streams.runtime import EngineOptions, run_app


def passing_on() -> lf.App:
    app = lf.App("passing")
    app.stream("in", str).group_by_key().count(name="counts").to("out")
    return app


def main(address: str, state_dir: str) -> None:
    options = EngineOptions(state_dir=Path(state_dir), commit_interval_ms=20, session_timeout_ms=600_000)
    with connect(address) as log:
        run_app(passing_on().plan(), log, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
