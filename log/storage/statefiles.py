"""The files beside the segments that say what the log knew at its recovery point: snapshot, epochs, checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from .checkpoint import FILE_NAME, VERSION, Checkpoint, pack_checkpoint
from .disk import Disk, write_atomically, write_plainly
from .epochs import LeaderEpochs
from .producers import ProducerStates
from .segment import Segment, file_name
from .snapshots import pack_snapshot

EPOCHS_FILE = "leader-epoch-checkpoint"


class StateFiles:
    """Writes the state files of one partition.

    Invariant: `_snapshot` is (offset, CRC-32C) of the snapshot that was written or opened last; a checkpoint refers to it only if
    it is that of its recovery point.
    """

    def __init__(self, disk: Disk, directory: str, checkpoint: Checkpoint | None, *, dense_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._saved_epochs = b""
        self._snapshot = (checkpoint.recovery_point, checkpoint.snapshot_crc) if checkpoint else (-1, 0)
        self._epochs_crc = checkpoint.epochs_crc if checkpoint else 0
        self.cleaned_offset = checkpoint.cleaned_offset if checkpoint else 0
        """End of what was compacted; goes into the next checkpoint."""
        self.dense_offset = dense_offset
        """Segments from here on leave out no offsets."""

    def save_state(
        self, segments: Sequence[Segment], *, producers: ProducerStates, epochs: LeaderEpochs, end_offset: int
    ) -> None:
        """Write indexes, producer snapshot and leader epochs as of the log end.

        Indexes are not synced: they have checksums and are made anew from the log if a power loss takes them. Producers cannot
        be, once their batches are deleted.
        """
        for segment in segments:
            if segment.info is None or segment.info.size_bytes != segment.size_bytes:
                segment.save_indexes()
        snapshot = pack_snapshot(producers)
        write_plainly(self._disk, self._path(file_name(end_offset, ".snapshot")), snapshot, is_synced=True)
        self._snapshot = end_offset, crc32c(snapshot)
        content = epochs.to_bytes()
        if content != self._saved_epochs:
            write_atomically(self._disk, self._path(EPOCHS_FILE), content)
            self._saved_epochs, self._epochs_crc = content, crc32c(content)

    def save_checkpoint(
        self, segments: Sequence[Segment], *, log_start_offset: int, swaps: tuple[int, ...] = (), swap_suffix: str = ""
    ) -> None:
        """Write the checkpoint of what the segments' infos hold; the recovery point is where they end."""
        infos = [segment.info for segment in segments if segment.info is not None]
        recovery_point = infos[-1].next_offset if infos else segments[0].base_offset
        checkpoint = Checkpoint(
            VERSION,
            log_start_offset,
            recovery_point,
            infos,
            cleaned_offset=self.cleaned_offset,
            dense_offset=self.dense_offset,
            epochs_crc=self._epochs_crc,
            snapshot_crc=self._snapshot[1] if self._snapshot[0] == recovery_point else 0,
            boot_id=self._disk.boot_id(),
            swaps=swaps,
            swap_suffix=swap_suffix,
        )
        write_atomically(self._disk, self._path(FILE_NAME), pack_checkpoint(checkpoint))
        for name in self._disk.list(self._directory):
            if name.endswith(".snapshot") and name != file_name(recovery_point, ".snapshot"):
                self._disk.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
