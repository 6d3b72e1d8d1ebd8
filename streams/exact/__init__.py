"""Expressions, decoding and encoding as Python source: their exact forms."""

from .expressions import ExpressionWriter, Fragment, Namespace

__all__ = ["ExpressionWriter", "Fragment", "Namespace"]
