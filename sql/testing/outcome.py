"""What became of a case. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .cases import Case


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason`: why it failed or was skipped. `message_matches`: for an expected error, whether its text was as asked too."""

    case: Case
    verdict: Verdict
    reason: str = ""
    message_matches: bool | None = None


class Skip(Exception):
    """Raised where a case needs what this version does not have by design; its text is the reason."""
