"""`logflume schema`: the schemas of a registry, ours or any with Confluent's interface."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logflume.cli.common import Json, make_app, print_done, print_object, print_rows
from logflume.log import InvalidInput, UnknownName

if TYPE_CHECKING:
    from logflume.log.registry.client import RegistryClient

TYPES = ("AVRO", "JSON", "PROTOBUF")
_SUFFIXES = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
app = make_app(
    "Register, list, show, check, compare and delete schemas of a registry.\n\n"
    "The registry: --registry URL, else $LOGFLUME_REGISTRY, else http://127.0.0.1:8081 (where `logflume serve` has one).\n\n"
    "Example: logflume schema register orders-value order.avsc"
)
Registry = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help="The registry; default: $LOGFLUME_REGISTRY, else that of serve."),
]
Type = Annotated[str | None, typer.Option("--type", help="avro, json or protobuf; default: by the file's suffix, else avro.")]
References = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="NAME=SUBJECT:VERSION", help="A schema that this one uses; may be repeated."),
]
Permanent = Annotated[bool, typer.Option("--permanent", help="Delete for good what was deleted before.")]


@contextmanager
def registry_at(address: str | None) -> Iterator[RegistryClient]:
    """Give a client of the registry that the option or the environment names."""
    from logflume.log.registry.client import RegistryClient
    from logflume.log.schemas import default_registry

    with RegistryClient(address or default_registry()) as client:
        yield client


def schema_body(file: str, type_: str | None, references: list[str] | None) -> dict[str, Any]:
    """Return the body that registers the schema of a file (`-`: standard input)."""
    if file == "-":
        text = sys.stdin.read()
    else:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"cannot read {file}: {error}") from error
    kind = (type_ or _SUFFIXES.get(Path(file).suffix.lower(), "AVRO")).upper()
    if kind not in TYPES:
        raise UnknownName("schema type", kind, TYPES)
    body: dict[str, Any] = {"schema": text, "schemaType": kind}
    if references:
        body["references"] = [parse_reference(each) for each in references]
    return body


def parse_reference(text: str) -> dict[str, Any]:
    """Return NAME=SUBJECT:VERSION as the interface has it.

    >>> parse_reference("money.proto=money-value:2")
    {'name': 'money.proto', 'subject': 'money-value', 'version': 2}
    """
    name, equals, place = text.partition("=")
    subject, colon, version = place.rpartition(":")
    if not (equals and name and colon and subject) or not (version.isdecimal() or version == "latest"):
        raise InvalidInput(f"--reference expects NAME=SUBJECT:VERSION, found {text!r}; for example money.proto=money-value:2")
    return {"name": name, "subject": subject, "version": -1 if version == "latest" else int(version)}


@app.command()
def register(
    subject: str,
    file: Annotated[str, typer.Argument(help="The schema's file; -: standard input.")],
    type_: Type = None,
    reference: References = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Treat schemas that mean the same as the same.")] = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Register a schema as the next version of a subject; what is registered already stays as it is.

    Example: logflume schema register orders-value order.avsc
    """
    body = schema_body(file, type_, reference)
    with registry_at(registry) as client:
        made = client.call("POST", "subjects", subject, "versions", body=body, query={"normalize": str(normalize).lower()})
        found = client.call("POST", "subjects", subject, body=body, query={"normalize": str(normalize).lower()})
    fields = {"subject": found["subject"], "version": found["version"], "id": made["id"], "guid": found.get("guid")}
    print_object(fields, as_json=as_json)


@app.command("list")
def list_subjects(
    subject: Annotated[str | None, typer.Argument(help="Show the history of this subject instead.")] = None,
    prefix: Annotated[str, typer.Option(help="Only subjects that start so; `:.eu:` is the context eu, `:*:` all.")] = ":*:",
    deleted: Annotated[bool, typer.Option("--deleted", help="Soft-deleted ones too.")] = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """List subjects with their latest versions, or the history of one: what each version changed.

    Example: logflume schema list orders-value
    """
    with registry_at(registry) as client:
        if subject is not None:
            _print_history(_versions(client, subject, deleted=deleted), as_json=as_json)
            return
        flags = {"subjectPrefix": prefix, "deleted": str(deleted).lower()}
        rows = []
        for name in client.call("GET", "subjects", query=flags):
            numbers = client.call("GET", "subjects", name, "versions", query={"deleted": str(deleted).lower()})
            last = client.call("GET", "subjects", name, "versions", str(numbers[-1]), query={"deleted": "true"})
            rows.append((name, len(numbers), last["version"], last["id"], last.get("schemaType", "AVRO")))
    print_rows(("subject", "versions", "latest", "id", "type"), rows, as_json=as_json)


@app.command()
def show(
    subject: Annotated[str, typer.Argument(help="A subject, or with --id an id.")],
    version: Annotated[str, typer.Option(help="A version's number, or latest.")] = "latest",
    is_id: Annotated[bool, typer.Option("--id", help="SUBJECT is the id of a schema.")] = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Show a schema: what it is registered as, and its text.

    Example: logflume schema show orders-value --version 2
    """
    with registry_at(registry) as client:
        path = ("schemas", "ids", subject) if is_id else ("subjects", subject, "versions", version)
        found = client.call("GET", *path)
    text = found.pop("schema")
    if as_json:
        print_object({**found, "schema": text}, as_json=True)
        return
    print_object(found, as_json=False)
    print()
    print(pretty(text))


@app.command()
def classes(
    subject: str,
    version: Annotated[str, typer.Option(help="A version's number, or latest.")] = "latest",
    message: Annotated[str, typer.Option(help="Protobuf: this message, not the first one.")] = "",
    registry: Registry = None,
) -> None:
    """Print the Python classes of a schema, for `app.stream("orders", Order, format="AVRO")`.

    Example: logflume schema classes orders-value > orders.py
    """
    from logflume.log.schemas import FormatSpec, class_source, format_of_kind, schema_type

    with registry_at(registry) as client:
        found = client.call("GET", "subjects", subject, "versions", version)
        kind = found.get("schemaType", "AVRO")
        spec = FormatSpec(
            format_of_kind(kind), registry=client.address, subject=subject, schema_id=found["id"], full_name=message
        )
        type = schema_type(spec)
    name = message or record_name(kind, found["schema"]) or subject.removesuffix("-value").removesuffix("-key")
    about = f"Records of {subject} version {found['version']}: logflume schema classes."
    print(class_source(name.rpartition(".")[2], type, about=about), end="")


def record_name(kind: str, text: str) -> str:
    """Return the name of the outermost record; nothing where there is none.

    >>> record_name("PROTOBUF", "package shop; message Order { int64 id = 1; }")
    'Order'
    """
    if kind == "PROTOBUF":
        found = re.search(r"\bmessage\s+(\w+)\s*\{", text)
        return found[1] if found else ""
    schema = json.loads(text)
    name = schema.get("name" if kind == "AVRO" else "title") if isinstance(schema, dict) else None
    return name if isinstance(name, str) else ""


@app.command()
def check(
    subject: str,
    file: Annotated[str, typer.Argument(help="The schema's file; -: standard input.")],
    type_: Type = None,
    reference: References = None,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Say whether a schema may be the next version of a subject; if not, why, and exit with 1. Registers nothing.

    Example: logflume schema check orders-value order.avsc
    """
    body = schema_body(file, type_, reference)
    with registry_at(registry) as client:
        found = client.call("POST", "compatibility", "subjects", subject, "versions", body=body, query={"verbose": "true"})
    if as_json:
        print_object(found, as_json=True)
    elif found["is_compatible"]:
        print(f"compatible with {subject}")
    else:
        print(f"not compatible with {subject}:", *found.get("messages", []), sep="\n  ")
    if not found["is_compatible"]:
        raise typer.Exit(1)


@app.command()
def diff(
    subject: str,
    first: Annotated[str, typer.Argument(help="A version.")],
    second: Annotated[str, typer.Argument(help="A version, or latest.")] = "latest",
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Compare two versions of a subject: the lines that differ, and whether each reads the other's data.

    Example: logflume schema diff orders-value 1 latest
    """
    with registry_at(registry) as client:
        old, new = (client.call("GET", "subjects", subject, "versions", each) for each in (first, second))
        verdicts = {"backward": _reads(client, old, new), "forward": _reads(client, new, old)}
    lines = _changed_lines(old, new)
    if as_json:
        print_object({"from": old["version"], "to": new["version"], **verdicts, "lines": lines}, as_json=True)
        return
    print("\n".join(lines) if lines else "no difference")
    for name, messages in verdicts.items():
        reader, writer = (new, old) if name == "backward" else (old, new)
        verdict = "cannot be read" if messages else "can be read"
        print(f"{name}: data of version {writer['version']} {verdict} with version {reader['version']}", *messages, sep="\n  ")


@app.command()
def delete(
    subject: str,
    version: Annotated[str | None, typer.Option(help="Only this version.")] = None,
    permanent: Permanent = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Delete a subject or a version: softly first, then, with --permanent, for good. Ids stay readable until then.

    Example: logflume schema delete orders-value --version 1
    """
    path = ("subjects", subject) if version is None else ("subjects", subject, "versions", version)
    with registry_at(registry) as client:
        gone = client.call("DELETE", *path, query={"permanent": str(permanent).lower()})
    numbers = gone if isinstance(gone, list) else [gone]
    how = "deleted for good" if permanent else "deleted"
    text = f"{how}: {subject} version{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"
    print_done(text, as_json=as_json, subject=subject, deleted=numbers, is_permanent=permanent)


@app.command()
def mode(
    wanted: Annotated[
        str | None, typer.Argument(metavar="MODE", help="READWRITE, READONLY, IMPORT, ...; default: show it.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Of this subject or context; default: of all.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Back to what lies behind.")] = False,
    force: Annotated[bool, typer.Option("--force", help="IMPORT also where schemas are.")] = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Show or set who may write.

    Example: logflume schema mode READONLY --subject orders-value
    """
    query = {"force": str(force).lower()}
    _setting("mode", subject, None if wanted is None else {"mode": wanted}, query, registry, unset=unset, as_json=as_json)


@app.command()
def compat(
    level: Annotated[
        str | None,
        typer.Argument(metavar="LEVEL", help="NONE, BACKWARD, FORWARD, FULL, each with _TRANSITIVE; default: show it."),
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Of this subject or context; default: of all.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Back to what lies behind.")] = False,
    registry: Registry = None,
    as_json: Json = False,
) -> None:
    """Show or set what a new version must be able to read.

    Example: logflume schema compat FULL --subject orders-value
    """
    body = None if level is None else {"compatibility": level}
    _setting("config", subject, body, {}, registry, unset=unset, as_json=as_json)


def _setting(
    kind: str,
    subject: str | None,
    body: dict[str, Any] | None,
    query: Mapping[str, str | int],
    registry: str | None,
    *,
    unset: bool,
    as_json: bool,
) -> None:
    if unset and body is not None:
        raise InvalidInput("give either a value or --unset, not both")
    path = (kind, subject) if subject else (kind,)
    with registry_at(registry) as client:
        if unset:
            client.call("DELETE", *path)
        elif body is not None:
            client.call("PUT", *path, body=body, query=query)
        found = client.call("GET", *path, query={"defaultToGlobal": "true"})
    print_object({"subject": subject or "(all)", **found}, as_json=as_json)


def pretty(text: str) -> str:
    """Return a schema's text for people: JSON over several lines, all else as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text.rstrip()


def _versions(client: RegistryClient, subject: str, *, deleted: bool) -> list[dict[str, Any]]:
    flags: dict[str, str | int] = {"deleted": str(deleted).lower()}
    numbers = client.call("GET", "subjects", subject, "versions", query=flags)
    return [client.call("GET", "subjects", subject, "versions", str(n), query=flags) for n in numbers]


def _print_history(versions: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print versions from the oldest, each with how many lines it added and removed."""
    rows: list[tuple[Any, ...]] = []
    before: dict[str, Any] | None = None
    for each in versions:
        lines: list[str] = [] if before is None else _changed_lines(before, each)
        added, removed = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
        picture = "first" if before is None else f"{'+' * min(added, 20)}{'-' * min(removed, 20)} +{added} -{removed}"
        state = "deleted" if each.get("deleted") else ""
        rows.append((each["version"], each["id"], each.get("schemaType", "AVRO"), picture, state))
        before = each
    print_rows(("version", "id", "type", "changed lines", "state"), rows, as_json=as_json)


def _changed_lines(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = (f"{each['subject']} version {each['version']}" for each in (old, new))
    was, is_ = pretty(old["schema"]).splitlines(), pretty(new["schema"]).splitlines()
    return list(unified_diff(was, is_, before, after, lineterm="", n=2))


def _reads(client: RegistryClient, writer: dict[str, Any], reader: dict[str, Any]) -> list[str]:
    """Return why data of one version cannot be read with another, by the rules on this side; [] when it can."""
    from logflume.log.registry import compatibility, schemas

    if writer.get("schemaType", "AVRO") != reader.get("schemaType", "AVRO"):
        return ["the versions are of different types"]
    parsed = [
        schemas.parse(each.get("schemaType", "AVRO"), each["schema"], resolved=_resolved(client, each))
        for each in (reader, writer)
    ]
    found = compatibility.differences(*parsed)
    return [each.told(f"version {reader['version']}", f"version {writer['version']}") for each in found]


def _resolved(client: RegistryClient, found: dict[str, Any]) -> list[Any]:
    """Return what a schema refers to, each before what uses it."""
    from logflume.log.registry.schemas import Resolved

    made: dict[str, Any] = {}
    for each in found.get("references", []):
        its = client.call("GET", "subjects", each["subject"], "versions", str(each["version"]), query={"deleted": "true"})
        made.update({inner.name: inner for inner in _resolved(client, its)})
        made[each["name"]] = Resolved(each["name"], its["schema"])
    return list(made.values())
