"""Days, weeks and months of a time zone, also where its clocks change."""

from __future__ import annotations

import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log import InvalidInput, UnknownName
from logflume.streams.calendars import LONGEST_MS, CalendarUnit, calendar_span
from logflume.streams.testing import TopologyTestDriver

HOUR = 3_600_000
ZONES = ("Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia", "Australia/Lord_Howe", "UTC")


def ms(text: str, zone: str) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def counted(window: Any, *times: int, emit: str = "update") -> tuple[list[tuple[int, int, int]], TopologyTestDriver]:
    app = lf.App("calendar")
    app.stream("in").group_by_key().window(window).count(name="c", emit=emit).to("out")
    driver = TopologyTestDriver(app, on_problem="skip")
    for time in times:
        driver.input("in").send({}, key="k", timestamp_ms=time)
    return [(r.key.start_ms, r.key.end_ms, r.value["count"]) for r in driver.output("out").read()], driver


@pytest.mark.parametrize(
    ("unit", "zone", "time", "start", "end", "hours"),
    [
        ("day", "Europe/Berlin", "2024-03-31T12:00", "2024-03-31", "2024-04-01", 23),
        ("day", "Europe/Berlin", "2024-10-27T02:30", "2024-10-27", "2024-10-28", 25),
        ("day", "America/Sao_Paulo", "2018-11-04T12:00", "2018-11-04", "2018-11-05", 23),
        ("week", "Europe/Berlin", "2024-03-31T23:59", "2024-03-25", "2024-04-01", 167),
        ("month", "America/New_York", "2024-02-29T23:00", "2024-02-01", "2024-03-01", 29 * 24),
        ("quarter", "UTC", "2024-06-30T23:59", "2024-04-01", "2024-07-01", 91 * 24),
        ("year", "UTC", "2024-12-31T23:59", "2024-01-01", "2025-01-01", 366 * 24),
    ],
)
def test_a_window_is_as_long_as_the_clocks_make_it(unit: str, zone: str, time: str, start: str, end: str, hours: int) -> None:
    rows, _ = counted(lf.calendar(unit, zone=zone), ms(time, zone))
    assert rows == [(ms(start, zone), ms(end, zone), 1)]
    assert rows[0][1] - rows[0][0] == hours * HOUR


@given(st.sampled_from(ZONES), st.sampled_from(list(CalendarUnit)), st.integers(0, 4_000_000_000_000))
def test_windows_hold_their_records_and_follow_each_other_without_gaps(zone: str, unit: CalendarUnit, time: int) -> None:
    start, end = calendar_span(unit, zone, time)
    assert start <= time < end
    assert end - start <= LONGEST_MS[unit]
    assert calendar_span(unit, zone, start) == calendar_span(unit, zone, end - 1) == (start, end)
    assert calendar_span(unit, zone, end)[0] == end


def test_results_at_a_windows_close_leave_once_and_in_order() -> None:
    zone = "Europe/Berlin"
    days = [ms(f"2024-03-{day}T12:00", zone) for day in (30, 31)] + [ms("2024-04-01T12:00", zone)]
    window = lf.calendar("day", zone=zone, grace=lf.hours(1))
    rows, driver = counted(window, days[0], days[1], ms("2024-04-01T00:30", zone), days[0], days[1], days[2], emit="final")
    assert rows == [
        (ms("2024-03-30", zone), ms("2024-03-31", zone), 1),
        (ms("2024-03-31", zone), ms("2024-04-01", zone), 2),
    ]
    assert driver.problems == {"late": 1}


def test_a_time_beyond_the_calendar_is_counted_and_the_others_go_on() -> None:
    rows, driver = counted(lf.calendar("month", zone="UTC"), 0, 253_402_300_799_000, (1 << 63) - 1, 5)
    assert [count for _, _, count in rows] == [1, 2]
    assert driver.problems == {"expression": 2}


def test_what_no_calendar_has_is_refused_with_near_matches() -> None:
    with pytest.raises(UnknownName, match="did you mean 'month'"):
        lf.calendar("monht")
    with pytest.raises(UnknownName, match="Europe/Berlin"):
        lf.calendar("day", zone="Europe/Berln")
    with pytest.raises(UnknownName):
        lf.calendar("day", zone=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="non-negative"):
        lf.calendar("day", grace=-1)
