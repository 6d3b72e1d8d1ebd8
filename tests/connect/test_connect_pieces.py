"""The pure pieces of the worker: pace, pause between restarts, figures, state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logflume.connect import ConnectorStatus, State, TaskStatus
from logflume.connect.backoff import LONGEST_PAUSE_S, restart_pause_s
from logflume.connect.meter import Meter
from logflume.connect.pacing import Pacer
from logflume.connect.status import worst


@given(rate=st.floats(1, 1e5), steps=st.lists(st.floats(0, 2), min_size=1, max_size=30))
def test_a_rate_is_kept_and_used(rate: float, steps: list[float]) -> None:
    pacer = Pacer(records_per_second=rate, replay_speed=0, now_s=0)
    now_s, given_out, endless = 0.0, 0, np.zeros(1_000_000, np.int64)
    for step in steps:
        now_s += step
        count = pacer.due(endless, now_s=now_s)
        pacer.gave(count)
        given_out += count
        assert given_out <= rate * now_s + max(1, rate * 0.1)
        assert given_out >= int(rate * now_s) or count == len(endless)


def test_replay_follows_event_time() -> None:
    pacer = Pacer(records_per_second=0, replay_speed=60, now_s=5.0)
    times = np.array([1000, 2000, 61_000, 121_000], np.int64)
    assert pacer.due(times, now_s=10.0) == 1
    assert pacer.due(times[1:], now_s=10.5) == 1
    assert pacer.due(times[2:], now_s=10.9) == 0
    assert pacer.wait_s(times[2:], now_s=10.9) == pytest.approx(0.1)
    assert pacer.due(times[2:], now_s=11.0) == 1
    assert pacer.due(times[2:], now_s=99.0) == 2


def test_pauses_grow_to_a_bound() -> None:
    pauses = [restart_pause_s(failures) for failures in range(1, 40)]
    assert pauses == sorted(pauses)
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_the_meter_tells_rate_and_time_left() -> None:
    meter = Meter(now_s=0)
    meter.total = 1000
    for second in range(1, 9):
        meter.done = second * 100
        meter.add(10, now_s=second)
    assert meter.rate(now_s=8) == pytest.approx(10)
    assert meter.eta_s(now_s=8) == pytest.approx(2)
    assert meter.rate(now_s=60) == 0
    assert meter.eta_s(now_s=60) is None


def test_a_connector_is_as_well_as_its_worst_task() -> None:
    tasks = (
        TaskStatus(task=0, state=State.RUNNING, records=5, rate=1.5),
        TaskStatus(task=1, state=State.FAILED, records=1, broken=2, cause="no disk"),
        TaskStatus(task=2, state=State.RESTARTING, cause="no net"),
    )
    status = ConnectorStatus(name="a", connector="file-source", kind="source", guarantee="exactly-once", tasks=tasks)
    assert (status.state, status.cause, status.records, status.broken, status.rate) == (State.FAILED, "no disk", 6, 2, 1.5)
    assert status.to_json()["tasks"][1]["trace"] == "no disk"
    assert worst([]) is State.UNASSIGNED
