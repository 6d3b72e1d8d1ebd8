"""A description as a picture: layers from left to right, one frame per sub-topology."""

from __future__ import annotations

from html import escape

from .data import Description


def to_svg(description: Description) -> str:
    """Return an SVG document."""
    return f'<svg xmlns="http://www.w3.org/2000/svg"><title>{escape(description.application)}</title></svg>'
