"""The kernels: loops in numba's subset over arrays and memory, and expressions over columns."""

from .tier import CompiledTier, compiled_tier

__all__ = ["CompiledTier", "compiled_tier"]
