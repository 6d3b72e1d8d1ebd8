"""What is in deploy/ is of use: commands of image and unit run, the dashboard asks for what there is, licences are known."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from ._command import LOGFLUME, free_port, read_until, run, wait_until

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
UNIT = (DEPLOY / "logflume.service").read_text()
HEALTH_PORT = "9308"
METRIC = re.compile(r"logflume_\w+")


def told(instruction: str) -> list[str]:
    """Return the words of an instruction of the Dockerfile in its JSON form."""
    (found,) = re.findall(rf"^{instruction} .*?(\[.*\])$", DOCKERFILE, re.MULTILINE)
    return [str(word) for word in json.loads(found)]


@pytest.mark.slow
def test_the_command_of_the_image_is_healthy_and_has_what_the_dashboard_shows(tmp_path: Path) -> None:
    port = str(free_port())
    words = [word.replace(HEALTH_PORT, port).replace("/data", str(tmp_path / "data")) for word in told("CMD")]
    address = f"127.0.0.1:{free_port()}"
    ports = ["--listen", address, "--sql", "off", "--registry", "off", "--workers", "0"]
    process = subprocess.Popen([*LOGFLUME, *words, *ports], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        read_until(process, "ready; Ctrl-C stops")
        program, *check = (word.replace(HEALTH_PORT, port) for word in told("HEALTHCHECK"))
        assert program == "python"
        wait_until(lambda: subprocess.run([sys.executable, *check], check=False, capture_output=True).returncode == 0)
        run("topic", "list", "--bootstrap", address)
        said = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        process.terminate()  # what STOPSIGNAL and systemd send
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    shown = METRIC.findall((DEPLOY / "grafana.json").read_text())
    assert shown
    assert set(shown) <= set(METRIC.findall(said))


def test_the_image_is_not_root_and_copies_what_is_there() -> None:
    assert DOCKERFILE.index("\nUSER ") < DOCKERFILE.index("\nENTRYPOINT ")
    extras = set(re.findall(r"logflume\[([\w,]+)\]|'\.\[([\w,]+)\]'", DOCKERFILE))
    wanted = {name for pair in extras for text in pair if text for name in text.split(",")}
    assert wanted <= set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = str(Path(sys.executable).parent / "logflume")
    (tmp_path / "logflume.service").write_text(UNIT.replace("/opt/logflume/bin/logflume", program))
    command = ["systemd-analyze", "verify", str(tmp_path / "logflume.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in done.stderr.splitlines() if "logflume" in line] == []


def test_serve_knows_the_options_of_the_unit() -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    shown = run("serve", "--help").stdout
    options = [word for word in shlex.split(line) if word.startswith("--")]
    assert options
    assert all(option in shown for option in options)


def test_every_package_that_comes_along_says_its_licence() -> None:
    done = subprocess.run([sys.executable, "scripts/sbom.py"], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    found = {each["name"]: each["licenses"][0]["license"]["name"] for each in json.loads(done.stdout)["components"]}
    assert {"msgspec", "pyarrow", "rocksdict", "lark"} <= set(found)
    assert [name for name, licence in found.items() if licence == "not stated" or "GPL" in licence.replace("LGPL", "")] == []
