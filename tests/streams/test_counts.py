"""What an application says it did: each record counted once, whatever happens between the log and the state."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import TransportError
from logflume.log.interfaces import Log
from tests.streams.running import embedded, read, running, until, write


class Row(msgspec.Struct):
    n: int


def counting() -> lf.App:
    app = lf.App("counts")
    app.stream("in", Row, key=str).group_by_key().aggregate(n=lf.count(), name="n").to("out")
    return app


class FailsOnce:
    """Loses the log at a step of the first task commit with records."""

    def __init__(self, step: str) -> None:
        self.step, self.seen, self.log_lost = step, 0, False

    def __call__(self, step: str) -> None:
        if step == self.step and not self.log_lost:
            self.log_lost = True
            raise TransportError("the connection is gone")


@pytest.mark.parametrize("step", ["after-flush", "after-send-offsets", "after-log-commit", "after-store-batch"])
def test_a_commit_whose_end_nobody_heard_of_is_counted_once(tmp_path: Path, step: str) -> None:
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in")
        write(log, "in", [(b"k%d" % (i % 3), b"broken" if i % 5 == 0 else b'{"n":1}', i) for i in range(50)])
        with running(counting(), log, tmp_path / "state", failpoint=(failing := FailsOnce(step))) as engine:
            until(lambda: failing.log_lost and total(log) == 40, engine)
            until(lambda: engine.status().lag_records == 0, engine)
            status = engine.status()
            assert (status.records_in, status.dropped) == (50, {"decode": 10})
            assert status.commit.aborts == 1


def total(log: Log) -> int:
    return sum({r.key: msgspec.json.decode(r.value or b"")["n"] for r in read(log, "out")}.values())
