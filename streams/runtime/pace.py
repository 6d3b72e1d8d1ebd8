"""How much an engine processes before it looks around: to commit, to fetch, to answer its group."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(slots=True)
class CommitPace:
    """When the next task commit is due: once per interval, from the start of one to the start of the next.

    In a backlog commits that take long leave half of the interval to the records; who has caught up has nothing to wait for.

    >>> pace = CommitPace(0.010)
    >>> pace.committed(1.000, 1.012)
    >>> pace.is_due(1.013, is_behind=False), pace.is_due(1.013, is_behind=True), pace.is_due(1.017, is_behind=True)
    (True, False, True)
    """

    interval_s: float
    due_s: float = 0.0
    ended_s: float = 0.0

    def committed(self, started_s: float, ended_s: float) -> None:
        self.due_s, self.ended_s = started_s + self.interval_s, ended_s

    def is_due(self, now_s: float, *, is_behind: bool) -> bool:
        return now_s >= (max(self.due_s, self.ended_s + self.interval_s / 2) if is_behind else self.due_s)
