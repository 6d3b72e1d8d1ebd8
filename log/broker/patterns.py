"""Regular expressions that come from clients, matched against names by RE2 as in Kafka: in linear time and bounded memory."""

from __future__ import annotations

from typing import Any

LIMIT_CHARS = 1_024
MEMORY_BYTES = 1 << 20


class PatternError(ValueError):
    """The expression is not one of RE2, or too big."""


class Pattern:
    """A compiled expression. Made by `compile_pattern`."""

    __slots__ = ("_compiled",)

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def fullmatch(self, name: str) -> bool:
        """Return whether the whole name matches."""
        return self._compiled.fullmatch(name) is not None


def compile_pattern(text: str) -> Pattern:
    """Compile an expression. Raises PatternError.

    >>> compile_pattern("(orders|refunds)-.*").fullmatch("orders-eu")
    True
    """
    import re2

    if len(text) > LIMIT_CHARS:
        raise PatternError(f"expected at most {LIMIT_CHARS} characters, found {len(text)}")
    options = re2.Options()
    options.max_mem, options.log_errors = MEMORY_BYTES, False
    try:
        return Pattern(re2.compile(text, options))
    except re2.error as error:
        cause = error.args[0] if error.args else error
        raise PatternError(cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)) from error
