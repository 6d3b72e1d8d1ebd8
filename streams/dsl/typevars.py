"""Type variables of keys and values; one that is not given is Any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")

R = TypeVar("R")
"""What a function gives."""
