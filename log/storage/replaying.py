"""What the batches of segments say of producers and of leader epochs, where no file that is newer does."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from logflume.log.batch.control import parse_marker
from logflume.log.batch.header import BatchHeader, Buffer

from .checkpoint import Checkpoint
from .disk import Disk
from .epochs import LeaderEpochs
from .producers import ProducerStates
from .segment import Segment, file_name
from .slices import AbortedTransaction
from .snapshots import unpack_snapshot


def replayed_epochs(segments: Iterable[Segment]) -> LeaderEpochs:
    """Return the leader epochs as the batches of the segments say."""
    epochs = LeaderEpochs()
    for segment in segments:
        for _, header in segment.scan(0):
            epochs.add(header.partition_leader_epoch, header.base_offset)
    return epochs


def replay_batch(producers: ProducerStates, header: BatchHeader, batch: Buffer) -> AbortedTransaction | None:
    """Bring producer state up to a batch of the log; return the transaction it aborts, if it is such a marker."""
    if header.is_control:
        marker = parse_marker(batch)
        if marker is None:
            return None
        return producers.apply_marker(header, marker, offset=header.last_offset, timestamp_ms=header.max_timestamp)
    producers.apply(header, first_offset=header.base_offset, last_offset=header.last_offset, timestamp_ms=header.max_timestamp)
    return None


def known_producers(disk: Disk, directory: str, segments: list[Segment], checkpoint: Checkpoint | None) -> ProducerStates:
    """Return the producer state at the recovery point: the snapshot that the checkpoint knows, else from all batches before."""
    if checkpoint is not None:
        content = disk.read_file(f"{directory}/{file_name(checkpoint.recovery_point, '.snapshot')}")
        if content is not None and crc32c(content) == checkpoint.snapshot_crc:
            producers = unpack_snapshot(content)
            if producers is not None:
                return producers
    return replayed_producers(segments)


def replayed_producers(segments: Iterable[Segment]) -> ProducerStates:
    """Return the producer state as the batches of the segments say."""
    producers = ProducerStates()
    for segment in segments:
        for position, header in segment.scan(0):
            batch = segment.file.read(position, header.size_bytes) if header.is_control else b""
            replay_batch(producers, header, batch)
    return producers
