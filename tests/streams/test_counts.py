"""What an application says it did: each record counted once, whatever happens between the log and the state."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import logflume.streams as lf
from logflume.log import TransportError
from logflume.log.interfaces import Log
from logflume.streams.runtime.metrics import exposition
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


def test_what_goes_through_a_repartition_topic_is_counted_apart(tmp_path: Path) -> None:
    app = lf.App("apart")
    app.stream("in", Row, key=str).group_by(lf.col.n).aggregate(rows=lf.count(), name="rows").to("out")
    with embedded(tmp_path / "data") as log:
        log.admin().ensure_topic("in")
        write(log, "in", [(b"k", b"broken" if i % 5 == 0 else b'{"n":%d}' % (i % 3), i) for i in range(50)])
        with running(app, log, tmp_path / "state") as engine:
            until(lambda: sum(row.records_in + row.repartitioned for row in engine.status().tasks) == 90, engine)
            until(lambda: engine.status().lag_records == 0, engine)
            until(lambda: engine.status().records_out == len(read(log, "out")) >= 3, engine)  # both move with the same commit
            status = engine.status()
            assert (status.records_in, status.repartitioned) == (50, 40)
            (place,) = status.left_out
            assert (place.topic, place.reason, place.records) == ("in", "decode", 10)
            assert place.first.startswith("in-0 offset 0: ")
            text = exposition(status).decode()
            assert f'node="{place.node}",reason="decode",topic="in"}} 10.0' in text.replace(", ", ",")
