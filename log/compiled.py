"""What numba's cache holds of kernels, checked against all of their source.

Numba compares a compiled kernel with the file that the kernel stands in, not with the files of what it calls: after a change
there it would go on with what was compiled before.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_IMPORT = re.compile(r"^from (?:\.|logflume\.log\.)(\w+) import", re.MULTILINE)
_LOG = Path(__file__).parent


def sources_of(kernels: Path) -> set[Path]:
    """Return the file of kernels and, step by step, the files of what they import beside them and from `log/`."""
    found, left = {kernels}, [kernels]
    while left:
        each = left.pop()
        names = _IMPORT.findall(each.read_text())
        places = {place for name in names for place in (each.with_name(f"{name}.py"), _LOG / f"{name}.py") if place.exists()}
        left += places - found
        found |= places
    return found


def is_compiled(kernels: Path, environment: Mapping[str, str]) -> bool:
    """Return whether numba's cache seems to hold these kernels as their source is now: a guess, which costs time only."""
    changed_s = _changed_s(kernels)
    return any(written_s >= changed_s for _, written_s in _indexes(kernels, environment))


def drop_outdated(kernels: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Delete from numba's cache what was compiled of these kernels and what they import before a file of theirs changed."""
    for source in sources_of(kernels):
        changed_s = _changed_s(source)
        for index, written_s in _indexes(source, environment):
            if written_s < changed_s:
                with contextlib.suppress(OSError):
                    index.unlink()


def _changed_s(kernels: Path) -> float:
    return max(source.stat().st_mtime for source in sources_of(kernels))


def _indexes(kernels: Path, environment: Mapping[str, str]) -> Iterator[tuple[Path, float]]:
    """Yield the indexes of compiled kernels and when they were written."""
    folder, names = kernels.parent, f"{kernels.stem}.*.nbi"
    if chosen := environment.get("NUMBA_CACHE_DIR"):
        found = [*Path(chosen).glob(f"{folder.name}_*/{names}")]
    else:  # beside the source, or, where nothing can be written there, in a folder that is named after that of the source
        everybodys = Path(os.path.expanduser("~/.cache/numba"))
        found = [*folder.glob(f"__pycache__/{names}"), *everybodys.glob(f"{folder.name}_*/{names}")]
    for index in found:
        with contextlib.suppress(OSError):
            yield index, index.stat().st_mtime
