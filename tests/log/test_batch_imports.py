"""What the broker imports stays free of numpy and numba."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["logflume.log.batch", "logflume.log.storage", "logflume.log.server.shell"])
def test_the_brokers_modules_do_not_import_numpy(module: str) -> None:
    heavy = {"numpy", "numba", "pyarrow", "cramjam", "backports.zstd", "lz4"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
