"""`logflume log`: files of a log in human form, and whether they are good; also Apache Kafka's. Reads only."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Json, make_app, print_rows

if TYPE_CHECKING:
    from logflume.log.inspect import Entry

app = make_app(
    "Look into the files of a log: of logflume or of Apache Kafka.\n\n"
    "Example: logflume log dump ./data/flights-0/00000000000000000000.log --records --limit 10"
)
SHOWN_CHARACTERS = 200


@app.command()
def dump(
    path: Annotated[Path, typer.Argument(help="A .log, .index, .timeindex, .txnindex, .snapshot or checkpoint file.")],
    records: Annotated[bool, typer.Option("--records", help="Of a .log file the records too.")] = False,
    decode: Annotated[
        str, typer.Option(help="How records are shown: text, offsets, transactions, share, or auto (by the topic).")
    ] = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many entries.")] = None,
    as_json: Json = False,
) -> None:
    """Print a file entry by entry; memory stays bounded. Exit code 1 when bytes are damaged.

    Example: logflume log dump ./data/__consumer_offsets-3/00000000000000000000.log --records
    """
    from logflume.log.inspect import dump_file

    is_damaged = False
    for entry in itertools.islice(dump_file(path, has_records=records, decode=decode), limit):
        is_damaged = is_damaged or entry["kind"] == "damage"
        print(json.dumps(entry, default=str) if as_json else line_of(entry))
    if is_damaged:
        raise typer.Exit(1)


@app.command()
def verify(
    paths: Annotated[list[Path], typer.Argument(help="Data directories, directories of partitions, or files.")],
    all_: Annotated[bool, typer.Option("--all", help="Files without damage too.")] = False,
    as_json: Json = False,
) -> None:
    """Read every byte: checksums, order of offsets, indexes, snapshots. The log may be in use.

    Exit code 1 when something is damaged.

    Example: logflume log verify ./data
    """
    from logflume.log.inspect import verify_path

    files = damaged = 0
    size_bytes = 0
    rows = []
    for path in paths:
        for finding in verify_path(path):
            files += 1
            size_bytes += finding.size_bytes
            damaged += finding.problem is not None
            if all_ or finding.problem:
                rows.append((finding.path, finding.size_bytes, finding.entries, finding.problem or "ok"))
    if rows:
        print_rows(("file", "bytes", "entries", "found"), rows, as_json=as_json)
    if not as_json:
        print(f"{files} files of {size_bytes} bytes: {damaged or 'none'} damaged")
    if damaged:
        raise typer.Exit(1)


def line_of(entry: Entry) -> str:
    """Return an entry as one line: `kind name=value ...`, long values cut."""
    parts = [f"{name}={_shown(value)}" for name, value in entry.items() if name != "kind"]
    return " ".join([f"{entry['kind']:<7}", *parts])


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"
    return (
        json.dumps(text, ensure_ascii=False) if isinstance(value, str) and (not text or any(c.isspace() for c in text)) else text
    )
