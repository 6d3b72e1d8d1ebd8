"""Spans of a buffer as Python objects: the step from columns to `bytes`.

With many spans and the kernels loaded they are written as one MessagePack array, which msgspec turns into a list in C: half the
cost of slicing them one by one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .tiers import kernel_tier

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
    shift = int(starts.min())
    data = buffer[shift : int((starts + sizes).max()) + 1].tobytes()
    begin = (starts - shift).tolist()
    if int(sizes.min()) >= 0:
        return [data[a:b] for a, b in zip(begin, (starts - shift + sizes).tolist(), strict=True)]
    return [data[a : a + size] if size >= 0 else None for a, size in zip(begin, sizes.tolist(), strict=True)]
