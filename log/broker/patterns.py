"""Regular expressions that come from clients, matched against names, with a bound on the time they take.

Kafka uses RE2, which is linear. Python's engine backtracks, so expressions that can make it do so without end are refused: a
repetition of something that itself repeats or branches, and more than three unbounded repetitions in a row of choices.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

constants: Any = import_module("re._constants")
parser: Any = import_module("re._parser")
"""How `re` itself reads an expression; no stubs describe these two modules."""

LIMIT_CHARS = 1_024
UNBOUNDED_REPEATS_MAX = 3

_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
_REFUSED = (constants.ASSERT, constants.ASSERT_NOT, constants.GROUPREF, constants.GROUPREF_EXISTS)


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile an expression for `fullmatch`. Raises re.error: it is not valid, or could take too long.

    >>> bool(compile_pattern("orders-.*").fullmatch("orders-eu"))
    True
    """
    if len(text) > LIMIT_CHARS:
        raise re.error(f"expected at most {LIMIT_CHARS} characters, found {len(text)}")
    try:
        unbounded = _check(parser.parse(text), is_repeated=False)
    except (RecursionError, OverflowError) as error:
        raise re.error("the expression is too deep") from error
    if unbounded > UNBOUNDED_REPEATS_MAX:
        raise re.error(f"expected at most {UNBOUNDED_REPEATS_MAX} repetitions without an upper bound, found {unbounded}")
    return re.compile(text)


def _check(tree: Any, *, is_repeated: bool) -> int:
    """Return the number of unbounded repetitions. Raises re.error."""
    unbounded = 0
    for operation, argument in tree:
        if operation in _REFUSED:
            raise re.error("look-around and references are not part of RE2")
        if operation in _REPEATS:
            _, most, body = argument
            if is_repeated:
                raise re.error("a repetition inside of a repetition could take too long")
            _check(body, is_repeated=most > 1)
            unbounded += most == constants.MAXREPEAT
        elif operation is constants.BRANCH:
            if is_repeated:
                raise re.error("a choice inside of a repetition could take too long")
            unbounded += max(_check(branch, is_repeated=False) for branch in argument[1])
        elif operation is constants.SUBPATTERN:
            unbounded += _check(argument[-1], is_repeated=is_repeated)
    return unbounded
