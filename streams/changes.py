"""What becomes of an application's state when another topology takes its place: compared as data, before anything runs. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from . import graph as g
from .planner import plan
from .seams import changelog_topic


class Fate(StrEnum):
    """KEPT: goes on as it is. NEW: begins empty, where the application stands. REBUILT: read again from its topic. LOST: gone."""

    KEPT = "kept"
    NEW = "new"
    REBUILT = "rebuilt"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a store or internal topic (`kind`), and why."""

    fate: Fate
    kind: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Layout:
    """What an application keeps.

    Attributes:
        stores: store -> what its entries mean, of those with a changelog.
        tables: store -> (topic that it is read from, what its rows are).
        repartitions: internal topics that carry records from one sub-topology to the next.
    """

    application: str
    stores: Mapping[str, str]
    tables: Mapping[str, tuple[str, str]]
    repartitions: frozenset[str]


def layout_of(topology: g.Topology) -> Layout:
    """Return what a topology keeps."""
    planned = plan(topology)
    stores: dict[str, str] = {}
    tables: dict[str, tuple[str, str]] = {}
    repartitions: set[str] = set()
    for sub in planned.subtopologies:
        stores |= sub.contents
        specs = {spec.name: spec for spec in sub.program.stores}
        for store, node in sub.table_sources.items():
            columns = ", ".join(f"{column.name} {column.type}" for column in specs[store].columns)
            tables[store] = (sub.program.sources[node], columns)
        repartitions |= {output.topic for output in sub.outputs.values() if output.is_repartition}
    return Layout(planned.application, stores, tables, frozenset(repartitions))


def compare(old: Layout, new: Layout) -> list[Change]:
    """Return what becomes of everything that either keeps: the lost first, then by name."""
    found = _stores(old, new) + _tables(old, new) + _topics(old, new)
    if old.application != new.application:
        why = f"the application is called {new.application!r} now, {old.application!r} before: it begins with the oldest record"
        found = [Change(Fate.LOST, "application", old.application, why), *found]
    order = [Fate.LOST, Fate.REBUILT, Fate.NEW, Fate.KEPT]
    return sorted(found, key=lambda change: (order.index(change.fate), change.kind, change.name))


def _stores(old: Layout, new: Layout) -> list[Change]:
    found = []
    for name in sorted(old.stores.keys() | new.stores.keys()):
        before, now = old.stores.get(name), new.stores.get(name)
        if before == now:
            found.append(Change(Fate.KEPT, "store", name, f"{now}"))
        elif before is None:
            fate = "begins empty, where the application stands now: what came before is not in it"
            found.append(Change(Fate.NEW, "store", name, fate))
        elif now is None:
            topic = changelog_topic(old.application, name)
            why = f"nothing has this name any more, so the start is refused without drops=[{name!r}]; topic {topic} stays"
            found.append(Change(Fate.LOST, "store", name, why))
        else:
            found.append(Change(Fate.LOST, "store", name, f"held {before}; shall hold {now}: the start is refused"))
    return found


def _tables(old: Layout, new: Layout) -> list[Change]:
    found = []
    for name in sorted(old.tables.keys() | new.tables.keys()):
        before, now = old.tables.get(name), new.tables.get(name)
        if before == now:
            found.append(Change(Fate.KEPT, "table", name, f"rows of topic {old.tables[name][0]}"))
        elif now is None:
            found.append(Change(Fate.KEPT, "table", name, f"is not read any more; its rows stay in topic {old.tables[name][0]}"))
        else:
            found.append(Change(Fate.REBUILT, "table", name, f"read from topic {now[0]} from its beginning"))
    return found


def _topics(old: Layout, new: Layout) -> list[Change]:
    gone = [
        Change(
            Fate.LOST, "topic", name, "records on their way in it are not read: let the application catch up before it changes"
        )
        for name in sorted(old.repartitions - new.repartitions)
    ]
    made = [Change(Fate.NEW, "topic", name, "is created") for name in sorted(new.repartitions - old.repartitions)]
    kept = [Change(Fate.KEPT, "topic", name, "is read on") for name in sorted(new.repartitions & old.repartitions)]
    return gone + made + kept
