"""What a shell or a script runs statements with: an engine in this process, or a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .results import Result
from .scripts import StatementText
from .session import Session


@dataclass(frozen=True, slots=True)
class KnownSource:
    """A stream or table that can be named. kind: STREAM or TABLE."""

    name: str
    kind: str
    columns: tuple[str, ...]


class Executor(Protocol):
    """Executes statements and knows the names that there are now."""

    def execute_one(
        self, source: StatementText | str, properties: Mapping[str, str] | None = None, *, session: Session | None = None
    ) -> list[Result]: ...

    def check_reachable(self) -> None:
        """Return if statements can be executed now. Raises TransportError or what refuses."""

    def known_sources(self) -> Sequence[KnownSource]: ...

    def known_functions(self) -> Iterable[str]: ...

    def about(self) -> Sequence[str]:
        """Return what a user is told first, a line each."""
