"""Runs an application with standbys until it is killed: `python -m tests.streams._standby_process ADDRESS STATE_DIR NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

from logflume.log import connect
from logflume.streams.runtime import EngineOptions, run_app
from tests.streams.test_standbys import STANDBY, counting, joining

APPS = {"counting": counting, "joining": joining}


def main(address: str, state_dir: str, name: str) -> None:
    options = EngineOptions(state_dir=Path(state_dir), commit_interval_ms=20, instance_id="first", **STANDBY)
    with connect(address) as log:
        run_app(APPS[name]().plan(), log, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
