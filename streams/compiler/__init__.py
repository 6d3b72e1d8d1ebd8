"""Compiles sub-topologies: expressions and nodes to Python source, one fused function per input (the reference tier)."""

from .expressions import Compiler, Fragment, Namespace
from .program import BoundProgram, CompiledProgram, compile_program, store_specs

__all__ = ["BoundProgram", "CompiledProgram", "Compiler", "Fragment", "Namespace", "compile_program", "store_specs"]
