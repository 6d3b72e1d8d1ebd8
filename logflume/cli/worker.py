"""An engine worker of `logflume serve`: runs the persistent queries of the log's SQL catalog and answers pull queries from state.

python -m logflume.cli.worker --bootstrap WHERE --state-dir DIR
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from logflume.cli.sql_connectors import SqlConnectors
from logflume.cli.stopping import stop_on_signals
from logflume.log import LogflumeError
from logflume.log.children import end_with_parent
from logflume.log.collector import ShortCollections
from logflume.sql.function_files import functions_at
from logflume.sql.worker import run_worker


def main() -> int:
    """Run until SIGTERM or SIGINT; returns 1 with the cause on stderr when the worker cannot go on."""
    end_with_parent(signal.SIGTERM)
    parser = argparse.ArgumentParser(prog="python -m logflume.cli.worker", description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="WHERE", help="the broker: HOST:PORT or unix:PATH")
    parser.add_argument("--state-dir", required=True, type=Path, metavar="DIR", help="where the state of the queries is kept")
    parser.add_argument("--functions", type=Path, metavar="FILE", help="functions in Python that queries may call; or a folder")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        with ShortCollections().over_batches():
            functions = functions_at(args.functions)
            run_worker(args.bootstrap, stop_on_signals, state_dir=args.state_dir, connectors=SqlConnectors, functions=functions)
    except LogflumeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
