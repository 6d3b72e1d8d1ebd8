"""What is installed with an extra only: whether it is there, and the one command that brings it."""

from __future__ import annotations

from importlib.util import find_spec

from logflume.log.errors import InvalidInput


def require(module: str, *, extra: str, what: str) -> None:
    """Raise InvalidInput unless a module of an extra is installed: `what` is the act that needs it."""
    if find_spec(module) is None:
        raise InvalidInput(f"{what} needs {module}: pip install 'logflume[{extra}]'")
