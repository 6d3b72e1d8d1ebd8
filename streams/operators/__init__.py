"""The operators: one file each. `registry.operators()` finds them, `program.operator_program` puts them to work."""

from .operator import Wiring as Wiring
from .program import BoundProgram as BoundProgram
from .program import OperatorProgram as OperatorProgram
from .program import operator_program as operator_program
from .slices import Region as Region
from .slices import Slice as Slice
