"""`logflume produce`: lines of standard input or a file become records."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done
from logflume.log import RecordMetadata

app = make_app("")
MAX_LINE_BYTES = 1_048_576


@app.command()
def produce(
    topic: str,
    file: Annotated[Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read this, not stdin.")] = None,
    key_separator: Annotated[str | None, typer.Option("--key-separator", "-K", help="Text between key and value.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Write to this partition only.")] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Write one record per line; every record is on disk when the command ends.

    Example: echo 'UA:{"delay": 12}' | logflume produce flights -K : --bootstrap 127.0.0.1:9092
    """
    separator = key_separator.encode() if key_separator else None
    with open_log(data, bootstrap) as log:
        log.admin().describe_topics([topic])
        producer = log.producer(compression=compression)
        sent: list[Future[RecordMetadata]] = []
        source: IO[bytes] = file.open("rb") if file else sys.stdin.buffer
        with source:
            for number, line in enumerate(source, 1):
                key, value = split_line(line.rstrip(b"\r\n"), separator, number)
                sent.append(producer.send(topic, value, key=key, partition=partition))
        producer.flush()
        for future in sent:
            future.result()
        producer.close()
    print(f"wrote {len(sent)} record{'' if len(sent) == 1 else 's'} to {topic}", file=sys.stderr)
    if as_json:
        print_done("", as_json=True, topic=topic, records=len(sent))


def split_line(line: bytes, separator: bytes | None, number: int) -> tuple[bytes | None, bytes]:
    """Return (key, value) of a line; without a separator the key is null.

    >>> split_line(b"a:1", b":", 1)
    (b'a', b'1')
    """
    from logflume.log import InvalidInput

    if len(line) > MAX_LINE_BYTES:
        raise InvalidInput(f"line {number} has {len(line)} bytes; a record holds at most {MAX_LINE_BYTES}")
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise InvalidInput(f"line {number} has no key separator {separator.decode()!r}: {line[:60].decode(errors='replace')!r}")
    return key, value
