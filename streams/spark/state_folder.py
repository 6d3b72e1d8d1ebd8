"""Where stores are between the micro-batches of an application on Spark, and whether they are what the log says.

ROOT/stores-<token>/<task>        the stores, left as a micro-batch has ended; they go on from there in the next
ROOT/stores-<token>/<task>.step   in which micro-batch they were changed last
ROOT/committed.json               which of these folders, and what the log was when the last micro-batch was committed; not there
                                  while one is under way

A driver that starts goes on with stores if the last micro-batch was committed, and the log is as it was then: nobody has
committed or written state meanwhile. Else the stores begin in a new folder, and are filled from their changelogs; so are those of
a task that Spark runs a second time in one micro-batch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from logflume.log import Log, OffsetAndMetadata, TopicPartition
from logflume.streams.runtime import StreamsError
from logflume.streams.runtime.topics import TopicMap
from logflume.streams.seams import Plan, changelog_topic

from .archives import make_directory

_NOTE = "committed.json"


class _Note(msgspec.Struct):
    folder: str
    mark: str


_decode_note = msgspec.json.Decoder(_Note).decode


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The stores of one run. `path`: where tasks keep them."""

    root: Path
    path: Path

    @classmethod
    def open(cls, root: Path, mark: str) -> StateFolder:
        """Return the stores that the log agrees with, else a new folder in place of those that are there.

        `mark`: what the log is now (`mark_of`).
        """
        from pyarrow.fs import LocalFileSystem

        with _told(root):
            make_directory(LocalFileSystem(), str(root))
        try:
            note = _decode_note((root / _NOTE).read_bytes())
        except (OSError, msgspec.MsgspecError):
            note = _Note("", "")
        for old in root.glob("stores-*"):
            if old.name != note.folder or note.mark != mark:
                shutil.rmtree(old, ignore_errors=True)
        kept = root / note.folder
        return cls(root, kept if note.mark == mark else root / f"stores-{uuid.uuid4().hex[:8]}")

    def begin(self) -> None:
        """Note that a micro-batch has begun: until it is committed the stores are not what the log says."""
        with _told(self.root):
            (self.root / _NOTE).unlink(missing_ok=True)

    def committed(self, mark: str) -> None:
        """Note what the log is, now that what the stores hold is committed."""
        fresh = self.root / f"{_NOTE}.new"
        with _told(self.root):
            fresh.write_bytes(msgspec.json.encode(_Note(self.path.name, mark)))
            fresh.replace(self.root / _NOTE)


def begin_task(root: Path, task: str, token: str) -> None:
    """Note that a task runs in the step of this token; stores that an earlier try of it has changed are removed."""
    with _told(root):
        if _has_begun(root, task, token):
            shutil.rmtree(root / task, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
        _step_of(root, task).write_text(token)


@contextmanager
def copied_task(root: Path, task: str, token: str) -> Iterator[Path]:
    """Give a directory with a copy of a task's stores as the step of this token began; without, if it has changed them.

    Files that RocksDB never changes are linked, where the file system can.
    """
    with _told(root):
        root.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f"{task}-ahead-", dir=root, ignore_cleanup_errors=True)
    with scratch as folder:
        with _told(root):
            if (root / task).is_dir() and not _has_begun(root, task, token):
                shutil.copytree(root / task, Path(folder) / task, copy_function=_linked)
        yield Path(folder)


def _step_of(root: Path, task: str) -> Path:
    return root / f"{task}.step"


def _has_begun(root: Path, task: str, token: str) -> bool:
    note = _step_of(root, task)
    return note.is_file() and note.read_text() == token


def _linked(source: str, target: str) -> None:
    if source.endswith(".sst"):
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Raise what the disk refuses as StreamsError: nothing that is not committed is visible, and the next start goes on."""
    try:
        yield
    except OSError as error:
        raise StreamsError(
            f"cannot write state to {root}: {error}; free space or repair the disk, then start again: it goes on from what was "
            "committed"
        ) from error


def mark_of(
    log: Log,
    plan: Plan,
    topics: TopicMap,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    table_ids: Mapping[str, str],
) -> str:
    """Return a digest of what is committed for an application, and of where its changelogs end.

    `committed`: what was read or sent, not what is there by now: entries of whoever has gone on since come with other offsets.
    `table_ids`: topic of a global table -> its id.
    """
    admin = log.admin()
    every = [
        TopicPartition(changelog_topic(plan.application, spec.name), p)
        for sub in plan.subtopologies
        for spec in sub.program.stores
        if spec.name not in sub.table_sources
        for p in range(topics.task_count(sub))
    ]
    told = [(*tp, at.offset, at.metadata or "") for tp, at in sorted(committed.items())]
    ends = [(*tp, end) for tp, end in sorted(admin.end_offsets(every).items())]
    return hashlib.sha256(msgspec.json.encode([told, ends, sorted(table_ids.items())])).hexdigest()
