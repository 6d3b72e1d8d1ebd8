"""The application of `test_streams_instances.py`: `python -m tests.end_to_end.joining_app BOOTSTRAP STATE_DIR INSTANCE`.

A table that is joined, a count per user, and a count per user and window behind a change of key. Prints a line when it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

import logflume.streams as lf
from logflume.log import connect
from logflume.streams import col
from logflume.streams.runtime import EngineOptions, EngineStatus, run_app

APPLICATION = "joining"
WINDOW_MS = 1000


class Event(msgspec.Struct):
    n: int
    page: str


class User(msgspec.Struct):
    name: str


def topology() -> lf.App:
    """Return the application."""
    app = lf.App(APPLICATION)
    events = app.stream("events", Event)
    events.join(app.table("users", User)).to("joined")
    events.group_by_key().count(name="per_user").to("counts")
    events.group_by(col.page).window(lf.tumbling(WINDOW_MS, grace=lf.days(1))).count(name="per_page").to("pages")
    return app


def main(bootstrap: str, state_dir: str, instance: str = "") -> None:
    """Run until killed or told to stop."""
    has_printed = False

    def show(status: EngineStatus) -> None:
        nonlocal has_printed
        if status.tasks and not has_printed:
            has_printed = True
            print("running", flush=True)

    options = EngineOptions(state_dir=Path(state_dir), commit_interval_ms=20, memory_bytes=1 << 20, instance_id=instance or None)
    with connect(bootstrap) as log:
        run_app(topology().plan(), log, options, on_status=show)


if __name__ == "__main__":
    main(*sys.argv[1:])
