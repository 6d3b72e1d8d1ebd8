"""What a backfill has kept is taken for the same application only: any change of what it computes is noticed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logflume.streams.spark import AppFile
from logflume.streams.spark.fingerprints import fingerprint
from logflume.streams.spark.kept import meaning_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import logging
import re
from functools import cache, partial

import msgspec
import numpy as np

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


class Rated:
    least_rate = 11

    def rate(self, order):
        return order.amount + 12


class Scorer(Rated):
    def __init__(self, number):
        self.number = number

    def __call__(self, order):
        log.debug("scored")
        return self.rate(order) * self.twice(13) > self.least + self.shared() + floor(self.number) + cached(14)

    @staticmethod
    def twice(number):
        return number * 15

    @classmethod
    def shared(cls):
        return cls.least_rate + 16

    @property
    def least(self):
        return 17


@cache
def cached(number):
    return number * 18


def is_known(order):
    return bool(SHOPS.match(order.shop)) and RATES[0] < order.amount


log = logging.getLogger(__name__)
SHOPS = re.compile("[abc]19", re.ASCII)
RATES = np.arange(20, 3000)

app = lf.App("orders")
scored = app.stream("orders", Order).filter(Scorer(3)).filter(is_known)
orders = scored.filter(is_big).filter(at_least(3)).filter(partial(scaled, by=7))
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
        ("Scorer(3)", "Scorer(4)"),
        ("self.twice(13)", "self.twice(14)"),
        ("least_rate = 11", "least_rate = 12"),
        ("order.amount + 12", "order.amount + 13"),
        ("number * 15", "number * 16"),
        ("least_rate + 16", "least_rate + 17"),
        ("return 17", "return 18"),
        ("number * 18", "number * 19"),
        ("[abc]19", "[abd]19"),
        ("re.ASCII", "re.IGNORECASE"),
        ("arange(20, 3000)", "asarray([20] + list(range(22, 3001)))"),
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


def test_loggers_of_others_do_not_count(tmp_path: Path) -> None:
    before = meaning(tmp_path / "before")
    for number in range(100):
        logging.getLogger(f"{__name__}.{number}").addHandler(logging.NullHandler())
    assert meaning(tmp_path / "after") == before


def test_what_is_nested_in_keys_has_an_end_too() -> None:
    nested: frozenset[object] = frozenset()
    for _ in range(2_000):
        nested = frozenset({nested})
    assert fingerprint(nested) == fingerprint(frozenset({nested})) != fingerprint(frozenset())


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
