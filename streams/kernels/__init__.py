"""The compiled tier of streams: programs over columns, equal to the reference tier in every output and report."""

from .program import TieredProgram, tiered
from .tier import CompiledTier, compiled_tier

__all__ = ["CompiledTier", "TieredProgram", "compiled_tier", "tiered"]
