"""The examples give what their first lines say, over data that shows it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

import logflume as lf

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
Sent = tuple[str, str | None, dict[str, Any], int]
Given = tuple[str, Any, Any]

CASES: dict[str, tuple[list[Sent], list[Given]]] = {
    "sessions.py": (
        [
            ("clicks", None, {"user": "ann", "page": "/"}, 0),
            ("clicks", None, {"user": "ann", "page": "/pay", "cents": 500}, 40 * MINUTE_MS),
            ("clicks", None, {"user": "ann", "page": "/cart"}, 20 * MINUTE_MS),
            ("clicks", None, {"user": "bob", "page": "/"}, 10 * HOUR_MS),
        ],
        [("visits", ("ann", 0), {"clicks": 3, "spent_cents": 500})],
    ),
    "fraud.py": (
        [
            ("withdrawals", "4711", {"atm": "Oslo 3", "atm_country": "NO"}, 0),
            ("orders", "4711", {"cents": 9900, "country": "LV"}, 4 * MINUTE_MS),
            ("orders", "4711", {"cents": 100, "country": "NO"}, 4 * MINUTE_MS),
            ("orders", "4711", {"cents": 7700, "country": "LV"}, 6 * MINUTE_MS),
            ("orders", "815", {"cents": 1, "country": "LV"}, 1 * MINUTE_MS),
        ],
        [("suspicious", "4711", {"cents": 9900, "bought_in": "LV", "atm": "Oslo 3"})],
    ),
    "sensors.py": (
        [
            ("readings", None, {"sensor": "attic", "celsius": 20.0}, 5 * MINUTE_MS),
            ("readings", None, {"sensor": "attic", "celsius": None}, 6 * MINUTE_MS),
            ("readings", None, {"sensor": "attic", "celsius": 21.0}, 65 * MINUTE_MS),
            ("readings", None, {"sensor": "attic", "celsius": 30.0}, 50 * MINUTE_MS),
            ("readings", None, {"sensor": "attic", "celsius": 22.0}, 80 * MINUTE_MS),
            ("readings", None, {"sensor": "attic", "celsius": 99.0}, 55 * MINUTE_MS),
        ],
        [
            ("hourly", ("attic", 0), {"readings": 2, "mean": 25.0, "hottest": 30.0}),
            ("too-late", "attic", {"sensor": "attic", "celsius": 99.0}),
        ],
    ),
    "search_table.py": (
        [
            ("makers", "m1", {"name": "Acme", "country": "US"}, 0),
            ("products", "p1", {"title": "Red Pen", "maker": "m1"}, 1),
            ("makers", "m1", {"name": "Acme Pens", "country": "US"}, 2),
        ],
        [
            ("searchable", "p1", {"text": "red pen acme", "country": "US"}),
            ("searchable", "p1", {"text": "red pen acme pens", "country": "US"}),
        ],
    ),
    "features.py": (
        [
            ("payments", None, {"user": "ann", "cents": 100, "shop": "a"}, 0),
            ("payments", None, {"user": "ann", "cents": 300, "shop": "b"}, 1),
        ],
        [
            ("user-features", "ann", {"payments": 1, "total_cents": 100, "mean_cents": 100.0, "largest_cents": 100}),
            ("user-features", "ann", {"payments": 2, "total_cents": 400, "mean_cents": 200.0, "largest_cents": 300}),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_example_gives_what_it_says(name: str) -> None:
    sent, expected = CASES[name]
    app = runpy.run_path(str(EXAMPLES / name))["app"]
    driver = lf.TopologyTestDriver(app)
    for topic, key, value, time_ms in sent:
        driver.input(topic).send(value, key=key, timestamp_ms=time_ms)
    found = [
        (
            topic,
            (record.key.key, record.key.start_ms) if hasattr(record.key, "start_ms") else record.key,
            msgspec.to_builtins(record.value),
        )
        for topic in dict.fromkeys(topic for topic, _, _ in expected)
        for record in driver.output(topic).read()
    ]
    assert found == expected


@pytest.mark.parametrize("name", CASES)
def test_an_example_is_short_and_has_a_picture(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 60
    app = runpy.run_path(str(EXAMPLES / name))["app"]
    assert app._repr_svg_().startswith("<svg")
