"""The package as it travels to Spark's executors: this is the archive's `logflume/__init__.py`, and puts the real one in place.

Executors import from an archive that Spark adds to the path; the package wants files (tables, a grammar, compiled modules), so it
unpacks itself beside the archive, once for all Python workers of the executor. Imports nothing of the package.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

FOLDER = "package"
"""In the archive: the folder that holds the real package."""


def unpack(archive: Path) -> Path:
    """Return the folder that holds the package, unpacked by whoever comes first."""
    target = archive.with_suffix("")
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent, ignore_cleanup_errors=True) as folder:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(folder)
            try:
                os.rename(os.path.join(folder, FOLDER), target)
            except OSError:
                if not target.is_dir():  # else another worker was first
                    raise
    return target


if __name__ == "logflume":
    __path__ = [str(unpack(Path(__file__).parents[1]) / "logflume")]
    __file__ = os.path.join(__path__[0], "__init__.py")
    exec(compile(Path(__file__).read_bytes(), __file__, "exec"))
