"""The types of arrays in the kernels' signatures (numba's): `IN_` ones may be read-only; a digit behind a letter is the number of
dimensions where it is no width."""

from __future__ import annotations

from numba import types

IN_U8 = types.Array(types.uint8, 1, "C", readonly=True)
IN_I64 = types.Array(types.int64, 1, "C", readonly=True)
IN_I32 = types.Array(types.int32, 1, "C", readonly=True)
IN_I2 = types.Array(types.int64, 2, "C", readonly=True)
U8 = types.Array(types.uint8, 1, "C")
I64 = types.Array(types.int64, 1, "C")
I32 = types.Array(types.int32, 1, "C")
B1 = types.Array(types.boolean, 1, "C")
B2 = types.Array(types.boolean, 2, "C")
I2 = types.Array(types.int64, 2, "C")
F2 = types.Array(types.float64, 2, "C")
WRITE = types.int64(IN_I64, IN_I64, IN_I32, IN_U8, IN_I2, IN_I2, U8, I64, I64, I32)
"""Of the writers of binary rows."""
