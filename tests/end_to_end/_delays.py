"""Flights for `examples/delays.py`, and what the application makes of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ._command import LOOK_EVERY_S, run

DELAYS = Path(__file__).resolve().parents[2] / "examples" / "delays.py"
HOUR_MS = 3_600_000


def load(address: str) -> None:
    """Create the topics, and send two airlines and 60 flights, one a minute; the odd ones are late by 20 to 49 minutes."""
    run("topic", "create", "flights", "--partitions", "2", "--bootstrap", address)
    run("topic", "create", "airlines", "--partitions", "2", "--config", "cleanup.policy=compact", "--bootstrap", address)
    airlines = [{"carrier": "UA", "name": "United"}, {"carrier": "DL", "name": "Delta"}]
    send(address, "airlines", [(airline["carrier"], airline) for airline in airlines])
    send(address, "flights", [flight(n) for n in range(60)])


def flight(n: int) -> tuple[str, dict[str, object]]:
    """Return the key and value of a flight."""
    carrier = "UA" if n % 4 < 2 else "DL"
    return carrier, {"carrier": carrier, "dep_delay": float(20 + n % 30 if n % 2 else 5)}


def send(address: str, topic: str, records: list[tuple[str, dict[str, object]]]) -> None:
    """Send JSON records, with keys."""
    lines = "".join(f"{key}|{json.dumps(value)}\n" for key, value in records)
    run("produce", topic, "-K", "|", "--bootstrap", address, stdin=lines)


def flights_counted(address: str) -> dict[str, int]:
    """Return how many late flights of each airline the newest results have, over all hours."""
    found: dict[str, dict[str, int]] = {}
    for line in run("consume", "delays", "--json", "--bootstrap", address).stdout.splitlines():
        record = json.loads(line)
        found.setdefault(record["key"], {})[record["window_start"]] = json.loads(record["value"])["flights"]
    return {name: sum(hours.values()) for name, hours in found.items()}


def wait_for(address: str, wanted: dict[str, int]) -> None:
    """Wait until the results say this."""
    deadline = time.monotonic() + 60
    while (found := flights_counted(address)) != wanted:
        assert time.monotonic() < deadline, (found, wanted)
        time.sleep(LOOK_EVERY_S)
