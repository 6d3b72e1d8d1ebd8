"""Many records as one batch: by columns when the kernels are loaded, else one after the other, with the same result."""

from __future__ import annotations

from collections.abc import Sequence

from logflume.log.records import Chunk, Headers

from .compression import Codec
from .header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from .records import encode_batch
from .tiers import kernel_tier


def encode_objects(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps_ms: Sequence[int],
    *,
    headers: Sequence[Headers] | None = None,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytearray:
    """Encode N keys, values and timestamps (N >= 1) as one batch with offsets 0..N-1."""
    if kernel_tier().kernels(len(values)) is None:
        return encode_batch(
            keys,
            values,
            timestamps_ms,
            headers=headers,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
    from .columns import encode_rows

    return encode_rows(
        Chunk.from_columns("", keys, values, timestamps_ms, headers=headers),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
