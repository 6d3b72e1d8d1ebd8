"""How much an engine processes before it looks around: to commit, to fetch, to answer its group."""

from __future__ import annotations

ROUND_S = 0.2
"""About how long a round may take. Results of a backlog become visible that soon, however slow the records are."""
FIRST_RECORDS, MIN_RECORDS, MAX_RECORDS = 4_096, 256, 50_000


class Pace:
    """`records`: how many of each task make a round, by how long the last ones took."""

    def __init__(self) -> None:
        self.records = FIRST_RECORDS

    @property
    def fetched_records(self) -> int:
        """How many to fetch before the next round: until kernels are loaded, decoding a backlog whole would take seconds."""
        return 2 * self.records

    def took(self, records: int, seconds: float) -> None:
        """Hear how many records the last round had, and how long it took.

        >>> pace = Pace()
        >>> pace.took(4_096, 0.9)
        >>> pace.records
        2048
        """
        if seconds > 2 * ROUND_S:
            self.records = max(MIN_RECORDS, self.records // 2)
        elif seconds < ROUND_S / 2 and records >= self.records:
            self.records = min(MAX_RECORDS, self.records * 2)
