"""Which tier a compiled sub-topology gets."""

from __future__ import annotations

from ..compiler import CompiledProgram
from ..seams import Program
from .aggregates import aggregate_chain
from .columns import Unsupported
from .keyed import KeyedProgram
from .stateless import stateless_program


def tiered(program: CompiledProgram) -> Program:
    """Return the program with the compiled tier beside it, or as it is where that tier does not hold it."""
    try:
        return KeyedProgram(program, aggregate_chain(program)) if program.stores else stateless_program(program)
    except Unsupported:
        return program
