"""Completion in the shell: keywords, functions, streams, tables, and the columns of the sources that a statement names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from .executor import Executor
from .format import name_text
from .words import RESERVED, STATEMENT_WORDS

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_SOURCE_PLACE = re.compile(r"\b(FROM|JOIN|DESCRIBE|INTO|STREAM|TABLE)\s+[A-Za-z_0-9]*$", re.IGNORECASE)
_MORE_KEYWORDS = (
    "EMIT CHANGES",
    "EMIT FINAL",
    "EMIT SNAPSHOT, CHANGES",
    "GROUP BY",
    "PARTITION BY",
    "TUMBLING",
    "HOPPING",
    "SIZE",
    "STREAMS",
    "TABLES",
    "QUERIES",
)
_MORE_WORDS = (
    "TOPICS",
    "FUNCTIONS",
    "PRIMARY KEY",
    "KEY",
    "KAFKA_TOPIC",
    "VALUE_FORMAT",
    "KEY_FORMAT",
    "PARTITIONS",
    "TERMINATE",
)


class SqlCompleter(Completer):
    """Asks for what there is at each call, so that what was just created completes too."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield completions of the word before the cursor, the likeliest kind first."""
        before = document.text_before_cursor
        match = _WORD.search(before)
        word = match.group() if match else ""
        seen: set[str] = set()
        for text, kind in self._candidates(document.text, before):
            if text.upper().startswith(word.upper()) and text not in seen and text.upper() != word.upper():
                seen.add(text)
                yield Completion(text, start_position=-len(word), display_meta=kind)

    def _candidates(self, text: str, before: str) -> Iterator[tuple[str, str]]:
        is_place, is_word = _SOURCE_PLACE.search(before), _WORD.search(before)
        sources = list(self._executor.known_sources()) if is_place or is_word else []
        if is_place:
            for source in sources:
                yield name_text(source.name), source.kind.lower()
            return
        if not is_word:
            return
        named = {w.upper() for w in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)}
        for source in sources:
            if source.name.upper() in named:
                for column in source.columns:
                    yield name_text(column), f"column of {source.name}"
        for source in sources:
            yield name_text(source.name), source.kind.lower()
        for keyword in sorted({*STATEMENT_WORDS, *RESERVED, *_MORE_KEYWORDS, *_MORE_WORDS}):
            yield keyword, "keyword"
        for function in self._executor.known_functions():
            yield f"{function}(", "function"
