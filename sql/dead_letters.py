"""Where a persistent query keeps the records that it leaves out: the topic that SET names when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from logflume.log import is_hidden_topic

from .ast import Span
from .errors import StatementError

if TYPE_CHECKING:
    from .catalog import Catalog

DEAD_LETTERS = "ksql.streams.errors.dead.letter.queue.topic.name"
DEAD_LETTER_NAMES = (DEAD_LETTERS, DEAD_LETTERS.removeprefix("ksql.streams."))


def dead_letter_topic(properties: Mapping[str, str]) -> str | None:
    """Return where a query of these properties keeps what it leaves out; None: it is counted only.

    >>> dead_letter_topic({"errors.dead.letter.queue.topic.name": "dead"}), dead_letter_topic({DEAD_LETTERS: ""})
    ('dead', None)
    """
    return next((properties[name] for name in DEAD_LETTER_NAMES if name in properties), "") or None


def check_letter_topic(topic: str, span: Span) -> None:
    """Refuse a topic that a service or an application keeps for itself."""
    if is_hidden_topic(topic):
        raise StatementError(f"topic {topic} is internal, so no dead letters are kept in it; choose another topic", span)


def check_dead_letters(letters: str | None, *, reads: Iterable[str], writes: str, catalog: Catalog, span: Span) -> None:
    """Refuse a query whose dead letters would be among records, or whose results would be among the dead letters of another.

    Args:
        reads, writes: the topics of its sources and of its result.
    """
    keepers = [query.id for query in catalog.queries.values() if query.dead_letter_topic == writes]
    if keepers:
        raise StatementError(
            f"topic {writes} holds the dead letters of {', '.join(keepers)}, no results: write to another topic", span
        )
    if letters is None:
        return
    check_letter_topic(letters, span)
    if letters in reads:
        raise StatementError(
            f"topic {letters} is read by the query, so its dead letters would come back for ever: set '{DEAD_LETTERS}' to "
            "another topic",
            span,
        )
    results = {catalog.sources[query.sink].topic for query in catalog.queries.values()}
    if letters == writes or letters in results:
        raise StatementError(
            f"topic {letters} holds the results of a query, no dead letters: set '{DEAD_LETTERS}' to another topic", span
        )
