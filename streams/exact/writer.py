"""Lines of generated Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Writer:
    """Lines of Python with their indentation, and the names in use in the function being written.

    Attributes:
        names: locals of the function being written.
        globals: names of the generated module, which a local must not have.
    """

    lines: list[str] = field(default_factory=list)
    depth: int = 0
    names: set[str] = field(default_factory=set)
    globals: Mapping[str, object] = field(default_factory=dict)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write `header` and indent what follows; a block with nothing but comments gets a `pass`."""
        self.line(header)
        self.depth += 1
        before = len(self.lines)
        yield
        if all(line.lstrip().startswith("#") for line in self.lines[before:]):
            self.line("pass")
        self.depth -= 1

    def local(self, hint: str) -> str:
        """Return a name that nothing else in this function has."""
        name, number = hint, 1
        while name in self.names or name in self.globals:
            number += 1
            name = f"{hint}_{number}"
        self.names.add(name)
        return name

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
