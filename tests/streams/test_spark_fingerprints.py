"""What a backfill has kept is taken for the same application only: any change of what it computes is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logflume.streams.spark import AppFile
from logflume.streams.spark.kept import meaning_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from functools import partial

import msgspec

import logflume as lf
from logflume import col
import limits
from limits import floor

LEAST = 5
NAMES = {"a": 1, "b": 2}


class Order(msgspec.Struct):
    shop: str
    amount: float

    def cents(self):
        return self.amount * 100


def is_big(order, factor=2):
    return least() * factor < order.cents()


def least():
    return LEAST


def at_least(number):
    return lambda order: order.amount >= number and order.shop in NAMES


def scaled(order, *, by):
    return order.amount > floor(by)


app = lf.App("orders")
orders = app.stream("orders", Order).filter(is_big).filter(at_least(3)).filter(partial(scaled, by=7))
orders = orders.filter(lambda order: order.amount < limits.MOST).filter(col.amount < 900)
orders.group_by(col.shop).aggregate(n=lf.count()).to("counts")

if __name__ == "__main__":
    app.run()
"""
LIMITS = "MOST = 1000\n\n\ndef floor(by):\n    return by // 2\n"


def written(folder: Path, program: str = PROGRAM, limits: str = LIMITS) -> Path:
    folder.mkdir()
    (folder / "limits.py").write_text(limits)
    (folder / "orders.py").write_text(program)
    return folder / "orders.py"


def meaning(folder: Path, program: str = PROGRAM, limits: str = LIMITS) -> str:
    sys.modules.pop("limits", None)
    try:
        return meaning_of(AppFile(str(written(folder, program, limits)))())
    finally:
        sys.modules.pop("limits", None)
        sys.path[:] = [path for path in sys.path if path != str(folder.resolve())]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LEAST = 5", "LEAST = 6"),
        ('"b": 2', '"c": 2'),
        ("* 100", "* 101"),
        ("factor=2", "factor=3"),
        ("at_least(3)", "at_least(4)"),
        ("by=7", "by=8"),
        ("< limits.MOST", "<= limits.MOST"),
        ("col.amount < 900", "col.amount < 901"),
        ("n=lf.count()", "n=lf.max(col.amount)"),
        ("MOST = 1000", "MOST = 1001"),
        ("by // 2", "by // 3"),
    ],
)
def test_any_change_of_what_is_computed_is_noticed(tmp_path: Path, before: str, after: str) -> None:
    assert (PROGRAM + LIMITS).count(before) == 1
    changed = meaning(tmp_path / "changed", PROGRAM.replace(before, after), LIMITS.replace(before, after))
    assert changed != meaning(tmp_path / "as-it-was")


def test_what_says_the_same_in_other_lines_is_the_same(tmp_path: Path) -> None:
    moved = PROGRAM.replace("\n\n\n", "\n\n# a comment\n\n").replace("LEAST = 5", "LEAST = 2 + 3")
    assert meaning(tmp_path / "moved", moved) == meaning(tmp_path / "as-it-was")


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    file = written(tmp_path / "application")
    script = "import sys; from logflume.streams.spark import AppFile; from logflume.streams.spark.kept import meaning_of; "
    script += "print(meaning_of(AppFile(sys.argv[1])()))"
    found = set()
    for seed in ("1", "2"):  # the second finds what Python has compiled
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script, str(file)], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
