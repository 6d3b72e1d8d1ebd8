"""The compiled tier of streams: programs over columns, equal to the reference tier in every output and report."""

from .keyed import KeyedProgram
from .stateless import TieredProgram
from .tier import CompiledTier, compiled_tier
from .tiers import tiered

__all__ = ["CompiledTier", "KeyedProgram", "TieredProgram", "compiled_tier", "tiered"]
