"""What the guide is given when it is built (a hook of MkDocs): reference pages from the code, pictures of its topologies.

`make docs` builds the guide; mkdocs.yml names this file. A page made here has no source in docs/: it can't differ from the code.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files
from sbom import packages

from logflume.connect import connector_names, connector_spec, find_connector

EXAMPLES = ("sessions", "fraud", "sensors", "search_table", "features")
PROMISES = ("What you can rely on", "Honest limits")
PICTURE = re.compile(r"\(pictures/(\w+)\.([\w-]+)\.svg\)")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
TAG = re.compile(r"(`[^`]*`)|<")


class Doctests(griffe.Extension):
    """Shows the examples of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(r"\n```python\n\g<0>\n```\n", obj.docstring.value)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures that are made here."""
    root = Path(config.config_file_path).parent
    made = {
        "connector-options.md": "\n".join(connector_lines()),
        "licences.md": "\n".join(licence_lines()),
        "limits.md": promises((root / "README.md").read_text()) + broker_limits((root / "ARCHITECTURE.md").read_text()),
        "examples.md": "\n".join(example_lines(root / "examples")),
        **pictures(root / "examples"),
        **page_pictures(root / "docs"),
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def connector_lines() -> Iterator[str]:
    """Yield the page of all connectors, each with its options."""
    yield "# Connectors\n"
    yield "Made from the specs that check a connector's file; `logflume connect describe NAME` prints the same.\n"
    for name in connector_names():
        yield f"## {name}\n"
        yield f"A {find_connector(name).kind}. {plain(find_connector(name).doc)}\n"
        yield plain(connector_spec(name).to_markdown())


def licence_lines() -> Iterator[str]:
    """Yield the page of packages that come with logflume."""
    yield "# Licences\n"
    yield "logflume itself: Apache-2.0. What `pip install 'logflume[all]'` brings (`make sbom` writes it as CycloneDX):\n"
    yield "| package | version | licence |\n|---|---|---|"
    yield from (f"| {each.name} | {each.version} | {plain(each.licence)} |" for each in packages())


def promises(readme: str) -> str:
    """Return the page of guarantees and limits, which README tells; its links to other files of the sources are plain words."""
    sections = [f"## {title}\n{readme.partition(f'## {title}')[2].partition('## ')[0]}" for title in PROMISES]
    return "# Guarantees and limits\n\n" + LINK.sub(r"\1", "\n".join(sections))


def broker_limits(architecture: str) -> str:
    """Return the part of the limits that the broker keeps, each with its setting and what happens at it."""
    title = "Limits of the broker"
    return f"\n## {title}\n{architecture.partition(f'### {title}')[2].partition('### ')[0]}"


def example_lines(folder: Path) -> Iterator[str]:
    """Yield the page of examples, each with its picture and its program."""
    yield "# Examples\n"
    yield "Programs to copy, from `examples/` of the sources; `tests/end_to_end/test_examples.py` has data and results of each.\n"
    yield "The commands below each load its data and run it, from the sources' folder. The topics have names that pages of this"
    yield "guide use too: give them a log of their own (`logflume serve --data examples-data`).\n"
    for name in EXAMPLES:
        _, told, program = (folder / f"{name}.py").read_text().split('"""', 2)
        title, _, rest = told.partition(": ")
        sentence = rest.partition("\n")[0]
        commands = "\n".join(line for line in rest.splitlines() if line.startswith("logflume "))
        yield f"## {title}\n\n{sentence[0].upper()}{sentence[1:]}\n\n![Its topology](pictures/{name}.svg)\n"
        yield f"```python\n{program.strip()}\n```\n```bash\n{commands}\n```\n"


def pictures(folder: Path) -> dict[str, str]:
    """Return the pictures of the examples' topologies, by path."""
    return {
        f"pictures/{name}.svg": runpy.run_path(str(folder / f"{name}.py"))["app"].topology().describe().svg() for name in EXAMPLES
    }


def page_pictures(folder: Path) -> dict[str, str]:
    """Return the pictures of applications that pages define, `pictures/PAGE.APPLICATION.svg`, for the pages that show some."""
    made: dict[str, str] = {}
    for page in sorted(folder.glob("*.md")):
        text = page.read_text()
        wanted = {name for _, name in PICTURE.findall(text)}
        scope: dict[str, Any] = {"__name__": page.stem}
        for block in PYTHON.findall(text) if wanted else ():
            with contextlib.redirect_stdout(io.StringIO()):
                exec(block, scope)
            app = scope.get("app")
            if app is not None and app.name in wanted:
                made[f"pictures/{page.stem}.{app.name}.svg"] = app.topology().describe().svg()
    return made


def plain(text: str) -> str:
    """Return text of which nothing is taken for HTML."""
    return TAG.sub(lambda found: found[1] or "&lt;", text)
