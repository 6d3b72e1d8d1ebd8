"""The guide as a newcomer follows it: every block of every page, in order, in a directory where `logflume serve` runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ._command import free_port, serving
from ._guide import Reader, blocks_of, is_shown

DOCS = Path(__file__).resolve().parents[2] / "docs"
DEFAULT_ADDRESS, SECURED_PORT = "127.0.0.1:9092", "9093"
DEFAULT_REGISTRY = "http://127.0.0.1:8081"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
LIVE = ("```bash", "```sql", '"./data"', DEFAULT_ADDRESS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """An empty directory with the guide's first command running in it, on ports of its own."""
    folder, registry = tmp_path_factory.mktemp("guide"), f"127.0.0.1:{free_port()}"
    with pytest.MonkeyPatch.context() as patch, serving(folder / "data", "--registry", registry, folder=folder) as (address, _):
        patch.setenv("LOGFLUME_REGISTRY", f"http://{registry}")
        yield folder, address


@pytest.mark.slow
@pytest.mark.timeout(400)  # processes that a busy machine takes seconds to start
@pytest.mark.parametrize("page", [page for page in PAGES if any(sign in (DOCS / page).read_text() for sign in LIVE)])
def test_the_blocks_of_a_page_do_what_they_say(server: tuple[Path, str], page: str) -> None:
    folder, address = server
    registry = os.environ["LOGFLUME_REGISTRY"]
    reader = Reader(folder, {DEFAULT_ADDRESS: address, SECURED_PORT: str(free_port()), DEFAULT_REGISTRY: registry})
    try:
        reader.follow(blocks_of(DOCS / page))
    finally:
        reader.stop()


@pytest.mark.parametrize("page", [page for page in PAGES if not any(sign in (DOCS / page).read_text() for sign in LIVE)])
def test_the_blocks_of_a_page_that_needs_no_server(tmp_path: Path, page: str) -> None:
    Reader(tmp_path, {}).follow(blocks_of(DOCS / page))


@pytest.mark.parametrize(
    ("shown", "printed", "is_all"),
    [
        ("a\nb", "a\nb\n", True),
        ("a", "a b", False),
        ("a", "a\nb", False),
        ("b", "a\nb", False),
        ("a\n…\nz …", "a\nb\nc\nz 1", True),
        ("a\n…\nz", "a\nz", True),
        ("…\nb", "a\nc", False),
    ],
)
def test_a_page_says_where_it_leaves_something_out(shown: str, printed: str, is_all: bool) -> None:
    assert is_shown(shown, printed) is is_all


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=DOCS.parent, env=environment)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in tmp_path.glob("*.html")}
    assert {page.replace(".md", ".html") for page in PAGES} <= set(pages)
    assert "parquet-sink" in pages["connector-options.html"]
    assert "tumbling" in pages["api.html"]
    assert "queued.max.request.bytes" in pages["limits.html"]
    (style,) = tmp_path.glob("assets/extra.css")
    assert "pre-wrap" in style.read_text(), "a narrow screen shows long lines of code whole"
    for name, text in pages.items():
        assert "assets/extra.css" in text
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"|<link[^>]* href="(https?:[^"]+)"', text)
        assert loaded == [], name
