"""Operators over streams that keep nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .base import Json, Node, Port, Record


class Each(Node):
    """Each record becomes those that a function makes of it."""

    def __init__(self, function: Callable[[Record], Iterable[Record]]) -> None:
        super().__init__()
        self.function = function

    def receive(self, record: Record) -> None:
        for made in self.function(record):
            self.forward(made)


def kept(test: Callable[[Any, Json], bool]) -> Each:
    return Each(lambda r: [r] if test(r.key, r.value) else [])


def mapped(to_key: Callable[[Any, Json], Any] | None, to_value: Callable[[Any, Json], Json] | None) -> Each:
    def function(r: Record) -> list[Record]:
        key = to_key(r.key, r.value) if to_key else r.key
        return [r.but(key=key, value=to_value(r.key, r.value) if to_value else r.value)]

    return Each(function)


def flat(function: Callable[[Any, Json], list[Any]], *, is_keyed: bool) -> Each:
    if is_keyed:
        return Each(lambda r: [r.but(key=key, value=value) for key, value in function(r.key, r.value)])
    return Each(lambda r: [r.but(value=value) for value in function(r.key, r.value)])


class Split(Node):
    """A record goes to the first branch whose predicate is true, else to the default if there is one."""

    def __init__(self, branches: list[tuple[Callable[[Any, Json], bool], Port]], default: Port | None) -> None:
        super().__init__()
        self.branches, self.default = branches, default

    def receive(self, record: Record) -> None:
        for test, port in self.branches:
            if test(record.key, record.value):
                port(record)
                return
        if self.default is not None:
            self.default(record)
