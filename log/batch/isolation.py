"""read_committed on the reader's side: which batches of a fetch are visible (KIP-98, "aborted transactions")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .header import BatchHeader, Buffer

AbortedTransactions = Sequence[tuple[int, int]]
"""(producer id, first offset) of each aborted transaction that overlaps a fetch, as the fetch response lists them."""


def visible_batches(
    buffer: Buffer, batches: Iterable[tuple[int, BatchHeader]], aborted: AbortedTransactions
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the (position, header) of data batches that are not part of an aborted transaction; control batches are left out.

    With `aborted` empty (read_uncommitted) only control batches are left out.
    """
    raise NotImplementedError
