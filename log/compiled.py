"""What numba's cache holds of kernels, checked against all of their source.

Numba compares a compiled kernel with the file that the kernel stands in, not with the files of what it calls: after a change
there it would go on with what was compiled before. So beside the indexes of a file's kernels stands a note of what all of these
files held when they were compiled. It is written before that: a file that changes meanwhile is noticed the next time.

Nor does numba notice that another process compiles the same. So one process at a time imports a file of kernels.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import sys
import tempfile
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
    digest = _digest(kernels)
    folders = _folders(kernels, environment)
    if "NUMBA_CACHE_DIR" in environment:
        folders = folders[:1]  # the others may hold these kernels too, and are not looked at
    return any(_noted(_note(folder, kernels)) == digest and any(_indexes(folder, kernels)) for folder in folders)


@contextlib.contextmanager
def importing(kernels: Path, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Let this process import these kernels, as their source is now, after others that do: what they compile is found then."""
    drop_outdated(kernels, environment)
    with contextlib.ExitStack() as stack:
        for folder in _folders(kernels, environment):
            with contextlib.suppress(OSError):
                fcntl.flock(stack.enter_context((folder / f"{kernels.stem}.lock").open("w")), fcntl.LOCK_EX)
                break
        yield


def drop_outdated(kernels: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Delete from numba's cache what was compiled of these kernels and what they import from other sources than there are now."""
    for source in sources_of(kernels):
        digest = _digest(source)
        for folder in _folders(source, environment):
            with contextlib.suppress(OSError):
                _refresh(folder, source, digest)
                break  # numba too takes the first folder that can be written


def _refresh(folder: Path, source: Path, digest: str) -> None:
    """Delete what a folder holds of the kernels of a file if it is not of these sources, and note them.

    Raises:
        OSError: nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f"{source.stem}.", delete=False) as written:
        written.write(digest)
    note = _note(folder, source)
    if _noted(note) == digest:
        os.unlink(written.name)
        return
    for index in _indexes(folder, source):
        index.unlink(missing_ok=True)
    os.replace(written.name, note)


def _digest(kernels: Path) -> str:
    """Return a digest of all sources of kernels."""
    found = hashlib.sha256()
    for source in sorted(sources_of(kernels)):
        found.update(hashlib.sha256(source.read_bytes()).digest())
    return found.hexdigest()


def _note(folder: Path, source: Path) -> Path:
    return folder / f"{source.stem}.sources"


def _noted(note: Path) -> str | None:
    try:
        return note.read_text()
    except OSError:
        return None


def _indexes(folder: Path, source: Path) -> Iterator[Path]:
    """Yield the indexes of the compiled kernels of a file."""
    return folder.glob(f"{source.stem}.*.nbi")


def _folders(source: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return where numba keeps what it compiles of a file, in the order in which it tries them (`numba.core.caching`)."""
    own = source.parent.absolute()
    named = f"{own.name}_{hashlib.sha1(str(own).encode()).hexdigest()}"
    caches = "~/Library/Caches" if sys.platform == "darwin" else environment.get("XDG_CACHE_HOME", "~/.cache")
    found = [own / "__pycache__", Path(caches).expanduser() / "numba" / named]
    chosen = environment.get("NUMBA_CACHE_DIR")
    return [Path(chosen) / named, *found] if chosen else found
