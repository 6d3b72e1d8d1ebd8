"""What the generator knows at a point of the text it writes: where the parts of the record at hand are, and the text so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from logflume.log import InvalidInput

from ..expr import ColumnRef, Side
from .expressions import Fragment, identifier

ColumnId = tuple[Side, str]
NO_COLUMNS: Mapping[ColumnId, Fragment] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Flow:
    """A record as locals of the generated function.

    Attributes:
        columns: where each column is that anything downstream reads.
        time: name of its timestamp.
        key: name of its encoded key (with the window start behind, on a windowed edge); None after a change of key.
        null: name of a flag that the value is null (on a TABLE edge: the row is deleted); None: it never is.
        old: on a TABLE edge, the row before this change, where a consumer needs it.
        is_loaded: whether `key` was loaded into the stores at the start of the run.
    """

    columns: Mapping[ColumnId, Fragment]
    time: str
    key: str | None
    null: str | None = None
    old: Flow | None = None
    is_loaded: bool = False

    def find(self, ref: ColumnRef) -> Fragment:
        """Return where a column is."""
        found = self.columns.get((ref.side, ref.name))
        if found is None:
            raise InvalidInput(f"column {ref.name!r} ({ref.side}) is not part of this edge")
        return found


@dataclass(frozen=True, slots=True)
class Labels:
    """What nodes and stores are called in the text: an identifier each, no two alike; nothing for the only store there is."""

    nodes: Mapping[str, str]
    stores: Mapping[str, str]

    @classmethod
    def of(cls, nodes: Iterable[str], stores: Sequence[str]) -> Labels:
        """Make labels for the names."""
        return cls(_unique(nodes), {stores[0]: ""} if len(stores) == 1 else _unique(stores))

    def local(self, part: str, store: str) -> str:
        """Return the name of a local that belongs to a store."""
        return f"{part}_{self.stores[store]}" if self.stores[store] else part


def _unique(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        label = base = identifier(name)
        number = 1
        while label in taken:
            number += 1
            label = f"{base}_{number}"
        taken.add(label)
        found[name] = label
    return found


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
