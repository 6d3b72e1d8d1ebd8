"""Functions of arrays and maps over columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import numbers


def array_length_columns(items: Any) -> tuple[Any, ...]:
    import pyarrow.compute as pc

    return numbers(pc.list_value_length(items[0]), np.int64), None
