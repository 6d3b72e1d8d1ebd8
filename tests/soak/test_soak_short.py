"""Twenty seconds of the soak that `make soak` runs for ten minutes."""

from pathlib import Path

import pytest

from ._run import soak


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_torn_while_the_broker_is_killed(tmp_path: Path) -> None:
    result = soak(tmp_path / "data", seconds=12, seed=3, kill_every_s=(1.0, 3.0), min_kills=3)
    assert result.anomalies == []
    counts = result.counts
    assert counts["kills"] >= 3
    assert counts["pauses"]
    assert counts.get("compacting children killed", 0) + counts.get("brokers killed beside a stopped child", 0)
    looked_at = ("records acknowledged", "transactions committed", "records polled", "offset commits", "ends seen")
    assert all(counts[name] for name in (*looked_at, "records copied exactly once")), counts
