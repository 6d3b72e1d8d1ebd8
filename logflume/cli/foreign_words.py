"""Options of Apache Kafka's own tools, for those whose fingers know them: what they are called here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

_WORDS = {
    "--bootstrap-server": "--bootstrap HOST:PORT",
    "--broker-list": "--bootstrap HOST:PORT",
    "--command-config": "--profile NAME, made by `logflume profile add`",
    "--consumer.config": "--profile NAME, made by `logflume profile add`",
    "--producer.config": "--profile NAME, made by `logflume profile add`",
    "--from-beginning": "what is done anyway (--from says otherwise)",
    "--max-messages": "--limit N",
    "--offset": "--from WHERE",
    "--timeout-ms": "--timeout, in seconds",
    "--to-earliest": "--to earliest",
    "--to-latest": "--to latest",
    "--to-offset": "--to OFFSET",
    "--to-datetime": "--to TIME",
    "--execute": "what is done unless --dry-run is given",
    "--reset-offsets": "the command `logflume group reset`",
    "--partitions": "of a topic that exists `logflume topic add-partitions NAME --total N`",
    "--replication-factor": "left out: one broker has one copy",
    "--create": "`create`, a command without dashes",
    "--describe": "`describe`, a command without dashes",
    "--alter": "`alter`, a command without dashes",
    "--delete": "`delete`, a command without dashes",
    "--list": "`list`, a command without dashes",
}


def foreign_words(args: Sequence[str], known: Collection[str] = ()) -> Iterator[str]:
    """Yield a line for each option of Kafka's tools among arguments that were not understood, but for `known` ones.

    >>> list(foreign_words(["words", "--max-messages=3", "--offset", "4"], known={"--offset"}))
    ['--max-messages of Kafka is here: --limit N']
    """
    for arg in args:
        word = arg.partition("=")[0]
        if word in _WORDS and word not in known:
            yield f"{word} of Kafka is here: {_WORDS[word]}"


def options_of(command: Any, args: Sequence[str]) -> set[str]:
    """Return the options of the command (of typer's) that arguments name, and of those above it."""
    found = {option for each in command.params for option in each.opts}
    below = getattr(command, "commands", {})
    at = next((place for place, arg in enumerate(args) if arg in below), None)
    return found if at is None else found | options_of(below[args[at]], args[at + 1 :])
