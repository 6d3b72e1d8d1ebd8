"""What is said about wrong statements, as people read it: `wrong_statements.sql` and beside it what each is told.

`LOGFLUME_WRITE_MESSAGES=1` writes the answers anew; look at them before they are kept.
"""

from __future__ import annotations

import os
from pathlib import Path

from logflume.sql.render import error_text

from ._attempt import attempt

STATEMENTS = Path(__file__).with_name("wrong_statements.sql")
ANSWERS = Path(__file__).with_name("wrong_statements.txt")
CHARACTERS_MAX = 700


def texts() -> list[str]:
    return [line for line in STATEMENTS.read_text().splitlines() if line]


def answers() -> dict[str, str]:
    """Return what is wrong with each statement; one without a fault stands as ''."""
    found = {text: attempt(text) for text in texts()}
    return {text: "" if error is None else error_text(error) for text, error in found.items()}


def page(found: dict[str, str]) -> str:
    return "\n\n".join(f"{text}\n{_indented(answer)}" for text, answer in found.items()) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def test_every_wrong_statement_is_told_what_is_wrong() -> None:
    found = answers()
    if os.environ.get("LOGFLUME_WRITE_MESSAGES"):
        ANSWERS.write_text(page(found))
    assert page(found) == ANSWERS.read_text()


def test_every_answer_has_a_place_and_is_short() -> None:
    found = answers()
    assert [text for text, answer in found.items() if not answer.startswith("line 1, column ")] == []
    assert [text for text, answer in found.items() if "^" not in answer] == []
    assert [text for text, answer in found.items() if len(answer) > CHARACTERS_MAX] == []
