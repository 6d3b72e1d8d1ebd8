"""Prints for each query whether it gives what the batch computation gives, and its CPU an event (without the log around it).

`python -m benchmarks.nexmark [--events=N]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks._report import Figure, main
from benchmarks.streams_programs import run as cost

from .events import make_events
from .queries import QUERIES
from .running import chunks, expected, run

CHECKED = 2_000


def text(row: object) -> str:
    return repr(row if isinstance(row, dict) else {name: getattr(row, name) for name in row.__struct_fields__})  # type: ignore[attr-defined]


def measure_queries() -> Iterator[Figure]:
    """Each query, checked over a few events and measured over many."""
    given = [word.partition("=")[2] for word in sys.argv if word.startswith("--events=")]
    few, many = make_events(CHECKED), chunks(make_events(int(given[0]) if given else 50_000))
    for name, query in QUERIES.items():
        found, wanted = run(name, few), expected(name, few)
        is_equal = found == wanted if isinstance(wanted, dict) else sorted(map(text, found)) == sorted(map(text, wanted))
        says = "equal" if is_equal else "DIFFERS"
        spent = cost(query, many, has_kernels=True)
        yield Figure(f"{name} {(query.__doc__ or '').rstrip('.').lower()}: {says}", spent, "us/event")


if __name__ == "__main__":
    main(measure_queries)
