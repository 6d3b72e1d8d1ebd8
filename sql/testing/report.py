"""Runs cases of files and folders and says how it went, as text or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from logflume.log import InvalidInput
from logflume.sql.function_files import load_functions

from .cases import Case, CaseFault, load_cases
from .functions import case_library
from .outcome import Outcome, Verdict
from .runner import run_case


def select_cases(paths: Iterable[Path], *, names: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the cases of paths whose id holds one of `names` (case-insensitively); all without names."""
    wanted = [n.lower() for n in names]
    for path in paths:
        if not path.exists():
            raise CaseFault(f"{path}: no such file or folder")
        for case in load_cases(path):
            if not wanted or any(n in case.id.lower() for n in wanted):
                yield case


def run_all(cases: Iterable[Case], *, functions: Path | None = None) -> Iterator[Outcome]:
    """Run cases one after the other; a fault of the runner or of the engine is a failure that says so."""
    for case in cases:
        try:
            yield run_case(case, case_library() if functions is None else load_functions(functions, case_library()))
        except InvalidInput:
            raise
        except Exception as e:  # noqa: BLE001 - one broken case must not hide the others
            yield Outcome(case, Verdict.FAILED, f"internal error: {type(e).__name__}: {e}")


def run_cases(
    paths: Sequence[Path | str],
    *,
    names: Sequence[str] = (),
    is_json: bool = False,
    is_verbose: bool = False,
    functions: Path | None = None,
    write: Callable[[str], None] = print,
) -> int:
    """Run case files; return the exit code: 0 when none failed, 1 when some did, 2 when a file cannot be run.

    `functions`: a file or a folder of functions in Python that they may call beside those there are.

    Writes a line per file with failures first, then per failed case its reason, and `N passed, N failed, N skipped` last.
    """
    try:
        outcomes = list(run_all(select_cases([Path(p) for p in paths], names=names), functions=functions))
    except CaseFault as e:
        write(json.dumps({"error": str(e)}) if is_json else f"error: {e}")
        return 2
    if is_json:
        for outcome in outcomes:
            write(json.dumps(_as_json(outcome)))
        write(json.dumps({"summary": _counts(outcomes)}))
    else:
        for line in _lines(outcomes, is_verbose=is_verbose):
            write(line)
    return 1 if any(o.verdict is Verdict.FAILED for o in outcomes) else 0


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "file": outcome.case.file,
        "name": outcome.case.name,
        "verdict": outcome.verdict.value,
        "reason": outcome.reason,
        "message_matches": outcome.message_matches,
    }


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    counts = Counter(o.verdict.value for o in outcomes)
    return {v.value: counts.get(v.value, 0) for v in Verdict}


def _lines(outcomes: Sequence[Outcome], *, is_verbose: bool) -> Iterator[str]:
    by_file: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_file.setdefault(outcome.case.file, []).append(outcome)
    for file, found in by_file.items():
        counts = _counts(found)
        yield f"{file}: {_summary(counts)}"
        for outcome in found:
            if outcome.verdict is Verdict.FAILED:
                yield f"  failed: {outcome.case.name}: {_shortened(outcome.reason)}"
            elif is_verbose and outcome.reason:
                yield f"  {outcome.verdict}: {outcome.case.name}: {_shortened(outcome.reason)}"
    reasons = Counter(o.reason for o in outcomes if o.verdict is Verdict.SKIPPED)
    for reason, count in reasons.most_common():
        yield f"skipped {count}: {reason}"
    mismatched = sum(o.message_matches is False for o in outcomes)
    if mismatched:
        yield f"of the passed ones {mismatched} gave the right kind of error with another text"
    yield _summary(_counts(outcomes))


def _summary(counts: dict[str, int]) -> str:
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def _shortened(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 400 else one_line[:397] + "..."
