"""A standalone Spark cluster of processes: a master and workers, each with its own directory, a Python without this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

from .._java import quick_spark

WAIT_S = 400


class Cluster:
    """`python` has all that is installed here but this package, `url` is the master."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self.folder = folder
        self.python = python_without_the_package(folder / "python")
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            master = self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.url = self._said(master, r"Starting Spark master at (spark://\S+)")
            page = self._said(master, r"started at (http://\S+)")
            for number in range(workers):
                options = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
                self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *options, self.url)
            self._wait_for_workers(page, workers)
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, class_name: str, *options: str) -> Path:
        import pyspark

        home = Path(str(pyspark.__file__)).parent
        where = self.folder / name
        where.mkdir()
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
        environment |= {"SPARK_LOCAL_DIRS": str(where), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": quick_spark()}
        command = [str(home / "bin" / "spark-class"), class_name, "--host", "127.0.0.1", "--webui-port", "0", *options]
        output = where / "output"
        with output.open("wb") as stream:
            self._processes.append(subprocess.Popen(command, cwd=where, env=environment, stdout=stream, stderr=subprocess.STDOUT))
        return output

    def _said(self, output: Path, pattern: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern, output.read_text())) is None:
            assert time.monotonic() < deadline, output.read_text()
            assert all(process.poll() is None for process in self._processes), output.read_text()
            time.sleep(0.05)
        return found.group(1)

    def _wait_for_workers(self, page: str, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        alive = b""
        while alive.count(b"ALIVE") < count + 1:  # the master too
            assert time.monotonic() < deadline, alive
            with urllib.request.urlopen(f"{page}/json/", timeout=10) as answer:
                alive = answer.read()
            time.sleep(0.05)

    def stop(self) -> None:
        """End master and workers, and with them the executors."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)


def python_without_the_package(folder: Path) -> str:
    """Make a Python environment that sees what is installed here, but not this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=alone).stdout.strip()
    Path(own, "others.pth").write_text(sysconfig.get_path("purelib"))  # a path, whose own .pth files are not read
    lacks = subprocess.run(
        [str(python), "-c", "import logflume"], cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=alone
    )
    assert "No module named 'logflume'" in lacks.stderr
    return str(python)
