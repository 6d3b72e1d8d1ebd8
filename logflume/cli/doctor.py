"""`logflume doctor`: check this machine, the installed parts, and a data directory or server."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, place, print_rows
from logflume.log import LogflumeError

app = make_app("", has_default=True)
FSYNC_TRIES = 20
FREE_BYTES_MIN = 1 << 30
FSYNC_MS_MAX = 20.0
VERIFIED_BYTES_MAX = 1 << 30
"""Of the log's files; a partition that would go beyond is left out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `state` is ok, warning or problem; `advice` says what to do about it."""

    check: str
    state: str
    found: str
    advice: str = ""


@app.command()
def doctor(data: Data = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Check Python, the extras, Java, disk and open files, whether the log answers, and the files of its last segments.

    `logflume log verify` reads every byte. Exit code 1 when something is broken.

    Example: logflume doctor --data ./data
    """
    findings = [*machine(), *extras(), *disk(Path(data) if data else Path.cwd()), *log(data, bootstrap), *files(data, bootstrap)]
    rows = [(f.check, f.state, f.found, f.advice) for f in findings]
    print_rows(("check", "state", "found", "advice"), rows, as_json=as_json)
    if any(f.state == "problem" for f in findings):
        raise typer.Exit(1)


def machine() -> Iterator[Finding]:
    """Python, cores, Java, the limit on open files."""
    import resource

    version = platform.python_version()
    fine = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if fine else "problem", version, "" if fine else "install Python 3.11 or newer")
    yield Finding("cores", "ok", str(os.cpu_count()))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < 4096
    yield Finding(
        "open files", "warning" if few else "ok", str(soft), "ulimit -n 65536 before a server with many partitions" if few else ""
    )
    java = java_major()
    if java is None:
        yield Finding("java", "warning", "none", "Spark backfills need Java 17: apt-get install openjdk-17-jre-headless")
    else:
        yield Finding(
            "java", "ok" if java >= 17 else "warning", str(java), "" if java >= 17 else "Spark 4 needs Java 17 or newer"
        )


def java_major() -> int | None:
    """Return the major version of the Java that Spark would use, None without one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java:
        return None
    try:
        text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except OSError:
        return None
    parts = text.split('"')
    digits = parts[1].split(".")[0] if len(parts) > 1 else ""
    return int(digits) if digits.isdecimal() else None


def extras() -> Iterator[Finding]:
    """Which optional parts are installed."""
    for extra, module in (
        ("streams", "rocksdict"),
        ("streams (kernels)", "numba"),
        ("sql", "lark"),
        ("arrow", "pyarrow"),
        ("connect", "sqlalchemy"),
        ("spark", "pyspark"),
        ("tls", "cryptography"),
    ):
        there = importlib.util.find_spec(module) is not None
        advice = "" if there else f"pip install 'logflume[{extra.split()[0]}]'"
        yield Finding(f"extra {extra}", "ok" if there else "warning", "installed" if there else f"no {module}", advice)


def disk(directory: Path) -> Iterator[Finding]:
    """Free space and the time of an fsync where the data is, or would be."""
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    low = free < FREE_BYTES_MIN
    yield Finding(
        "free space",
        "warning" if low else "ok",
        f"{free / 1e9:.1f} GB in {directory}",
        "make room: less than 1 GiB" if low else "",
    )
    times_ms = sorted(fsync_times_ms(directory))
    median = times_ms[len(times_ms) // 2]
    slow = median > FSYNC_MS_MAX
    advice = "each acknowledged write waits for this; use a faster disk" if slow else ""
    yield Finding("fsync", "warning" if slow else "ok", f"median {median:.2f} ms, worst {times_ms[-1]:.2f} ms", advice)


def fsync_times_ms(directory: Path) -> list[float]:
    """Return the milliseconds of a few 4 KiB writes with fdatasync."""
    times_ms = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(FSYNC_TRIES):
            started = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms


def log(data: str | None, bootstrap: str | None) -> Iterator[Finding]:
    """Whether the log opens and answers."""
    from logflume.log import connect
    from logflume.log.client.probe import probe

    address = place(data, bootstrap)
    if os.path.isabs(address) and not (Path(address) / "meta.properties").exists():
        yield Finding("log", "ok", f"no log in {address} yet", "it is made at the first start")
        return
    for step in probe(address):  # which step of a connection fails
        yield Finding(step.name, "problem" if not step.is_ok else "warning" if step.advice else "ok", step.found, step.advice)
        if not step.is_ok:
            return
    started = time.perf_counter()
    try:
        with connect(address) as opened:
            topics = opened.admin().list_topics()
        took_ms = (time.perf_counter() - started) * 1000
        yield Finding("log", "ok", f"{address}: {len(topics)} topics, answered in {took_ms:.0f} ms")
    except LogflumeError as error:
        yield Finding("log", "problem", str(error), "start it with `logflume serve`, or correct the address")


def files(data: str | None, bootstrap: str | None) -> Iterator[Finding]:
    """Whether the files of a data directory are good: all of a small one, else as many bytes as take a few seconds."""
    from logflume.log.inspect import verify_path

    address = place(data, bootstrap)
    if not os.path.isabs(address) or not Path(address).is_dir():
        return
    checked = left_out = read_bytes = 0
    for directory in sorted(each for each in Path(address).iterdir() if each.is_dir() and any(each.glob("*.log"))):
        size_bytes = sum(each.stat().st_size for each in directory.iterdir() if each.is_file())
        if read_bytes + size_bytes > VERIFIED_BYTES_MAX:
            left_out += 1
            continue
        read_bytes += size_bytes
        for finding in verify_path(directory):
            checked += 1
            if finding.problem:
                yield Finding("files", "problem", f"{finding.path}: {finding.problem}", "restore this file from a copy")
    rest = f"; {left_out} partitions left out" if left_out else ""
    advice = f"logflume log verify {address}" if left_out else ""
    yield Finding("files", "ok", f"{checked} files of {read_bytes / 1e6:.0f} MB read{rest}", advice)
