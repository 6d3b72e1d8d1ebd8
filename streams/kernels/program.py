"""A sub-topology on both tiers: sources that the compiled tier holds, with the reference tier beside them.

A run of records is prepared as columns (`flow.py`); marked rows go through the reference tier in their place, so that outputs and
reports come in the same order as without this tier. Tables stay the reference tier's: a join only looks rows up. The stores of
aggregates become columns (`tallies.py`), and the reference tier is lent entries of them from then on.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from .. import graph as g
from ..compiler import CompiledProgram
from ..seams import Outputs, Problems, StateStore, StoreSpec, TaskFunction
from ..state.store import Store
from .aggregates import AggregatePlan, make_aggregate
from .flow import Batch, Builder, Lookup, make_filter, make_output, make_project, make_rekey
from .joins import base_columns, joined_table, make_join
from .source import SourcePlan, plan_source, table_fields
from .tallies import Surroundings, Tally
from .tier import compiled_tier
from .vectors import Unsupported

_FEW_RECORDS = 64
_MAX_MARKED_SHARE = 4
"""Where more than one row in this many is marked, the run is the reference tier's."""

_MAKERS = MappingProxyType(
    {
        g.Filter: make_filter,
        g.Project: make_project,
        g.Rekey: make_rekey,
        g.Repartition: make_output,
        g.Sink: make_output,
        g.StreamTableJoin: make_join,
    }
)
_ALL_MAKERS = MappingProxyType({**_MAKERS, g.Aggregate: make_aggregate})


@dataclass(frozen=True, slots=True, eq=False)
class TieredProgram:
    """Implements `seams.Program`: the reference tier, and the compiled tier where it is ready.

    Attributes:
        plans: source -> what the compiled tier does with its records; other sources are the reference tier's alone.
        tables: store -> (source of the table, columns that joins read of it).
        aggregates: store -> plan; all of the sub-topology's, or none.
    """

    reference: CompiledProgram
    plans: Mapping[str, SourcePlan]
    tables: Mapping[str, tuple[str, tuple[str, ...]]]
    aggregates: Mapping[str, AggregatePlan]

    @property
    def sources(self) -> Mapping[str, str]:
        return self.reference.sources

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return self.reference.stores

    @property
    def source_code(self) -> str:
        return self.reference.source_code

    def bind(self, stores: Mapping[str, StateStore], outputs: Outputs, problems: Problems) -> TaskFunction:
        """Return the functions of one task."""
        reference = self.reference.bind(stores, outputs, problems)
        if not all(isinstance(stores[name], Store) for name in self.aggregates):
            return reference
        return TieredFunction(self, reference, stores, outputs, problems)


class TieredFunction:
    """Implements `seams.TaskFunction`. All state is in stores that both tiers read, so the tiers take turns at any record."""

    def __init__(
        self,
        program: TieredProgram,
        reference: TaskFunction,
        stores: Mapping[str, StateStore],
        outputs: Outputs,
        problems: Problems,
    ) -> None:
        self._program = program
        self.reference = reference
        self._stores = stores
        self._outputs = outputs
        self._problems = problems
        self._tallies: dict[str, Tally] = {}
        self._lookups: dict[str, Lookup] = {}
        self._texts: ModuleType | None = None
        self._store_of = {source: store for store, (source, _) in program.tables.items()}

    def flush(self) -> None:
        if not self._tallies:
            self.reference.flush()
        for tally in self._tallies.values():
            tally.flush()

    def restore(self, source: str, chunk: Any, start: int, stop: int) -> None:
        self.reference.restore(source, chunk, start, stop)
        if source in self._store_of and self._lookups:
            self._lookups[self._store_of[source]].clear()

    def process(self, source: str, chunk: Any, start: int, stop: int) -> None:
        plan = self._program.plans.get(source)
        if plan is None:
            self.reference.process(source, chunk, start, stop)
            self._note_table(source, chunk, start, stop)
            return
        json = compiled_tier().kernels(stop - start)
        if json is None or stop - start < _FEW_RECORDS or not _is_held(chunk, start, stop):
            self._process_objects(source, chunk, start, stop)
            return
        if self._texts is None:
            self._load(json)
            assert self._texts is not None
        if not self._tallies:
            self._take_over(json)
        marks = np.zeros(stop - start, np.bool_)
        batch = Batch(chunk, start, stop, json, self._outputs, self._lookups, self._tallies, marks)
        plan.prepare(batch, self._texts)
        marked = np.flatnonzero(batch.marks)
        if len(marked) * _MAX_MARKED_SHARE > stop - start:
            self._process_objects(source, chunk, start, stop)
            return
        at = 0
        for block in np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1) if len(marked) else ():
            first, last = int(block[0]), int(block[-1]) + 1
            for effect in batch.effects:
                effect.apply(at, first)
            self._process_objects(source, chunk, start + first, start + last)
            at = last
        for effect in batch.effects:
            effect.apply(at, stop - start)

    def _process_objects(self, source: str, chunk: Any, start: int, stop: int) -> None:
        """Let the reference tier process records, and take back the entries that it has changed."""
        self.reference.process(source, chunk, start, stop)
        for tally in self._tallies.values():
            tally.settle()

    def _take_over(self, json: ModuleType) -> None:
        """Make the stores of aggregates columns."""
        stores = {name: self._stores[name] for name in self._program.aggregates}
        assert self._texts is not None
        slots = importlib.import_module(f"{__package__}.slots")
        around = Surroundings(self._outputs, self._problems, self.reference, json, self._texts)
        for name, store in stores.items():
            assert isinstance(store, Store)
            self._tallies[name] = Tally(self._program.aggregates[name], store, around, slots)

    def _load(self, json: ModuleType) -> None:
        """Take what only exists with numba: the kernels of texts, and the tables as columns."""
        self._texts = importlib.import_module(f"{__package__}.texts")
        if self._program.tables:
            tables = importlib.import_module(f"{__package__}.tables")
            wiring = self._program.reference.wiring
            for store, (source, names) in self._program.tables.items():
                node = wiring.nodes[source]
                assert isinstance(node, g.Source)
                columns = tuple(column for column in node.schema.value if column.name in names)
                self._lookups[store] = tables.TableColumns(self._stores[store], columns, table_fields(wiring, node), json)

    def _note_table(self, source: str, chunk: Any, start: int, stop: int) -> None:
        """Tell the columns of a table of its changes, once there can be such columns."""
        store = self._store_of.get(source)
        if store is None:
            return
        json = compiled_tier().kernels(stop - start)
        if json is not None and self._texts is None:
            self._load(json)
        if json is not None:
            self._lookups[store].changed(chunk, start, stop)


def _is_held(chunk: Any, start: int, stop: int) -> bool:
    """Return whether records have nothing about them that the columns leave out: headers, or a buffer with gaps."""
    return not chunk.header_counts[start:stop].any() and bool(chunk.buffer.flags.c_contiguous)


def tiered(program: CompiledProgram) -> CompiledProgram | TieredProgram:
    """Return the program with the compiled tier beside it, or as it is where that tier holds nothing of it."""
    plans, aggregates = _plans(program, _ALL_MAKERS)
    if any(isinstance(n, g.Aggregate) and n.store not in aggregates for n in program.wiring.nodes.values()):
        plans, aggregates = _plans(program, _MAKERS)
    return TieredProgram(program, plans, _joined_tables(program, plans), aggregates) if plans else program


def _plans(program: CompiledProgram, makers: Any) -> tuple[dict[str, SourcePlan], dict[str, AggregatePlan]]:
    """Return the plans of the sources that are held, and those of the aggregates behind them."""
    plans: dict[str, SourcePlan] = {}
    aggregates: dict[str, AggregatePlan] = {}
    for source in program.sources:
        builder = Builder(program.wiring, makers)
        try:
            plans[source] = plan_source(builder, source)
        except Unsupported:
            continue
        aggregates |= builder.aggregates
    return plans, aggregates


def _joined_tables(program: CompiledProgram, plans: Mapping[str, SourcePlan]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the tables that the plans look up, with all columns that any join reads of each."""
    builder = Builder(program.wiring, _MAKERS)
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for node in program.wiring.nodes.values():
        if not isinstance(node, g.StreamTableJoin):
            continue
        try:
            table = joined_table(builder, node)
        except Unsupported:
            continue
        assert table.store is not None
        _, names = found.get(table.store, ("", ()))
        held = {column.name for column in table.schema.value}
        read = [name for name in base_columns(builder, node) if name in held]
        found[table.store] = (table.name, tuple(dict.fromkeys([*names, *read])))
    return found if plans else {}
