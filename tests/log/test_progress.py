"""The line that tells where work is: on a terminal over itself, elsewhere now and then, and never for what is soon done."""

from __future__ import annotations

import io
import json

from logflume.log import ProgressLine


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_terminal_has_one_line_that_is_gone_at_the_end() -> None:
    screen, clock = Screen(), Clock()
    with ProgressLine(screen, monotonic_s=clock) as line:
        line.show("records read:", 1, 2_000)
        assert screen.getvalue() == "", "what is soon done says nothing"
        for clock.now_s, done in ((0.6, 500), (0.61, 501), (0.8, 1_000)):
            line.show("records read:", done, 2_000)
    shown = screen.getvalue().split("\r\x1b[K")[1:]
    assert shown == [
        "records read: 500 of 2,000 (25 %), 831.7/s, 2 s left",
        "records read: 1,000 of 2,000 (50 %), 1,248.8/s, 1 s left",
        "",
    ]


def test_what_is_no_terminal_has_a_line_every_five_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    with ProgressLine(out, monotonic_s=clock) as line:
        for second in range(12):
            clock.now_s = second
            line.show("step", second, 0)
    assert out.getvalue() == "step 5, 1.0/s\nstep 10, 1.0/s\n"


def test_speed_and_time_left_are_those_of_the_step_and_stand_in_json_too() -> None:
    out, clock = io.StringIO(), Clock()
    with ProgressLine(out, as_json=True, monotonic_s=clock) as line:
        for clock.now_s, what, done in ((0, "one", 0), (4, "one", 90), (4.5, "two", 10), (10.5, "two", 40), (20.5, "two", 100)):
            line.show(what, done, 100)
    told = [json.loads(text) for text in out.getvalue().splitlines()]
    assert told == [
        {"at": "two", "done": 40, "total": 100, "per_second": 5.0, "seconds_left": 12.0},
        {"at": "two", "done": 100, "total": 100, "per_second": 5.625, "seconds_left": 0.0},
    ]
