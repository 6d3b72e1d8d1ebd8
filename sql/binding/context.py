"""What planning depends on beside the statement: catalog, functions, session properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from logflume.sql.catalog import Catalog
from logflume.sql.properties import CACHE_NAMES
from logflume.streams.functions import Library, builtin_library
from logflume.streams.graph import Emit

DEFAULT_KEY_FORMAT = "ksql.persistence.default.format.key"
DEFAULT_VALUE_FORMAT = "ksql.persistence.default.format.value"
WRAP_SINGLE_VALUES = "ksql.persistence.wrap.single.values"
REGISTRY_URL = "ksql.schema.registry.url"
THROW_ON_INVALID_TIME = "ksql.timestamp.throw.on.invalid"
OUTPUT_PREFIX = "ksql.output.topic.name.prefix"


@dataclass(frozen=True, slots=True)
class Context:
    """See the module.

    Attributes:
        properties: settings of the session (SET), by name as the user wrote it.
        fixed_now_ms: what "now" is; None for the clock.
        partitions: topic -> number of partitions, for checking joins; topics not in it are not checked.
        rows_max, on_read: of the session: how many rows are wanted, who is told how many of how many records are read.
    """

    catalog: Catalog
    functions: Library = field(default_factory=builtin_library)
    properties: Mapping[str, str] = field(default_factory=dict)
    fixed_now_ms: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    rows_max: int | None = None
    on_read: Callable[[int, int], object] | None = None

    @property
    def emit(self) -> Emit:
        """When aggregates put out their results unless the query says FINAL: without a cache, each change."""
        return Emit.UPDATE if any(self.property(name, "") == "0" for name in CACHE_NAMES) else Emit.COMMIT

    def property(self, name: str, default: str) -> str:
        """Return a session property, with or without the `ksql.` prefix."""
        short = name.removeprefix("ksql.")
        return self.properties.get(name, self.properties.get(short, default))
