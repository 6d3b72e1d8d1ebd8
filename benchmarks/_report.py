"""Prints measured figures beside their budgets: a table for people, `--json` for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure. `is_upper`: the budget is the most it may be; else the least. Budget None: for information."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    is_upper: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times better than the budget; below 1 it is missed."""
        if self.budget is None or not self.value:
            return None
        return self.budget / self.value if self.is_upper else self.value / self.budget


def report(figures: Iterable[Figure]) -> None:
    """Print the figures, as JSON lines with `--json` on the command line."""
    for figure in figures:
        if "--json" in sys.argv[1:]:
            print(json.dumps(asdict(figure) | {"ratio": figure.ratio}), flush=True)
            continue
        budget, verdict = "", ""
        if figure.budget is not None and figure.ratio is not None:
            budget = f"{'<=' if figure.is_upper else '>='} {figure.budget:,.6g}"
            verdict = f"{figure.ratio:6.2f}x  {'ok' if figure.ratio >= 1 else 'MISSED'}"
        print(f"{figure.name:<58} {figure.value:>14,.6g} {figure.unit:<10} {budget:<14} {verdict}", flush=True)


def main(*measures: Callable[[], Iterable[Figure]]) -> None:
    """Run each measure and print its figures as they come; words on the command line choose measures by name.

    Processes that they start keep their bytecode, as what is installed has it: compiling all of it takes 0.3 s each time.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if {"-h", "--help"} & set(sys.argv[1:]):
        this = sys.modules["__main__"]
        package = sys.modules.get(this.__package__ or "")  # of a benchmark that is a folder
        print(package.__doc__ if package is not None and this.__package__ != "benchmarks" else this.__doc__)
        return
    names = [measure.__name__ for measure in measures]
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")]
    unknown = [word for word in chosen if not any(word in name for name in names)]
    if unknown:
        sys.exit(f"nothing is called {', '.join(unknown)} here; there is {', '.join(names)}")
    for measure in measures:
        if not chosen or any(word in measure.__name__ for word in chosen):
            report(measure())
