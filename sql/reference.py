"""The reference page of the functions, written from what the library says of itself."""

from __future__ import annotations

from logflume.streams.functions import Library, Scalar

from .functions import example_text

_KINDS = {
    "scalar": "Functions of one row",
    "aggregate": "Aggregates (GROUP BY)",
    "table": "Table functions (several rows of one)",
}


def functions_page(library: Library) -> str:
    """Return the page, in Markdown."""
    parts = [
        "# SQL: functions",
        "",
        "Written by `logflume sql functions`; every example runs as a test. `DESCRIBE FUNCTION name` shows one.",
        "",
    ]
    for kind, title in _KINDS.items():
        names = sorted(name for name in library.names() if library.kind_of(name) == kind)
        parts += [f"## {title}", "", *(line for name in names for line in _entry(library, name)), ""]
    return "\n".join(parts).rstrip() + "\n"


def _entry(library: Library, name: str) -> list[str]:
    found = library.find(name)
    assert found is not None
    forms = " · ".join(f"`{name}{each.signature}`" for each in found.overloads)
    example = example_text(found) if isinstance(found, Scalar) else ""
    return [
        f"- **{name}**: {found.doc}  ",
        f"  {forms}" + ("  " if example else ""),
        *([f"  e.g. `{example}`"] if example else []),
    ]
