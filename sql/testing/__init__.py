"""Runs case files in ksqlDB's JSON form against this dialect: `logflume sql test`."""

from .cases import Case, CaseFault, load_cases
from .outcome import Outcome, Verdict
from .report import run_cases

__all__ = ["Case", "CaseFault", "Outcome", "Verdict", "load_cases", "run_cases"]
