"""How long to wait before a failed task is started again. Pure."""

from __future__ import annotations

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_AFTER_S = 60.0
"""A task that ran this long without failing starts again with the first pause."""


def restart_pause_s(failures: int) -> float:
    """Return the pause after the N-th failure in a row (N >= 1): doubling from 0.5 s to 30 s.

    >>> [restart_pause_s(n) for n in (1, 2, 3, 20)]
    [0.5, 1.0, 2.0, 30.0]
    """
    assert failures >= 1
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16), LONGEST_PAUSE_S)
