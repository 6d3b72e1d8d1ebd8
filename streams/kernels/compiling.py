"""Compiles kernels in a child process, into numba's cache: `python -m logflume.streams.kernels.compiling MODULE ...`.

Compilation takes seconds with Python's lock held. In a process that runs an engine it would hold up the engine, and with it the
heartbeats of its group; read from the cache, all kernels take 0.5 s.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from logflume.log.children import Lifeline, end_with_parent
from logflume.log.compiled import importing, is_compiled

_log = logging.getLogger("logflume.streams")
_NICENESS = 10
_TIMEOUT_S = 300.0


def source_of(module: str) -> Path:
    """Return the file of kernels."""
    return Path(__file__).with_name(f"{module}.py")


def compile_apart(
    modules: Collection[str], *, environment: Mapping[str, str] = os.environ, timeout_s: float = _TIMEOUT_S
) -> bool:
    """Compile those kernels that are not in numba's cache, in a child that ends with this process, and wait for it.

    Returns whether all are there. If not, whoever loads them compiles them in this process.
    """
    missing = [module for module in modules if not is_compiled(source_of(module), environment)]
    if not missing:
        return True
    lifeline = Lifeline()
    try:
        found = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name, *missing],
            # its modules lie where this process has them: numba's cache goes by the path by which a file was found
            env=lifeline.environment({**environment, "PYTHONPATH": os.pathsep.join(sys.path)}),
            pass_fds=lifeline.fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.info("kernels could not be compiled apart: %s", error)
        return False
    finally:
        lifeline.close()
    if found.returncode:
        _log.info("kernels could not be compiled apart: %s", found.stderr[-500:].decode(errors="replace"))
    return found.returncode == 0


def main(modules: Collection[str]) -> None:
    """Compile, as the child."""
    end_with_parent(signal.SIGKILL)
    os.nice(_NICENESS)
    for module in modules:
        with importing(source_of(module)):
            importlib.import_module(f"logflume.streams.kernels.{module}")


if __name__ == "__main__":
    main(sys.argv[1:])
