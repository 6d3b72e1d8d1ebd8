"""Spans of a buffer as Python objects: the step from columns to `bytes`.

With many spans and the kernels loaded they are written as one MessagePack array, which msgspec turns into a list in C: half the
cost of slicing them one by one.
"""

from __future__ import annotations

from operator import add
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from .tiers import kernel_tier

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_FEW_SPANS = 64
_MAX_PACKED_BYTES = 1 << 28
_MAX_SPAN_PREFIX_BYTES = 5


def span_objects(
    buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> list[bytes | None]:
    """Return N bytes objects, None where the size is negative."""
    if len(starts) == 0:
        return []
    if len(starts) >= _FEW_SPANS:
        kernels = kernel_tier().kernels(0)
        if kernels is not None:
            packed = _packed(kernels, buffer, starts, sizes)
            if packed is not None:
                objects: list[bytes | None] = msgspec.msgpack.decode(packed)
                return objects
    return _sliced(buffer, starts, sizes)


def _packed(
    kernels: ModuleType, buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> Any:
    """Return the spans as a MessagePack array, None if they are too many bytes or do not lie in the buffer."""
    import numpy as np

    lengths = np.maximum(sizes, 0)
    if (starts < 0).any() or (starts + lengths > len(buffer)).any():
        return None
    room = int(lengths.sum(dtype=np.int64)) + _MAX_SPAN_PREFIX_BYTES * (len(starts) + 1)
    if room > _MAX_PACKED_BYTES:
        return None
    out = np.empty(room, np.uint8)
    end = kernels.pack_spans(buffer, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), out)
    return out[:end].data


def _sliced(buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]) -> list[bytes | None]:
    """Slice one by one. In lists, which costs 30 ns a span more than in arrays and needs no numpy."""
    begin, lengths = starts.tolist(), sizes.tolist()
    shift = min(begin)
    data = buffer[shift : max(map(add, begin, lengths)) + 1].tobytes()
    return [data[at - shift : at - shift + size] if size >= 0 else None for at, size in zip(begin, lengths, strict=True)]
