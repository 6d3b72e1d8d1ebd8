"""Batches of columns: what flows between operators, how records become it, and expressions over it."""

from .batch import Batch as Batch
from .batch import Old as Old
from .column import Bytes as Bytes
from .column import Column as Column
