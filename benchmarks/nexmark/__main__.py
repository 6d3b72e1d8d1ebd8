"""Prints for each query whether it gives what the batch computation gives, and its CPU an event (without the log around it).

`python -m benchmarks.nexmark [--events=N]`: the queries of the DSL, then those in SQL (through the test driver, over few events).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from benchmarks._report import Figure, main
from benchmarks.streams_programs import run as cost

from .events import make_events
from .queries import QUERIES
from .running import chunks, expected, is_equal, run
from .sql_running import run as run_in_sql
from .statements import QUERIES as QUERIES_IN_SQL

CHECKED = 2_000


def measure_queries() -> Iterator[Figure]:
    """Each query, checked over a few events and measured over many."""
    given = [word.partition("=")[2] for word in sys.argv if word.startswith("--events=")]
    few, many = make_events(CHECKED), chunks(make_events(int(given[0]) if given else 50_000))
    for name, query in QUERIES.items():
        found, wanted = run(name, few), expected(name, few)
        says = "equal" if is_equal(found, wanted) else "DIFFERS"
        spent = cost(query, many, has_kernels=True)
        yield Figure(f"{name} {(query.__doc__ or '').rstrip('.').lower()}: {says}", spent, "us/event")


def measure_statements() -> Iterator[Figure]:
    """Each query in SQL, checked over a few events: what it costs in all, to be planned among it."""
    few = make_events(CHECKED)
    for name in QUERIES_IN_SQL:
        started = time.process_time()
        says = "equal" if is_equal(run_in_sql(name, few), expected(name, few)) else "DIFFERS"
        yield Figure(f"{name} in SQL: {says}", (time.process_time() - started) * 1e3, "CPU ms/query")


if __name__ == "__main__":
    main(measure_queries, measure_statements)
