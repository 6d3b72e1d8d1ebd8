"""Whether a sink can write where it is told to."""

from __future__ import annotations

import os
from pathlib import Path


def unwritable(path: Path, *, makes_directories: bool = False) -> str | None:
    """Return why no file can be at a path; None: as far as can be seen one can. A directory is made where that is allowed."""
    if not makes_directories and path.is_dir():
        return "it is a directory"
    parent = path if makes_directories else path.parent
    while makes_directories and not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.exists():
        return f"{parent} does not exist"
    if not parent.is_dir():
        return f"{parent} is not a directory"
    return None if os.access(parent, os.W_OK | os.X_OK) else f"{parent} is not to be written by this user"
