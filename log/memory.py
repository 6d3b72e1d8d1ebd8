"""Raw memory access for the kernels: load, store and copy bytes and words at an address, as numba intrinsics.

Passing addresses instead of arrays to small helpers keeps numba from counting references in the inner loop, which cost five times
the decoding itself. Callers keep the arrays alive and every position inside of them.
"""

# numba's extension API is untyped.
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def"

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTE = ir.IntType(8)
_HALF = ir.IntType(32)
_WORD = ir.IntType(64)


@intrinsic
def load_byte(_context, address, at):
    """Return the byte at address + at as int64."""

    def codegen(_target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(*args), _BYTE.as_pointer())
        return builder.zext(builder.load(pointer), _WORD)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_byte(_context, address, at, value):
    """Write the low eight bits of an int64 at address + at."""

    def codegen(target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(args[0], args[1]), _BYTE.as_pointer())
        builder.store(builder.trunc(args[2], _BYTE), pointer)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_bytes(_context, source, target_address, size):
    """Copy `size` >= 0 bytes between addresses that do not overlap."""

    def codegen(target, builder, _signature, args):
        source_pointer = builder.inttoptr(args[0], _BYTE.as_pointer())
        target_pointer = builder.inttoptr(args[1], _BYTE.as_pointer())
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, args[2], 1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_word(_context, address, at):
    """Return the eight bytes at address + at, at any alignment, as a little-endian int64."""

    def codegen(_target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(*args), _WORD.as_pointer())
        return builder.load(pointer, align=1)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_word(_context, address, at, value):
    """Write an int64 at address + at, at any alignment, little-endian."""

    def codegen(target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(args[0], args[1]), _WORD.as_pointer())
        builder.store(args[2], pointer, align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_half(_context, address, at):
    """Return the four bytes at address + at, at any alignment, as an int64 >= 0."""

    def codegen(_target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(*args), _HALF.as_pointer())
        return builder.zext(builder.load(pointer, align=1), _WORD)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store_half(_context, address, at, value):
    """Write the low 32 bits of an int64 at address + at, at any alignment, little-endian."""

    def codegen(target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(args[0], args[1]), _HALF.as_pointer())
        builder.store(builder.trunc(args[2], _HALF), pointer, align=1)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_double(_context, address, at):
    """Return the double at address + at."""

    def codegen(_target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(*args), ir.DoubleType().as_pointer())
        return builder.load(pointer, align=1)

    return types.float64(types.int64, types.int64), codegen


@intrinsic
def trailing_zeros(_context, value):
    """Return the number of zero bits below the lowest one of an int64 that is not 0."""

    def codegen(_target, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def load_single(_context, address, at):
    """Return the single-precision number at address + at, as a double."""

    def codegen(_target, builder, _signature, args):
        pointer = builder.inttoptr(builder.add(*args), ir.FloatType().as_pointer())
        return builder.fpext(builder.load(pointer, align=1), ir.DoubleType())

    return types.float64(types.int64, types.int64), codegen
