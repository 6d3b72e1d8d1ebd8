"""Expressions, decoding and encoding as Python source: their exact forms."""

from .expressions import Compiler, Fragment, Namespace

__all__ = ["Compiler", "Fragment", "Namespace"]
