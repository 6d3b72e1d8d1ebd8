"""What is installed is whole: a wheel of a clean checkout runs by itself, and type checkers find the package from elsewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from logflume.log import connect
from logflume.sql import SqlEngine
from logflume.sql.rest import SqlServer

from ._command import free_port, run_cold, serving
from ._guide import Reader, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("log", "streams", "sql", "connect", "logflume", "src", "pyproject.toml", "README.md", "LICENSE")
PROGRAM = """\
import logflume as lf
from logflume import col

app = lf.App("first")
numbers = app.stream("a", int)
reveal_type(numbers.filter(lambda value: value > 1))
numbers.filter(lambda key, value: key.startswith("a") and value > 1).to("b")
numbers.map_values(lambda value: value + 1).filter(col.value > 2).to("c")
app.table("t", str).filter(lambda value: value.isupper()).to("d")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which a wheel of a clean checkout is installed; what it depends on is that of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir() and not (ROOT / name).is_symlink():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    build = [*["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"], str(folder), str(source)]
    subprocess.run([sys.executable, *build], check=True, timeout=280, cwd=folder)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    command = folder / "env" / "bin" / "logflume"
    command.write_text(f"#!{folder}/env/bin/python\nfrom logflume.cli import main\n\nraise SystemExit(main())\n")
    command.chmod(0o755)
    return folder / "env"


def brought(requirements: list[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return the distributions that an installation of requirements brings here, without extras."""
    for line in requirements:
        needed = Requirement(line)
        name = canonicalize_name(needed.name)
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            brought(found[name].requires or [], found)
    return found


def base_requirements() -> list[str]:
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return found


def test_the_base_installation_stays_small() -> None:
    packages = brought(base_requirements(), {})
    assert len(packages) <= 15, sorted(packages)
    files = [Path(str(each.locate_file(file))) for each in packages.values() for file in each.files or ()]
    size_bytes = sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
    assert size_bytes <= 25e6, f"{size_bytes / 1e6:.0f} MB"


COUNTS = "app.stream('words').group_by_key().count().to('counts')"
HIDES_MODULES = """
import sys
from importlib.machinery import PathFinder

class BaseOnly(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {HIDDEN} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = BaseOnly
"""


@pytest.fixture
def base_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands in processes of their own find what the base installation brings, and nothing else."""
    base = {*brought(base_requirements(), {}), "logflume"}
    modules = packages_distributions().items()
    hidden = {module for module, owners in modules if not base & {canonicalize_name(owner) for owner in owners}}
    assert {"uvicorn", "httpx", "prompt_toolkit", "pyarrow", "numba"} <= hidden
    (tmp_path / "sitecustomize.py").write_text(HIDES_MODULES.replace("{HIDDEN}", repr(hidden)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("base_only")
def test_the_base_installation_serves_and_says_what_the_rest_needs(tmp_path: Path) -> None:
    port = f"127.0.0.1:{free_port()}"
    with serving(tmp_path / "data", "--registry", port, "--sql", port) as (address, _):
        there = ("--bootstrap", address)
        run_cold("topic", "create", "words", *there)
        run_cold("produce", "words", "-K", ":", *there, stdin="a:1\nb:2\n")
        assert "\ta\t1\n" in run_cold("consume", "words", *there).stdout
        assert "words" in run_cold("topic", "list", *there).stdout
        for command, extra in (("sql -e 'SHOW TOPICS;'", "sql"), ("connect list", "connect"), ("schema list", "registry")):
            refused = run_cold(*shlex.split(command), code=1).stderr
            assert f"pip install 'logflume[{extra}]'" in refused
            assert "Traceback" not in refused
        refused = run_cold("secure", "init", "--host", "a", "--data", str(tmp_path / "secured"), code=1).stderr
        assert refused == "logflume secure: TLS needs cryptography: pip install 'logflume[tls]'\n"
        (tmp_path / "app.py").write_text(f"import logflume as lf\napp = lf.App('a', log={address!r})\n{COUNTS}\napp.run()\n")
        ran = subprocess.run([sys.executable, tmp_path / "app.py"], capture_output=True, text=True, timeout=60, check=False)
        assert ran.stderr.splitlines()[-1].endswith("logflume.App needs numpy: pip install 'logflume[streams]'")
        assert len(ran.stderr.splitlines()) < 8


@pytest.mark.usefixtures("base_only")
def test_the_base_installation_has_all_of_sql_but_its_engine(tmp_path: Path) -> None:
    """The shell and scripts against a server elsewhere, laying out, the syntax; what needs the engine says which extra has it."""
    script = tmp_path / "script.sql"
    script.write_text("select 1 as one from s;\nSELCT 2;\n")
    linted = run_cold("sql", "lint", str(script), code=1)
    assert linted.stdout == f"{script}:2:1: error: Unknown statement 'SELCT'; did you mean SELECT or SET or UNSET? [SQL_SYNTAX]\n"
    assert "pip install 'logflume[sql]'" in linted.stderr
    for_engine = run_cold("sql", "lint", str(script), "--registry", "http://127.0.0.1:1", code=1)
    assert "--registry needs the engine" in for_engine.stderr
    assert run_cold("sql", "fmt", "-", stdin="show  tables;").stdout == "SHOW TABLES;\n"
    with connect(tmp_path / "log") as log, SqlEngine(log, tmp_path / "sql") as engine, SqlServer(engine) as server:
        there = ("sql", "--server", server.address)
        create = "CREATE STREAM s (id INT KEY, v ARRAY<DOUBLE>) WITH (KAFKA_TOPIC='s', PARTITIONS=1, VALUE_FORMAT='JSON');"
        insert = "INSERT INTO s VALUES (1, ARRAY[1.5, NULL]);"
        done = run_cold(*there, "-e", f"{create} {insert} SELECT * FROM s; SELECT id FROM s EMIT CHANGES LIMIT 1;")
        assert done.stdout.splitlines()[2:] == ["ID\tV", "1\t[1.5, null]", "ID", "1"]
        shell = run_cold(*there, stdin="SELECT *\nFROM s;\nSELECT x FROM s;\n\\q\n").stdout
        assert "[1.5, null]" in shell
        assert "SELECT column 'X' cannot be resolved" in shell
    refused = run_cold("sql", "-e", "SHOW TABLES;", "--data", str(tmp_path / "log"), code=1).stderr
    assert "pip install 'logflume[sql]'" in refused
    assert "Traceback" not in refused


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_newcomer_with_a_wheel_of_a_clean_checkout_follows_the_first_page(installed: Path, tmp_path: Path) -> None:
    program = "import logflume.log.server, logflume.sql as sql; print(sql.__file__)"
    done = subprocess.run([installed / "bin" / "python", "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.startswith(str(installed)), done.stderr
    programs = installed / "bin"
    with serving(tmp_path / "data", folder=tmp_path, command=[str(programs / "logflume")]):
        reader = Reader(tmp_path, {}, programs)
        try:
            reader.follow(blocks_of(ROOT / "docs" / "start.md"))
        finally:
            reader.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_files_that_are_no_programs_are_in_the_wheel_too(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/logflume")
    files = [
        path for part in PARTS[:4] for path in (ROOT / part).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    read = [path for path in files if path.suffix not in (".c", ".so")]
    assert [str(path) for path in read if not (package / path.relative_to(ROOT)).is_file()] == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_type_checkers_find_the_installed_package_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    """mypy takes an installation by its marker `py.typed`; the checkout, whose layout is odder, goes through both in full."""
    (tmp_path / "first.py").write_text(PROGRAM)
    wheels = str(installed / "bin" / "python")
    runs = [[sys.executable, "-m", "pyright", "--pythonpath", python, "first.py"] for python in (sys.executable, wheels)]
    runs += [[sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "first.py"]]
    (marker,) = installed.glob("lib/python*/site-packages/logflume/py.typed")
    assert marker.is_file()
    for command in runs:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
        assert re.search(r"Stream\[(builtins\.)?str, (builtins\.)?int\]", done.stdout), done.stdout + done.stderr
        assert done.returncode == 0, done.stdout
