"""The application that `test_streams_kill.py` kills: `python -m tests.end_to_end.streams_app BOOTSTRAP STATE_DIR [FAILPOINT N]`.

With a failpoint it sends itself SIGKILL when it passes that one for the Nth time. Prints a line when it has its first task.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from logflume.log import connect
from logflume.streams.runtime import EngineOptions, EngineStatus, run_app
from tests.streams.handmade import everything_plan

APPLICATION = "killed"


def main(bootstrap: str, state_dir: str, failpoint: str = "", nth: str = "0", session_timeout_ms: str = "45000") -> None:
    """Run until killed or told to stop."""
    passed: Counter[str] = Counter()

    def pass_by(name: str) -> None:
        passed[name] += 1
        if name == failpoint and passed[name] == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

    has_printed = False

    def show(status: EngineStatus) -> None:
        nonlocal has_printed
        if status.tasks and not has_printed:
            has_printed = True
            print("running", flush=True)

    options = EngineOptions(
        state_dir=Path(state_dir), commit_interval_ms=20, failpoint=pass_by, session_timeout_ms=int(session_timeout_ms)
    )
    with connect(bootstrap) as log:
        run_app(everything_plan(APPLICATION), log, options, on_status=show)


if __name__ == "__main__":
    main(*sys.argv[1:])
