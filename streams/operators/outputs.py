"""Writes to a topic: a Sink, or a Repartition where it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from logflume.log.records import I64, Chunk

from .. import graph as g
from ..columns import Batch
from ..columns.batch import OWN_HEADERS, ColumnId, causes_of
from ..columns.column import Bytes
from ..columns.encode import KeyEncoder, RowEncoder, record_chunk
from ..columns.evaluate import Evaluation
from ..columns.header_ids import Headers, OutputHeaders
from ..columns.key_forms import KeyForms
from ..expr import Meta, Side, columns_used
from ..seams import Outputs
from .operator import Bind, Cut, Operator, Task, Wiring, Work
from .source import _times


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Encoded records of one batch on their way to a topic. `rows`: in the chunk that caused them; `order`: as in `Batch`;
    `headers`: theirs, None: those of the rows that caused them."""

    keys: Bytes
    values: Bytes
    times: I64
    chunk: Chunk | None
    rows: I64 | None
    order: I64 | None
    headers: list[Headers] | None = None


class OutputOperator(Operator[g.Sink | g.Route | g.Repartition]):
    """A Sink, or a Repartition where it is written (and, in `route.py`, a Route)."""

    node_class: ClassVar[type[g.Node]] = g.Sink

    def reads(self, source: g.Node, below: frozenset[ColumnId], wiring: Wiring) -> set[ColumnId]:
        node = self.node
        columns: set[ColumnId] = {(Side.VALUE, column.name) for column in node.schema.value}
        raw = wiring.raw_keys[source.name]
        if raw is None or raw[0] != node.key_format:
            columns |= {(Side.KEY, column.name) for column in source.schema.key}
            if source.schema.window is not None:
                columns |= {(Side.META, Meta.WINDOWSTART), (Side.META, Meta.WINDOWEND)}
        if isinstance(node, g.Sink) and node.timestamp is not None:
            columns |= columns_used(node.timestamp)
        return columns

    def cut(self, wiring: Wiring) -> Cut:
        return Cut.ROWS

    def encoder(self, wiring: Wiring) -> RowEncoder:
        """Return what makes records of rows."""
        node = self.node
        schema = wiring.schema(node.inputs[0])
        is_met = isinstance(node, g.Repartition) and schema.window is None
        forms = KeyForms.of(node.key_format, schema.key) if is_met else None
        keys = KeyEncoder(node.key_format, schema.key, is_raw=self.is_key_raw(wiring), window=schema.window, forms=forms)
        return RowEncoder(node.value_format, node.schema.value, keys)

    def is_key_raw(self, wiring: Wiring) -> bool:
        """Return whether keys go out as they came."""
        raw = wiring.raw_keys[self.node.inputs[0]]
        return raw is not None and raw[0] == self.node.key_format

    def headers(self, wiring: Wiring) -> OutputHeaders:
        """Return what makes headers of records."""
        return OutputHeaders(self.node.value_format, self.node.schema.value, is_key_raw=self.is_key_raw(wiring))

    def plan(self, wiring: Wiring) -> Bind:
        node, encoder, headers = self.node, self.encoder(wiring), self.headers(wiring)
        time = Evaluation(node.timestamp) if isinstance(node, g.Sink) and node.timestamp is not None else None
        return lambda task: OutputWork(node, encoder, headers, time, task)


class OutputWork(Work):
    """See `OutputOperator`."""

    def __init__(
        self,
        node: g.Sink | g.Route | g.Repartition,
        encoder: RowEncoder,
        headers: OutputHeaders,
        time: Evaluation | None,
        task: Task,
    ) -> None:
        self._node, self._encoder, self._headers, self._time, self._task = node, encoder, headers, time, task
        self._needs_key = isinstance(node, g.Repartition) and not node.keeps_null_keys

    def process(self, batch: Batch, source: str) -> None:
        assert not isinstance(self._node, g.Route), "a Route says where its records go"
        self.put(batch, self._node.topic)

    def process_all(self, batches: Sequence[tuple[str, Batch]]) -> None:
        """Take them one after the other: what goes to a topic is put in order of cause behind this (`put_out`)."""
        for source, batch in batches:
            self.process(batch, source)

    def put(self, batch: Batch, topic: str) -> None:
        """Encode records and send them to a topic."""
        name, times = self._node.name, batch.times
        if self._time is not None:
            batch, times = self._timed(batch, self._time)
        found = self._encoder.encode(batch, self._task.reporter(name, batch, reason="encode"))
        keys, values, kept = found.keys, found.values, found.rows
        nulls = keys.nulls() if self._needs_key else None
        if nulls is not None:
            rows = np.arange(len(batch)) if kept is None else kept
            for row in rows[nulls].tolist():
                self._task.report("null_key", name, batch, row, None)
            good = np.flatnonzero(~nulls)
            keys, values, kept = keys.take(good), values.take(good), rows[good]
        if kept is not None:
            times = times[kept]
        if keys.count:
            rows_of, order = _of(batch.rows, kept), _of(batch.order, kept)
            own = batch.columns.get(OWN_HEADERS)
            if own is not None:
                own = own if kept is None else own.take(kept)
            output = Output(keys, values, times, batch.chunk, rows_of, order, None if own is None else own.objects())
            if own is not None or self._headers.concern(batch.chunk):
                bare, headers = self._headers.made(values.objects(), _headers(output))
                output = replace(output, values=Bytes.of_objects(bare), headers=headers)
            self._task.send(name, topic, output)

    def _timed(self, batch: Batch, time: Evaluation) -> tuple[Batch, I64]:
        """Return the rows whose time out is known, and these times."""
        column = time.column(batch, self._task.reporter(self._node.name, batch))
        times, nulls = _times(column), column.nulls()
        bad = nulls | (times < 0)
        for row in np.flatnonzero(bad).tolist():
            cause = None if nulls[row] else int(times[row])
            self._task.report("negative_time", self._node.name, batch, row, cause)
        return batch.without(bad), times[~bad]


def _of(indices: I64 | None, kept: I64 | None) -> I64 | None:
    return indices if indices is None or kept is None else indices[kept]


def first_cause(found: Sequence[Output]) -> int:
    """Return the place in the order of causes of the first record that goes to a topic; -1 where none has one."""
    return min((int(output.order.min()) for output in found if output.order is not None), default=-1)


def put_out(outputs: Outputs, node: str, topic: str, found: Sequence[Output], cause: int | None) -> None:
    """Send what goes to one topic as outputs of a node, in order of cause; what may go in any order comes last.

    `cause`: the record of the round that counts as the cause of what no record has caused; None: that comes after the round.
    """
    in_order = [output for output in found if output.order is not None]
    if len(in_order) > 1:
        _send_together(outputs, node, topic, in_order, cause)
    else:
        for output in in_order:
            _send(outputs, node, topic, output, cause)
    for output in found:
        if output.order is None:
            _send(outputs, node, topic, output, cause)


def _send_together(outputs: Outputs, node: str, topic: str, found: Sequence[Output], cause: int | None) -> None:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Any] = []
    for output in found:
        keys += output.keys.objects()
        values += output.values.objects()
        headers += _headers(output) or [()] * output.keys.count
    places = np.concatenate([output.order for output in found if output.order is not None])
    times = np.concatenate([output.times for output in found])
    order = np.argsort(places, kind="stable")
    at, causes = order.tolist(), _causes(places[order], len(order), cause)
    outputs.send(
        node, [keys[i] for i in at], [values[i] for i in at], times[order].tolist(), headers=[headers[i] for i in at],
        causes=None if causes is None else causes.tolist(), topic=topic,
    )  # fmt: skip


def _send(outputs: Outputs, node: str, topic: str, output: Output, cause: int | None) -> None:
    causes = _causes(output.order, output.keys.count, cause)
    chunk = None
    if output.headers is None:
        chunk = record_chunk(output.keys, output.values, output.times, output.chunk, output.rows)
    if chunk is not None:
        outputs.send_columns(node, chunk, causes=causes, topic=topic)
        return
    keys, values, times = output.keys.objects(), output.values.objects(), output.times.tolist()
    places = None if causes is None else causes.tolist()
    outputs.send(node, keys, values, times, headers=_headers(output), causes=places, topic=topic)


def _causes(order: I64 | None, count: int, cause: int | None) -> I64 | None:
    """Return the position in the round of the record that caused each record; None: none has."""
    found = causes_of(order)
    return found if found is not None or cause is None else np.full(count, cause)


def _headers(output: Output) -> list[Any] | None:
    if output.headers is not None:
        return output.headers
    chunk = output.chunk
    if chunk is None or output.rows is None or not chunk.header_counts[output.rows].any():
        return None
    return list(chunk.take(output.rows).headers())
