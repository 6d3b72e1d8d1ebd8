"""Leader epochs of a partition and their file (`leader-epoch-checkpoint`, Kafka's text format). Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class LeaderEpochs:
    """Which epoch began at which offset. Invariant: both lists ascend."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.start_offsets: list[int] = []

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """Return the epochs of (epoch, start offset)."""
        epochs = cls()
        for epoch, start_offset in pairs:
            epochs.add(epoch, start_offset)
        return epochs

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (epoch, start offset)."""
        return iter(zip(self.epochs, self.start_offsets, strict=True))

    @property
    def latest(self) -> int:
        return self.epochs[-1] if self.epochs else -1

    def add(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, unless it is not later than the latest."""
        if epoch > self.latest:
            self.epochs.append(epoch)
            self.start_offsets.append(start_offset)

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of an offset, -1 if unknown."""
        i = bisect_right(self.start_offsets, offset)
        return self.epochs[i - 1] if i else -1

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (largest epoch <= the given one, where it ends), (-1, -1) if unknown."""
        i = bisect_right(self.epochs, epoch)
        if not i or epoch < 0:
            return -1, -1
        return self.epochs[i - 1], self.start_offsets[i] if i < len(self.epochs) else log_end_offset

    def cut_end(self, offset: int) -> None:
        """Drop the epochs that begin at or beyond `offset`."""
        while self.start_offsets and self.start_offsets[-1] >= offset:
            self.start_offsets.pop()
            self.epochs.pop()

    def cut_start(self, offset: int) -> None:
        """Drop the epochs that end at or before `offset`; the one that holds it begins there now."""
        while len(self.start_offsets) > 1 and self.start_offsets[1] <= offset:
            del self.start_offsets[0], self.epochs[0]
        if self.start_offsets:
            self.start_offsets[0] = max(self.start_offsets[0], offset)

    def to_bytes(self) -> bytes:
        lines = ["0", str(len(self.epochs)), *(f"{e} {s}" for e, s in zip(self.epochs, self.start_offsets, strict=True))]
        return "\n".join([*lines, ""]).encode()

    @classmethod
    def from_bytes(cls, data: bytes | None) -> LeaderEpochs | None:
        """Return the epochs of a file, None if it is missing or not such a file."""
        epochs = cls()
        if data is None:
            return None
        try:
            version, count, *lines = data.decode().split("\n")
            pairs = [tuple(map(int, line.split(" "))) for line in lines if line]
            if int(version) != 0 or int(count) != len(pairs):
                return None
            for epoch, start_offset in pairs:
                epochs.add(epoch, start_offset)
        except ValueError:
            return None
        return epochs
