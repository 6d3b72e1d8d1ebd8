"""One application for each family of operators, in one process, until it is killed or told to stop.

`python -m tests.end_to_end.families_app BOOTSTRAP STATE_DIR PREFIX`; PREFIX begins the names of applications and outputs. Prints
a line when all run.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import logflume.streams as lf
from logflume.log import connect
from logflume.streams.runtime import Engine, EngineOptions
from tests.streams.test_operators_engine import APPS


def slug(name: str) -> str:
    return name.replace(" ", "-")


def make(prefix: str, name: str) -> lf.App:
    """Return the application of a family."""
    app = lf.App(f"{prefix}-{slug(name)}")
    found = APPS[name](app)
    (found.to_stream() if isinstance(found, lf.Table) else found).to(f"{prefix}-{slug(name)}-out", partitions=1)
    return app


def main(bootstrap: str, state_dir: str, prefix: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with connect(bootstrap) as log:
        engines = []
        for name in APPS:
            options = EngineOptions(state_dir=Path(state_dir) / slug(name), commit_interval_ms=20)
            engines.append(Engine(make(prefix, name).plan(), log, options))
            engines[-1].start()
        print("running", flush=True)
        stopping.wait()
        for engine in engines:
            engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
