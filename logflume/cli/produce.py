"""`logflume produce`: lines of standard input or a file become records."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from logflume.cli.common import Bootstrap, Data, Json, make_app, open_log, print_done
from logflume.log import InvalidInput, LogflumeError, UnknownName

if TYPE_CHECKING:
    from logflume.log import Headers, Producer, RecordMetadata

    LineWriter = Callable[[bytes], tuple[bytes | None, Headers]]

app = make_app("")
MAX_LINE_BYTES = 1_048_576
FORMATS = ("avro", "protobuf", "json_sr")
IN_FLIGHT_MAX = 10_000
"""So many lines may be on their way, and so many at most are read behind one that is refused."""
_REFUSED_SHOWN = 10


class Lines:
    """Lines that were sent, in order: those on their way, and how those ended that are not any more."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sent: deque[tuple[int, Future[RecordMetadata]]] = deque()
        self.written, self.refused = 0, 0
        self.first_refused: list[tuple[int, BaseException]] = []

    def add(self, number: int, future: Future[RecordMetadata]) -> None:
        """Note a line that is sent, and what has become of those before it; waits for the oldest if too many are on their way."""
        self._sent.append((number, future))
        if len(self._sent) > IN_FLIGHT_MAX:
            self._sent[0][1].exception()
        self._settle()

    def wait(self) -> None:
        """Wait until it is known of each what has become of it."""
        with suppress(LogflumeError):  # each future says it too, of its own line
            self._producer.flush()
        for _, future in self._sent:
            future.exception()
        self._settle()

    def _settle(self) -> None:
        while self._sent and self._sent[0][1].done():
            number, future = self._sent.popleft()
            error = future.exception()
            if error is None:
                self.written += 1
                continue
            self.refused += 1
            if len(self.first_refused) < _REFUSED_SHOWN:
                self.first_refused.append((number, error))

    def tell(self, error: BaseException) -> None:
        """Add to an error which lines were refused; nothing if none was."""
        for number, cause in self.first_refused:
            error.add_note(f"line {number} was refused: {cause}")
        if self.refused > len(self.first_refused):
            error.add_note(f"{self.refused - len(self.first_refused):,} more were refused")


@app.command()
def produce(
    topic: str,
    file: Annotated[Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read this, not stdin.")] = None,
    key_separator: Annotated[str | None, typer.Option("--key-separator", "-K", help="Text between key and value.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Write to this partition only.")] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="avro|protobuf|json_sr", help="Lines are JSON; write them with a schema of the registry."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Register this schema for it; default: the newest of TOPIC-value."),
    ] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="The registry; default: $LOGFLUME_REGISTRY, else that of serve.")
    ] = None,
    ids_in_headers: Annotated[
        bool, typer.Option("--ids-in-headers", help="Write the schema's GUID into a header instead of its id before the value.")
    ] = False,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    data: Data = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Write one record per line; every record is on disk when the command ends.

    Once a line is refused no more are read. Lines are sent without a wait for each other, so that some behind it may be written:
    each that was refused is told, and how many are written of those that were read.

    Example: echo 'UA:{"delay": 12}' | logflume produce flights -K : --bootstrap 127.0.0.1:9092

    Example: echo '{"id": 7}' | logflume produce orders --format avro --schema order.avsc
    """
    separator = key_separator.encode() if key_separator else None
    with open_log(data, bootstrap) as log:
        log.admin().describe_topics([topic])
        write = line_writer(topic, format, schema, registry, ids_in_headers=ids_in_headers)
        producer = log.producer(compression=compression)
        lines = Lines(producer)
        number = 0
        source: IO[bytes] = file.open("rb") if file else sys.stdin.buffer
        with source:
            for number, line in enumerate(source, 1):
                try:
                    key, value = split_line(line.rstrip(b"\r\n"), separator)
                    payload, headers = write(value)
                except InvalidInput as error:
                    lines.wait()
                    told = InvalidInput(f"line {number}: {error}; lines before it that are written: {lines.written:,}")
                    lines.tell(told)
                    raise told from None
                lines.add(number, producer.send(topic, payload, key=key, partition=partition, headers=headers))
                if lines.refused:
                    break
        is_cut = lines.refused > 0
        lines.wait()
        producer.close()
        if lines.refused:
            first = lines.first_refused[0][1]
            lines.tell(first)
            behind = "; the lines behind were not read" if is_cut else ""
            first.add_note(f"written are {lines.written:,} of the {number:,} lines read{behind}")
            raise first
    print(f"wrote {number} record{'' if number == 1 else 's'} to {topic}", file=sys.stderr)
    if as_json:
        print_done("", as_json=True, topic=topic, records=number)


def line_writer(topic: str, format: str | None, schema: Path | None, registry: str | None, *, ids_in_headers: bool) -> LineWriter:
    """Return what makes a value and headers of a line: the line itself, or what a format and a schema make of its JSON."""
    if format is None:
        if schema is not None or registry is not None or ids_in_headers:
            raise InvalidInput("--schema, --registry and --ids-in-headers are for --format avro, protobuf or json_sr")
        return lambda line: (line, ())
    if format.lower() not in FORMATS:
        raise UnknownName("format", format, FORMATS)
    from logflume.log.schemas import FormatSpec, FrameSplitter, SchemaWriter, default_registry, of_topic

    spec = of_topic(FormatSpec(format.upper()), topic, "value", registry or default_registry())
    try:
        text = "" if schema is None else schema.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {schema}: {error}") from None
    writer, splitter = SchemaWriter(spec, text), FrameSplitter("value", spec.registry)

    def write(line: bytes) -> tuple[bytes | None, Headers]:
        payload = writer.write(line)
        if payload is None or not ids_in_headers:
            return payload, ()
        payload, header = splitter.split(payload)
        return payload, (header,)

    return write


def split_line(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Return (key, value) of a line; without a separator the key is null.

    >>> split_line(b"a:1", b":")
    (b'a', b'1')
    """
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInput(f"found {len(line)} bytes; a record holds at most {MAX_LINE_BYTES}")
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise InvalidInput(f"no key separator {separator.decode()!r}: {line[:60].decode(errors='replace')!r}")
    return key, value
