"""Schema registries as serdes see them: schemas by id, the latest of a subject, and registration.

A registry is named by its location, so that a format is data and travels in plans: `http(s)://host:port` is any registry with
Confluent's REST interface, `mock://scope` one in the memory of this process, for tests. Schemas never change once they have an
id, so what was fetched is kept (the last 10,000), and of several callers that want the same one a single request is made.

A registry that does not answer is a `RegistryUnavailable`: the caller can try again, and nothing may be dropped because of it.
A schema that does not exist is a `SchemaNotFound`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

from logflume.log.errors import DecodeError, InvalidInput, LogflumeError

_KEPT_SCHEMAS = 10_000
_TIMEOUT_S = 10.0
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


DEFAULT_REGISTRY = "http://127.0.0.1:8081"
"""Where the registry of `logflume serve` listens unless told otherwise."""


def default_registry() -> str:
    """Return where schemas are where nobody said: $LOGFLUME_REGISTRY, else `DEFAULT_REGISTRY`."""
    return os.environ.get("LOGFLUME_REGISTRY") or DEFAULT_REGISTRY


class RegistryUnavailable(LogflumeError):
    """A schema registry could not be reached or failed; the same call may succeed later."""

    code = "SCHEMA_REGISTRY_UNAVAILABLE"
    is_retriable = True


class RegistryRefused(InvalidInput):
    """A schema registry refused a request, for example an incompatible schema; the message is the registry's."""

    code = "SCHEMA_REGISTRY_REFUSED"


class SchemaNotFound(DecodeError):
    """A schema id or subject that the registry does not know."""

    code = "SCHEMA_NOT_FOUND"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one refers to by `name`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id. `kind` is AVRO, JSON or PROTOBUF; `texts` holds what it refers to, by name, deepest first;
    `guid`, the id that is the same in all registries, is empty where a registry has none."""

    id: int
    kind: str
    text: str
    texts: tuple[tuple[str, str], ...] = ()
    guid: str = ""


class SchemaRegistry(Protocol):
    """What a serde asks of a registry. Thread-safe."""

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return a schema. Raises SchemaNotFound, RegistryUnavailable."""
        ...

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return a schema by the id that is the same in all registries. Raises SchemaNotFound, RegistryUnavailable."""
        ...

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest schema of a subject. Raises SchemaNotFound, RegistryUnavailable."""
        ...

    def versions(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions, in order. Raises SchemaNotFound, RegistryUnavailable."""
        ...

    def version(self, subject: str, number: int) -> RegisteredSchema:
        """Return a version of a subject. Raises SchemaNotFound, RegistryUnavailable."""
        ...

    def register(
        self, subject: str, kind: str, text: str, *, references: Sequence[Reference] = (), normalizes: bool = False
    ) -> int:
        """Return the id of a schema under a subject, registering it if needed; `normalizes`: in the registry's normal form.

        Raises:
            RegistryRefused, RegistryUnavailable.
        """
        ...

    def id_of(self, subject: str, kind: str, text: str, *, normalizes: bool = False) -> int:
        """Return the id of a schema that a subject has. Raises SchemaNotFound, RegistryUnavailable."""
        ...


def registry_at(location: str) -> SchemaRegistry:
    """Return the registry at a location (`host:port` is `http://host:port`); the same object for the same location.

    Raises:
        InvalidInput: no location, or none that this understands.
    """
    if location and "://" not in location:
        location = f"http://{location}"
    scheme = urlsplit(location).scheme
    if scheme == "mock":
        return _MOCKS.open(location)
    if scheme in ("http", "https"):
        return _http_registry(location.rstrip("/"))
    if not location:
        raise InvalidInput("this format needs a schema registry; say where it is, for example http://127.0.0.1:8081")
    raise InvalidInput(f"a schema registry is at http://..., https://... or mock://..., found {location!r}")


class MemoryRegistry:
    """A registry in memory, without compatibility checks or a normal form. It has a location of its own as long as it lives."""

    def __init__(self, location: str = "") -> None:
        self.location = location or _MOCKS.place(self)
        self._lock = threading.Lock()
        self._schemas: dict[int, RegisteredSchema] = {}
        self._subjects: dict[str, list[int]] = {}

    def by_id(self, schema_id: int) -> RegisteredSchema:
        with self._lock:
            found = self._schemas.get(schema_id)
        if found is None:
            raise SchemaNotFound(f"Schema {schema_id} not found")
        return found

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return a schema; here the GUID is the id, as a UUID."""
        return self.by_id(uuid.UUID(guid).int)

    def latest(self, subject: str) -> RegisteredSchema:
        with self._lock:
            ids = self._subjects.get(subject)
            if not ids:
                raise SchemaNotFound(f"Subject '{subject}' not found.")
            return self._schemas[ids[-1]]

    def versions(self, subject: str) -> list[int]:
        with self._lock:
            count = len(self._subjects.get(subject, ()))
        if not count:
            raise SchemaNotFound(f"Subject '{subject}' not found.")
        return list(range(1, count + 1))

    def version(self, subject: str, number: int) -> RegisteredSchema:
        with self._lock:
            ids = self._subjects.get(subject, ())
            if not 0 < number <= len(ids):
                raise SchemaNotFound(f"Subject '{subject}' has no version {number}.")
            return self._schemas[ids[number - 1]]

    def register(
        self, subject: str, kind: str, text: str, *, references: Sequence[Reference] = (), normalizes: bool = False
    ) -> int:
        texts: dict[str, str] = {}
        for each in references:
            try:
                found = self.version(each.subject, each.version)
            except SchemaNotFound as error:
                raise RegistryRefused(f"{error} It cannot be referred to.") from None
            texts |= {**dict(found.texts), each.name: found.text}
        return self.put(subject, RegisteredSchema(0, kind, text, tuple(texts.items())))

    def id_of(self, subject: str, kind: str, text: str, *, normalizes: bool = False) -> int:
        with self._lock:
            ids = self._subjects.get(subject, ())
            found = [each for each in ids if (self._schemas[each].kind, self._schemas[each].text) == (kind, text)]
        if not found:
            raise SchemaNotFound(f"Subject '{subject}' has no such schema.")
        return found[-1]

    def put(self, subject: str, schema: RegisteredSchema) -> int:
        """Take in a schema under its own id; with 0, under that of the same schema or the next one. Return the id."""
        with self._lock:
            content = (schema.kind, schema.text, schema.texts)
            same = (each.id for each in self._schemas.values() if (each.kind, each.text, each.texts) == content)
            found = schema.id or next(same, None) or max(self._schemas, default=0) + 1
            self._schemas.setdefault(found, replace(schema, id=found, guid=str(uuid.UUID(int=found))))
            ids = self._subjects.setdefault(subject, [])
            if found not in ids:
                ids.append(found)
            return found


class _Mocks:
    """The mock registries of this process; one lives as long as somebody holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._open: WeakValueDictionary[str, MemoryRegistry] = WeakValueDictionary()

    def open(self, location: str) -> MemoryRegistry:
        with self._lock:
            found = self._open.get(location)
            if found is None:
                found = self._open[location] = MemoryRegistry(location)
            return found

    def place(self, registry: MemoryRegistry) -> str:
        """Give a registry a location that no other has."""
        with self._lock:
            self._count += 1
            location = f"mock://unnamed-{self._count}"
            self._open[location] = registry
            return location


_MOCKS = _Mocks()


class HttpRegistry:
    """A registry behind Confluent's REST interface."""

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        import httpx

        from logflume.log.registry.credentials import auth_headers

        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        self._shown = f"{parts.scheme}://{netloc}"
        self._client = httpx.Client(
            base_url=f"{self._shown}{parts.path}", timeout=timeout_s, headers={"Accept": _MEDIA_TYPE, **auth_headers(url)}
        )
        self._flights = _SingleFlight()

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return self._flights.get(schema_id, lambda: self._schema(self._get(f"/schemas/ids/{schema_id}"), schema_id))

    def by_guid(self, guid: str) -> RegisteredSchema:
        return self._flights.get(guid, lambda: self._by_guid(guid))

    def _by_guid(self, guid: str) -> RegisteredSchema:
        found = self._get(f"/schemas/guids/{quote(guid, safe='')}/ids")
        ids = {each.get("context") or ".": int(each["id"]) for each in found}
        if not ids:
            raise SchemaNotFound(f"schema registry {self._shown}: no schema has the GUID {guid}")
        return self.by_id(ids.get(".") or next(iter(ids.values())))

    def subjects_of(self, schema_id: int) -> frozenset[str]:
        """Return the subjects that have a schema now. Raises SchemaNotFound, RegistryUnavailable."""
        return frozenset(str(each) for each in self._get(f"/schemas/ids/{schema_id}/subjects"))

    def latest(self, subject: str) -> RegisteredSchema:
        return self._version(subject, "latest")

    def versions(self, subject: str) -> list[int]:
        return sorted(int(each) for each in self._get(f"/subjects/{quote(subject, safe='')}/versions"))

    def version(self, subject: str, number: int) -> RegisteredSchema:
        return self._version(subject, str(number))

    def _version(self, subject: str, version: str) -> RegisteredSchema:
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return self._schema(answer, int(answer["id"]))

    def register(
        self, subject: str, kind: str, text: str, *, references: Sequence[Reference] = (), normalizes: bool = False
    ) -> int:
        body = {"schema": text, "schemaType": kind, "references": [_reference_body(each) for each in references]}
        return self._id_of(f"/subjects/{quote(subject, safe='')}/versions", body, normalizes=normalizes)

    def id_of(self, subject: str, kind: str, text: str, *, normalizes: bool = False) -> int:
        body = {"schema": text, "schemaType": kind}
        return self._id_of(f"/subjects/{quote(subject, safe='')}", body, normalizes=normalizes)

    def _id_of(self, path: str, body: dict[str, Any], *, normalizes: bool) -> int:
        return int(self._request("POST", f"{path}?normalize=true" if normalizes else path, json=body)["id"])

    def _schema(self, answer: Any, schema_id: int) -> RegisteredSchema:
        texts: dict[str, str] = {}
        self._collect(answer.get("references") or (), texts)
        kind, guid = answer.get("schemaType") or "AVRO", answer.get("guid") or ""
        return RegisteredSchema(schema_id, kind, answer["schema"], tuple(texts.items()), guid)

    def _collect(self, references: Sequence[Any], texts: dict[str, str], *, depth: int = 0) -> None:
        """Add what schemas refer to, deepest first."""
        if depth > 32:
            raise SchemaNotFound("references between schemas go deeper than 32 levels")
        for each in references:
            name = each["name"]
            if name in texts:
                continue
            path = f"/subjects/{quote(each['subject'], safe='')}/versions/{int(each['version'])}"
            answer = self._get(path)
            self._collect(answer.get("references") or (), texts, depth=depth + 1)
            texts[name] = answer["schema"]

    def _get(self, path: str) -> Any:
        return self._request("GET", path)

    def _request(self, method: str, path: str, *, json: Any = None) -> Any:
        import httpx

        try:
            response = self._client.request(method, path, json=json)
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RegistryUnavailable(f"the schema registry {self._shown} does not answer: {error}") from None
        if response.status_code < 300:
            return answer
        message = answer.get("message") if isinstance(answer, dict) else None
        shown = f"schema registry {self._shown}: {message or response.text[:200]} (HTTP {response.status_code}, {path})"
        if response.status_code == 404:
            raise SchemaNotFound(shown)
        if response.status_code >= 500 or response.status_code == 429:
            raise RegistryUnavailable(shown)
        raise RegistryRefused(shown)


def _reference_body(reference: Reference) -> dict[str, Any]:
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


class _SingleFlight:
    """A bounded cache in which several callers that miss the same entry wait for one fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[int | str, RegisteredSchema] = OrderedDict()
        self._under_way: dict[int | str, threading.Lock] = {}

    def get(self, schema_id: int | str, fetch: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        with self._lock:
            found = self._found.get(schema_id)
            if found is not None:
                self._found.move_to_end(schema_id)
                return found
            turn = self._under_way.setdefault(schema_id, threading.Lock())
        with turn:
            with self._lock:
                found = self._found.get(schema_id)
            if found is not None:
                return found
            try:
                fetched = fetch()
            finally:
                with self._lock:
                    self._under_way.pop(schema_id, None)
            with self._lock:
                self._found[schema_id] = fetched
                while len(self._found) > _KEPT_SCHEMAS:
                    self._found.popitem(last=False)
            return fetched


@lru_cache(maxsize=64)
def _http_registry(url: str) -> HttpRegistry:
    return HttpRegistry(url)
