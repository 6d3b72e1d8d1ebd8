"""The parser's tables, kept between processes: building them from the grammar takes over a second, loading them a tenth of that.

They lie in the user's cache directory under a name that is the hash of all that they depend on. The file is a pickle, so one that
another user owns or could write is not loaded; any fault means building anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lark

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cached_parser(grammar: str, build: Callable[[str], lark.Lark], *, folder: Path | None = None) -> lark.Lark:
    """Return the parser of a grammar, from the cache if it is there, and put it there if not."""
    key = hashlib.sha256(f"{grammar}\n{lark.__version__}\n{sys.version}".encode()).hexdigest()[:24]
    try:
        path = (folder or cache_folder()) / f"sql-grammar-{key}.pickle"
    except RuntimeError:  # no home directory
        return build(grammar)
    loaded = _load(path)
    if loaded is not None:
        return loaded
    parser = build(grammar)
    with contextlib.suppress(OSError):
        _save(parser, path)
    return parser


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/logflume or ~/.cache/logflume."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "logflume"


def _load(path: Path) -> lark.Lark | None:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or found.st_mode & _OTHERS_MAY_WRITE:
                return None
            parser: lark.Lark = lark.Lark.load(file)
            return parser
    except Exception:  # noqa: BLE001 - a damaged cache is as good as none
        return None


def _save(parser: lark.Lark, path: Path) -> None:
    """Write to a file of another name first, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="sql-grammar-")
    try:
        with os.fdopen(handle, "wb") as file:
            parser.save(file)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
