"""read_committed on the reader's side: which batches of a fetch are visible (KIP-98, "aborted transactions")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .control import parse_marker
from .header import BatchHeader, Buffer

AbortedTransactions = Sequence[tuple[int, int]]
"""(producer id, first offset) of each aborted transaction that overlaps a fetch, as the fetch response lists them."""


def visible_batches(
    buffer: Buffer, batches: Iterable[tuple[int, BatchHeader]], aborted: AbortedTransactions
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the (position, header) of data batches that are not part of an aborted transaction; control batches are left out.

    With `aborted` empty (read_uncommitted) only control batches are left out.
    """
    if not aborted:
        yield from (item for item in batches if not item[1].is_control)
        return
    waiting = sorted(((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True)
    active: set[int] = set()
    for position, header in batches:
        while waiting and waiting[-1][0] <= header.last_offset:
            active.add(waiting.pop()[1])
        if header.is_control:
            marker = parse_marker(buffer, position)
            if marker is not None and not marker.is_commit:
                active.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in active):
            yield position, header
