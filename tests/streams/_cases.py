"""Recorded cases: random topologies with the results of Kafka Streams, from outside the repository.

They are found through LOGFLUME_STREAMS_CASES, or in `../shared/streams-cases` beside the repository.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .oracle.functions import text

Json = Any
CASES = Path(os.environ.get("LOGFLUME_STREAMS_CASES", Path(__file__).resolve().parents[2].parent / "shared" / "streams-cases"))
FAMILIES = tuple(sorted(path.stem for path in CASES.glob("*.json")))


def is_without_cases() -> bool:
    return not FAMILIES


def cases(family: str) -> list[Json]:
    found: list[Json] = json.loads((CASES / f"{family}.json").read_text())["cases"]
    return found


def by_key(records: list[Json]) -> dict[str, list[Json]]:
    """Return the sequence of each key: all that is compared where a topic has no order over keys."""
    found: dict[str, list[Json]] = {}
    for record in records:
        found.setdefault(text(record["key"]), []).append(record)
    return found
