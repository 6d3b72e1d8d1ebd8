"""Regular expressions that come from clients, matched against names by RE2 as in Kafka: in linear time and bounded memory.

Linear is not fast: `(t?){900}t{900}` takes 10 ms to judge one name of 240 characters. So an expression remembers what it
judged, and `judged` has all topics judged off the loop before a handler asks about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from logflume.log.protocol import messages

from .ports import Offload
from .replies import Reply
from .requests import Handler, RequestContext
from .turns.slices import Steps

LIMIT_CHARS = 1_024
MEMORY_BYTES = 1 << 20
REMEMBERED_PATTERNS, REMEMBERED_NAMES = 256, 50_000
NAMES_AT_A_TIME = 64
"""Judged by one job of the other thread, which batches of records wait for too."""


class PatternError(ValueError):
    """The expression is not one of RE2, or too big."""


class Pattern:
    """A compiled expression. Made by `compile_pattern`."""

    __slots__ = ("_compiled", "_known")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._known: dict[str, bool] = {}

    def fullmatch(self, name: str) -> bool:
        """Return whether the whole name matches."""
        known = self._known.get(name)
        return self._judge(name) if known is None else known

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return those names of which the whole matches."""
        known = self._known
        return [name for name in names if (known[name] if name in known else self._judge(name))]

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return those names that were not judged yet."""
        return [name for name in names if name not in self._known]

    def judge(self, names: Sequence[str]) -> None:
        """Judge names ahead; for any thread."""
        for name in names:
            self._judge(name)

    def _judge(self, name: str) -> bool:
        if len(self._known) >= REMEMBERED_NAMES:
            self._known = {}
        self._known[name] = matches = self._compiled.fullmatch(name) is not None
        return matches


@lru_cache(maxsize=REMEMBERED_PATTERNS)
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


def judged(handler: Handler, names: Callable[[], Iterable[str]], offload: Offload) -> Handler:
    """Return a handler of ConsumerGroupHeartbeat whose expressions have judged all topics before the given one is called."""

    def handle(context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest) -> Any:
        text = request.subscribed_topic_regex
        return _handle_judged(handler, text, names, offload, context, request) if text else handler(context, request)

    return handle


def _handle_judged(
    handler: Handler,
    text: str,
    names: Callable[[], Iterable[str]],
    offload: Offload,
    context: RequestContext,
    request: messages.ConsumerGroupHeartbeatRequest,
) -> Steps:
    compiled = offload(partial(compile_pattern, text))
    if not compiled.is_done:
        yield compiled
    if isinstance(compiled.value, Pattern):  # else the handler says what is wrong with it
        left = compiled.value.unknown(names())
        for start in range(0, len(left), NAMES_AT_A_TIME):
            yield offload(partial(compiled.value.judge, left[start : start + NAMES_AT_A_TIME]))
    answer = handler(context, request)
    if isinstance(answer, Reply):
        if not answer.is_done:
            yield answer
        answer = answer.value
    return answer
