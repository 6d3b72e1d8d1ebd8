"""The applications of some families in one process, until it is killed or told to stop.

`python -m tests.kills._application BOOTSTRAP STATE_DIR PREFIX FAMILIES [kernels|-] [STEP N]`; PREFIX begins the names of
applications and outputs. With `kernels` they do the work from the first record on, without it nothing loads them. With a step of
a task commit, or `restore`, the process kills itself when it comes there for the Nth time. Prints a line when all run, and one
when an application has ended by itself; after SIGUSR1, one when nothing restores its state any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from logflume.cli.stopping import stop_on_signals
from logflume.log import connect
from logflume.streams.kernels import kernel_loader
from logflume.streams.runtime import Engine, EngineOptions, EngineState
from logflume.streams.state import TaskState
from tests.kills._families import named, plan_of, slug

RESTORE = "restore"


def choose_kernels(form: str) -> None:
    """Have the kernels do everything, or nothing."""
    if form == "kernels":
        assert kernel_loader().load("chains", "meetings", "message_rows", "sessions", "sliding")
    else:
        kernel_loader().stay_out()


def dying(step: str, nth: int) -> Callable[[str], None]:
    """Return a failpoint that kills this process when it comes to a step for the nth time."""
    lock, passed = threading.Lock(), 0

    def pass_by(reached: str) -> None:
        nonlocal passed
        if reached != step:
            return
        with lock:
            passed += 1
            if passed == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    restore = TaskState.restore

    def restore_some(*given: Any) -> None:
        restore(*given)
        pass_by(RESTORE)

    if step == RESTORE:
        TaskState.restore = restore_some  # type: ignore[method-assign]
    return pass_by


def main(bootstrap: str, state_dir: str, prefix: str, families: str, form: str = "", step: str = "", nth: str = "0") -> None:
    stopping, settling = stop_on_signals(), threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: settling.set())
    choose_kernels(form)
    failpoint = dying(step, int(nth))
    with connect(bootstrap) as log:
        engines = []
        for name in named(families):
            options = EngineOptions(state_dir=Path(state_dir) / slug(name), commit_interval_ms=20, failpoint=failpoint)
            engines.append(Engine(plan_of(prefix, name), log, options))
            engines[-1].start()
        print("running", flush=True)
        while not stopping.wait(0.2):
            if settling.is_set() and all(engine.status().state is EngineState.RUNNING for engine in engines):
                settling.clear()
                print("settled", flush=True)
            for engine in engines:
                if engine.has_ended:
                    print(f"{engine.plan.application} ended: {engine.status().error}", flush=True)
                    engine.wait()
        with ThreadPoolExecutor(len(engines)) as pool:
            list(pool.map(Engine.stop, engines))


if __name__ == "__main__":
    main(*sys.argv[1:])
