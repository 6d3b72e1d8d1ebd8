"""Names the records without a key of a batch, which a compacted topic refuses (KIP-467)."""

from __future__ import annotations

from itertools import islice

from .header import BatchHeader, Buffer
from .records import iter_spans

MAX_ROWS = 1000
"""So many are named: the first ones say what is wrong."""


def null_keys(section: Buffer, header: BatchHeader) -> list[int]:
    """Return the rows of the first records with a null key of an uncompressed section. Raises as `decode_section`."""
    rows = (row for row, span in enumerate(iter_spans(bytes(section), header)) if span.key_size < 0)
    return list(islice(rows, MAX_ROWS))
