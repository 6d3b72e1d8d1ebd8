"""A topology as text, Mermaid and SVG."""

from .data import Description, NodeBox, Part, StoreBox, describe

__all__ = ["Description", "NodeBox", "Part", "StoreBox", "describe"]
