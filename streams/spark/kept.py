"""A directory in which a backfill keeps its cut and its finished stages, so that a later run goes on after the driver has died.

DIR/cut.json            what is computed, and up to where
DIR/changelogs.json     the changelogs are written: how many entries
DIR/<stage>/*.parquet   the rows of a stage; with _SUCCESS beside them once it has all

DIR is seen by all executors: a directory that they share, or what pyarrow and Spark both know (s3a://..., hdfs://...). A stage is
found again by its place, its shape, the form of its rows and those of all stages before it, and the dead letter topic; with other
cores, settings or another runner it is computed again.
What it was computed with is compared too: what stores and topics mean, the nodes, and the code of the user's functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from logflume.log import InvalidInput, TopicPartition
from logflume.streams.operators import OperatorProgram
from logflume.streams.seams import Plan, SubTopology

from .archives import make_directory, open_root
from .fingerprints import fingerprint
from .ranges import OffsetRange

if TYPE_CHECKING:
    from .stages import Stage

_CUT, _CHANGELOGS, _ROWS, _DONE = "cut.json", "changelogs.json", "part-0.parquet", "_SUCCESS"
_DIGEST_CHARS = 12
_ROWS_VERSION = 2
"""Of what the rows of a stage mean; another one where a version of this package reads them otherwise."""


class Cut(msgspec.Struct):
    """What is computed: `meaning` is a digest of the plan, `token` that of the claim under which it is written."""

    application: str
    meaning: str
    token: str
    ranges: list[tuple[str, int, int, int]]

    def by_partition(self) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges by partition."""
        return {TopicPartition(topic, p): OffsetRange(topic, p, start, end) for topic, p, start, end in self.ranges}


_decode_cut = msgspec.json.Decoder(Cut).decode


def cut_of(plan: Plan, token: str, ranges: Mapping[TopicPartition, OffsetRange]) -> Cut:
    """Return a cut to be kept."""
    rows = [(each.topic, each.partition, each.start, each.end) for _, each in sorted(ranges.items())]
    return Cut(plan.application, meaning_of(plan), token, rows)


def meaning_of(plan: Plan) -> str:
    """Return a digest of the sub-topologies, their topics and what their stores hold."""
    told = [
        (sub.name, sorted(sub.program.sources.items()), sorted((n, out.topic) for n, out in sub.outputs.items()),
         sorted(sub.contents.items()), [repr(spec) for spec in sub.program.stores], fingerprint(*nodes_of(sub)))
        for sub in plan.subtopologies
    ]  # fmt: skip
    return _digest(told)


def nodes_of(sub: SubTopology) -> list[object]:
    """Return what a sub-topology computes, inputs first."""
    program = sub.program
    return [operator.node for operator in program.wiring.operators.values()] if isinstance(program, OperatorProgram) else []


def _digest(told: object) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:_DIGEST_CHARS]


@dataclass(frozen=True, slots=True)
class Kept:
    """The directory. Nothing is read or written before a method is called."""

    root: str

    def cut(self, plan: Plan) -> Cut | None:
        """Return the cut that is kept; None: there is none.

        Raises:
            InvalidInput: it is of something else, or cannot be read.
        """
        data = self._read(_CUT)
        if data is None:
            return None
        try:
            found = _decode_cut(data)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{self.root}/{_CUT} is not a kept cut: {error}; give another directory") from error
        if (found.application, found.meaning) != (plan.application, meaning_of(plan)):
            raise InvalidInput(
                f"{self.root} keeps a backfill of {found.application!r} as it was then, not of {plan.application!r} as it is "
                "now: give another directory, or take that one back (--abort)"
            )
        return found

    def begin(self, cut: Cut) -> None:
        """Keep a cut, and nothing of another; under another claim than before its stages, but not that changelogs are written."""
        data = self._read(_CUT)
        former = None if data is None else _decode_cut(data)
        if former == cut:
            return
        self.forget(with_stages=former is None or msgspec.structs.replace(former, token=cut.token) != cut)
        self._write(_CUT, msgspec.json.encode(cut))

    def entries(self) -> int | None:
        """Return how many entries of changelogs were written; None: not all of them."""
        data = self._read(_CHANGELOGS)
        return None if data is None else msgspec.json.decode(data, type=int)

    def have_written(self, entries: int) -> None:
        """Note that the changelogs are in the log."""
        self._write(_CHANGELOGS, msgspec.json.encode(entries))

    def forget(self, *, with_stages: bool = True) -> None:
        """Remove what is kept, and nothing else that may be there."""
        from pyarrow import fs

        system, base = open_root(self.root)
        make_directory(system, base)
        for name in (_CUT, _CHANGELOGS):
            if system.get_file_info(f"{base}/{name}").type is fs.FileType.File:
                system.delete_file(f"{base}/{name}")
        for name in self._stages() if with_stages else ():
            system.delete_dir(f"{base}/{name}")

    def stage_path(self, name: str) -> str:
        """Return where a stage is, in the words that the directory was given in."""
        return f"{self.root.rstrip('/')}/{name}"

    def has(self, name: str) -> bool:
        """Return whether a stage is all there."""
        return self._read(f"{name}/{_DONE}") is not None

    def has_any(self) -> bool:
        """Return whether there is a stage that a later run need not compute."""
        return any(self.has(name) for name in self._stages())

    def _stages(self) -> list[str]:
        """Return the directories of stages."""
        from pyarrow import fs

        system, base = open_root(self.root)
        found = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
        return [info.base_name for info in found if info.type is fs.FileType.Directory and info.base_name.startswith("stage-")]

    def load(self, name: str) -> Iterator[Any]:
        """Yield the rows of a stage that is all there, in the batches in which they were kept."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        system, base = open_root(self.root)
        path = f"{base}/{name}/{_ROWS}"
        if system.get_file_info(path).size == 0:  # a stage without a row; one whose file is gone cannot be opened
            return
        try:
            with pq.ParquetFile(system.open_input_file(path)) as file:
                for group in range(file.num_row_groups):
                    yield from file.read_row_group(group).combine_chunks().to_batches()
        except (pa.ArrowException, OSError) as error:
            raise InvalidInput(
                f"the rows that are kept in {path} cannot be read: {error}; remove {base}/{name}, so that the stage is computed "
                "again, or take the backfill back (--abort)"
            ) from error

    @contextmanager
    def keeping(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Give what keeps a batch of a stage, as a row group; the stage is all there once the context ends without an error."""
        import pyarrow.parquet as pq

        system, base = open_root(self.root)
        make_directory(system, f"{base}/{name}")
        with ExitStack() as stack:
            stream = stack.enter_context(system.open_output_stream(f"{base}/{name}/{_ROWS}"))
            writer: Any = None

            def keep(batch: Any) -> None:
                nonlocal writer
                writer = writer or stack.enter_context(pq.ParquetWriter(stream, batch.schema))
                writer.write_batch(batch, row_group_size=max(1, batch.num_rows))

            yield keep
        self._write(f"{name}/{_DONE}", b"")

    def _read(self, name: str) -> bytes | None:
        from pyarrow import fs

        system, base = open_root(self.root)
        if system.get_file_info(f"{base}/{name}").type is not fs.FileType.File:
            return None
        with system.open_input_stream(f"{base}/{name}") as stream:
            return bytes(stream.read())

    def _write(self, name: str, data: bytes) -> None:
        """Write a file that appears whole."""
        system, base = open_root(self.root)
        make_directory(system, base)
        with system.open_output_stream(f"{base}/{name}.tmp") as stream:
            stream.write(data)
        system.move(f"{base}/{name}.tmp", f"{base}/{name}")


def stage_names(stages: Iterable[Stage], *, is_bundled: bool) -> list[str]:
    """Return the names under which stages are kept, in their order.

    `is_bundled`: whether the records of results and changelogs are in bundles (`bundles.Bundled`), or each is a row.
    """
    told: list[tuple[object, ...]] = [(_ROWS_VERSION, is_bundled)]
    names = []
    for number, stage in enumerate(stages):
        told.append((stage.work.step.dead_letter_topic,))
        told.append((stage.subtopology, stage.way, stage.count, stage.slices, stage.takes, stage.order, stage.gives))
        names.append(f"stage-{number:03}-{_digest(told)}")
    return names
