"""An engine worker of `logflume serve`: runs the persistent queries of the log's SQL catalog and answers pull queries from state.

python -m logflume.cli.worker --bootstrap HOST:PORT --state-dir DIR
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from logflume.log import LogflumeError, connect

CATCH_UP_EVERY_S = 0.1


def main() -> int:
    """Run until SIGTERM or SIGINT; returns 1 with the cause on stderr when the worker cannot go on."""
    parser = argparse.ArgumentParser(prog="python -m logflume.cli.worker", description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the broker")
    parser.add_argument("--state-dir", required=True, type=Path, metavar="DIR", help="where the state of the queries is kept")
    args = parser.parse_args()
    stopping = threading.Event()
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, lambda *_: stopping.set())
    try:
        work(args.bootstrap, args.state_dir, stopping)
    except LogflumeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def work(bootstrap: str, state_dir: Path, stopping: threading.Event) -> None:
    """Follow the catalog: start what it gains, stop what it loses."""
    from logflume.sql import SqlEngine
    from logflume.sql.pull_service import PullService

    with connect(bootstrap) as log, SqlEngine(log, state_dir) as engine, PullService(engine, log):
        told = 0
        while not stopping.wait(CATCH_UP_EVERY_S):
            engine.catch_up()
            for problem in engine.problems[told:]:
                print(problem, file=sys.stderr, flush=True)
            told = len(engine.problems)


if __name__ == "__main__":
    sys.exit(main())
