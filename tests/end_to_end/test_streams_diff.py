"""`logflume streams diff`: what a changed file would do to state, before it runs."""

from __future__ import annotations

import json
from pathlib import Path

from ._command import run

APP = """
import logflume.streams as lf
app = lf.App("shop")
app.stream("orders", key=str).group_by_key().aggregate(n=lf.count(), name="{name}").to("out")
app.run()
"""


def test_a_renamed_store_is_told_before_it_is_lost(tmp_path: Path) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(APP.format(name="counts"))
    new.write_text(APP.format(name="totals"))
    assert "kept" in run("streams", "diff", str(old), str(old)).stdout
    rows = [json.loads(line) for line in run("streams", "diff", str(old), str(new), "--json", code=1).stdout.splitlines()]
    assert [(row["fate"], row["name"]) for row in rows] == [("lost", "counts"), ("new", "totals")]
    assert "drops=['counts']" in rows[0]["why"]
