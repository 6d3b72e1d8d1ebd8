"""Some seconds of the fuzz that `make fuzz` runs for ten minutes: after a kill and a restart everything told is there."""

from pathlib import Path

import pytest

from ._run import HONEST, fuzz


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_a_fuzz_and_a_restart_everything_told_is_there(tmp_path: Path) -> None:
    counts = fuzz(tmp_path / "data", seconds=4, seed=5).counts
    assert all(counts[name] for name in ("frames", *HONEST, "records read back")), counts
