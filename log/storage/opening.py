"""Opening a partition's log: what the checkpoint says is compared with the files, and only what came after is scanned."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode

from crc32c import crc32c

from logflume.log.batch.header import BatchHeader
from logflume.log.errors import CorruptLog, StorageError

from .checkpoint import FILE_NAME, VERSION, Checkpoint, pack_checkpoint, unpack_checkpoint
from .config import LogConfig
from .disk import Disk, write_atomically, write_whole
from .epochs import LeaderEpochs
from .partition import PartitionLog
from .recovery import TakeBatch, keep_aside, scan_batches
from .replaying import known_producers, replay_batch, replayed_epochs
from .segment import INDEX_SUFFIXES, SEGMENT_SUFFIXES, Segment, file_name
from .slices import RecoveryReport
from .statefiles import EPOCHS_FILE
from .swaps import finish_swaps

METADATA_FILE = "partition.metadata"
_MUCH_SCANNED_BYTES = 64 * 1024 * 1024
"""Less is scanned again after another crash, which is quicker than checkpointing every log of a broker at its start."""


def open_log(directory: str, *, disk: Disk, config: LogConfig, now_ms: int, topic_id: str | None = None) -> PartitionLog:
    """Open, or create, the log in `<data dir>/<topic>-<partition>`, and recover it from its recovery point on.

    Args:
        topic_id: 32 hex digits; written to `partition.metadata` when created, compared when opened, None = whatever is there.

    Raises:
        CorruptLog: bytes that were durable are damaged or missing; names file and position. Nothing was changed.
        StorageError: the disk refused, or the directory belongs to another topic id.
    """
    if not disk.is_dir(directory):
        _create(disk, directory, topic_id or uuid.uuid4().hex)
    topic_id = _check_topic_id(disk, directory, topic_id)
    checkpoint = unpack_checkpoint(disk.read_file(f"{directory}/{FILE_NAME}"), f"{directory}/{FILE_NAME}")
    if checkpoint is not None and checkpoint.swaps:
        swapped = [info for info in checkpoint.segments if info.base_offset in checkpoint.swaps]
        finish_swaps(disk, directory, swapped, checkpoint.swap_suffix)
    _remove_leftovers(disk, directory)
    segments = _known_segments(disk, directory, checkpoint, config)
    recovery = _Recovery(disk, directory, segments, checkpoint, has_gaps=config.is_compacted)
    report = recovery.run()
    is_new = disk.size(segments[-1].path) < 0
    if checkpoint is not None:
        dense_offset = checkpoint.dense_offset
    else:
        dense_offset = segments[-1].next_offset if config.is_compacted else 0
    if is_new:
        segments[-1].sync()
        disk.fsync_dir(directory)
    recovery.producers.renew(now_ms)
    log_start = max(checkpoint.log_start_offset if checkpoint else 0, segments[0].base_offset)
    log = PartitionLog(
        directory,
        disk,
        config,
        topic_id=topic_id,
        segments=segments,
        log_start_offset=min(log_start, segments[-1].next_offset),
        producers=recovery.producers,
        epochs=recovery.epochs,
        recovery=report,
        checkpoint=checkpoint,
        dense_offset=dense_offset,
    )
    if checkpoint is None or checkpoint.swaps or is_new or report.scanned_bytes > _MUCH_SCANNED_BYTES:
        log.checkpoint()
    elif checkpoint.boot_id != disk.boot_id():
        log.save_checkpoint()
    return log


def _create(disk: Disk, directory: str, topic_id: str) -> None:
    """Make an empty log. A crash in between leaves files that are whole, each there or not; an open makes up for them."""
    disk.make_dir(directory)
    write_whole(disk, f"{directory}/{METADATA_FILE}", _metadata(topic_id))
    disk.open(f"{directory}/{file_name(0, '.log')}", create=True).close()  # empty: its name is all that has to be durable
    checkpoint = Checkpoint(VERSION, log_start_offset=0, recovery_point=0, segments=[], boot_id=disk.boot_id())
    write_whole(disk, f"{directory}/{FILE_NAME}", pack_checkpoint(checkpoint))
    disk.fsync_dir(directory)
    disk.fsync_dir(directory.rpartition("/")[0] or ".")


def topic_id_of(disk: Disk, directory: str) -> str | None:
    """Return the topic id in `partition.metadata` as 32 hex digits, None if there is no such file. Raises CorruptLog."""
    path = f"{directory}/{METADATA_FILE}"
    content = disk.read_file(path)
    if content is None:
        return None
    try:
        fields = dict(line.split(": ", 1) for line in content.decode().splitlines() if line)
        found = urlsafe_b64decode(fields["topic_id"] + "==").hex()
        if fields["version"] != "0":
            raise ValueError(fields["version"])
    except (ValueError, KeyError) as error:
        raise CorruptLog(f"{path}: expected lines `version: 0` and `topic_id: ...`, found {content[:80]!r}") from error
    return found


def _metadata(topic_id: str) -> bytes:
    encoded = urlsafe_b64encode(bytes.fromhex(topic_id)).rstrip(b"=").decode()
    return f"version: 0\ntopic_id: {encoded}".encode()


def _check_topic_id(disk: Disk, directory: str, topic_id: str | None) -> str:
    """Return the topic id in `partition.metadata`, writing the file if it is missing."""
    found = topic_id_of(disk, directory)
    if found is None:
        topic_id = topic_id or uuid.uuid4().hex
        write_atomically(disk, f"{directory}/{METADATA_FILE}", _metadata(topic_id))
        return topic_id
    if topic_id is not None and found != topic_id:
        raise StorageError(f"{directory}: expected a log of topic id {topic_id}, found one of {found}; move it out of the way")
    return found


def _remove_leftovers(disk: Disk, directory: str) -> None:
    """Remove what an interrupted write left: temporary files, and indexes without their segment."""
    names = set(disk.list(directory))
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        is_orphan = dot + suffix in INDEX_SUFFIXES and stem + ".log" not in names
        if is_orphan or suffix in ("tmp", "cleaned", "deleted"):
            disk.remove(f"{directory}/{name}")


def _known_segments(disk: Disk, directory: str, checkpoint: Checkpoint | None, config: LogConfig) -> list[Segment]:
    """Return the segments in order of offset, those of the checkpoint compared with their files.

    Raises:
        CorruptLog: a file of the checkpoint is missing or shorter than it was.
    """
    infos = {info.base_offset: info for info in checkpoint.segments} if checkpoint else {}
    recovery_base = max(infos, default=-1)
    bases = sorted(int(name[:-4]) for name in disk.list(directory) if name.endswith(".log") and name[:-4].isdigit())
    for base_offset, info in infos.items():
        path = f"{directory}/{file_name(base_offset, '.log')}"
        size = disk.size(path)
        if size < info.size_bytes or (size > info.size_bytes and base_offset != recovery_base):
            found = "no such file" if size < 0 else f"{size} bytes"
            raise CorruptLog(
                f"{path}: expected a segment of {info.size_bytes} bytes, found {found}: records that were on disk are "
                "missing; restore this file from a copy, the log is left as it is"
            )
    segments = []
    for base_offset in bases:
        if checkpoint and base_offset < checkpoint.recovery_point and base_offset not in infos:
            _remove_segment(disk, directory, base_offset)
            continue
        segments.append(
            Segment(
                disk,
                directory,
                base_offset,
                index_interval_bytes=config.index_interval_bytes,
                info=infos.get(base_offset),
                is_dense=base_offset >= checkpoint.dense_offset if checkpoint else not config.is_compacted,
            )
        )
    if not segments:
        base_offset = checkpoint.recovery_point if checkpoint else 0
        segments = [Segment(disk, directory, base_offset, index_interval_bytes=config.index_interval_bytes)]
    return segments


def _remove_segment(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        disk.remove(f"{directory}/{file_name(base_offset, suffix)}")


class _Recovery:
    """Takes in what lies beyond the checkpoint: producers, epochs, indexes; cuts a torn tail off."""

    def __init__(
        self, disk: Disk, directory: str, segments: list[Segment], checkpoint: Checkpoint | None, *, has_gaps: bool
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._has_gaps = has_gaps
        self._may_leave_out = has_gaps and checkpoint is None  # what lies beyond a checkpoint was never compacted
        self._may_have_holes = checkpoint is not None and checkpoint.boot_id not in ("", disk.boot_id())
        known = [segment for segment in segments if segment.info is not None]
        recovery_point = checkpoint.recovery_point if checkpoint else 0
        self.producers = known_producers(disk, directory, known, checkpoint)
        content = disk.read_file(f"{directory}/{EPOCHS_FILE}")
        is_good = content is not None and (checkpoint is None or crc32c(content) == checkpoint.epochs_crc)
        epochs = LeaderEpochs.from_bytes(content) if is_good else None
        self.epochs = replayed_epochs(known) if epochs is None else epochs
        self.epochs.cut_end(recovery_point)

    def run(self) -> RecoveryReport:
        """Scan what is not checkpointed.

        Raises:
            CorruptLog: damaged bytes that are not a torn tail, or a segment is missing; nothing was changed.
        """
        scanned_bytes = truncated_bytes = 0
        kept_file = ""
        last = self._segments[-1]
        expected_offset = self._segments[0].base_offset
        for segment in self._segments:
            self._check_follows(segment, expected_offset)
            start, size_bytes = segment.size_bytes, max(self._disk.size(segment.path), 0)
            if start < size_bytes:
                end, has_more = scan_batches(
                    segment,
                    start,
                    size_bytes,
                    segment.next_offset,
                    self._take(segment),
                    has_gaps=self._may_leave_out,
                    may_have_holes=self._may_have_holes and segment is last,
                )
                scanned_bytes += size_bytes - start
                if end < size_bytes:
                    if segment is not last:
                        # A segment is durable before the next one is made, so its end cannot be torn.
                        raise segment.corrupt(end, "it was complete, for a later segment exists")
                    truncated_bytes = size_bytes - end
                    kept_file = keep_aside(segment, end, size_bytes, disk=self._disk) if has_more else ""
                    segment.file.truncate(end)
                segment.sync()
            expected_offset = segment.next_offset
        rebuilt_indexes = sum(segment.rebuilt_indexes for segment in self._segments)
        where = (last.path, last.size_bytes) if truncated_bytes else ("", 0)
        return RecoveryReport(not scanned_bytes, scanned_bytes, truncated_bytes, *where, rebuilt_indexes, kept_file)

    def _check_follows(self, segment: Segment, expected_offset: int) -> None:
        is_gap = segment.base_offset > expected_offset and not self._has_gaps
        if is_gap or segment.base_offset < expected_offset:
            raise CorruptLog(
                f"{segment.path}: expected a segment that begins at offset {expected_offset}, found {segment.base_offset}; "
                "restore the missing file from a copy, the log is left as it is"
            )

    def _take(self, segment: Segment) -> TakeBatch:
        def take(header: BatchHeader, position: int, batch: memoryview) -> None:
            segment.note(header, position)
            self.epochs.add(header.partition_leader_epoch, header.base_offset)
            aborted = replay_batch(self.producers, header, batch)
            if aborted is not None:
                segment.aborted.append(aborted)

        return take
