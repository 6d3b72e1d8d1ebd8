"""A connector's typed configuration, and the reader of config files (TOML or JSON, one connector each).

Keys are flat (`errors.tolerance`), as in Kafka Connect; a nested TOML table means the same (`[errors]` `tolerance = ...`). A
value may take `${env:NAME}` from the environment and `${file:PATH}` from a file (its text without the last newline), so that
secrets stay out of config files.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logflume.log import InvalidInput
from logflume.log.schemas import Column

from .secrets import MASK, Secret, mask_url, url_passwords

_MAX_CONFIG_BYTES = 1 << 20
_PROVIDER = re.compile(r"\$\{(?P<kind>[a-z]+):(?P<what>[^}]*)\}")


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """Typed values by option name. Printing it never shows a secret."""

    values: Mapping[str, Any]
    secret_names: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def text(self, name: str) -> str:
        """Return a STRING option; "" when it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, str), name
        return value or ""

    def integer(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, int | float), name
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values[name]
        assert isinstance(value, bool), name
        return value

    def items(self, name: str) -> tuple[str, ...]:
        """Return a LIST option; () when it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def columns(self, name: str) -> tuple[Column, ...]:
        """Return a COLUMNS option; () when it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def table(self, name: str) -> dict[str, str]:
        """Return the keys below a prefix (option name `prefix.*`)."""
        value = self.values[name]
        assert isinstance(value, dict), name
        return value

    def secret(self, name: str) -> str:
        """Return a PASSWORD option's text; "" when it was not given."""
        value = self.values[name]
        assert value is None or isinstance(value, Secret), name
        return value.reveal() if value is not None else ""

    def secret_texts(self) -> frozenset[str]:
        """Return every secret in the config, for `secrets.redact`: PASSWORD options and passwords inside URLs."""
        found: set[str] = set()
        for name, value in self.values.items():
            if isinstance(value, Secret):
                found.add(value.reveal())
            elif isinstance(value, str):
                found.update(url_passwords(value))
                if name in self.secret_names:
                    found.add(value)
        return frozenset(filter(None, found))

    def shown(self) -> dict[str, str]:
        """Return all values as text, secrets masked."""
        return {name: self._shown_value(name, value) for name, value in self.values.items()}

    def _shown_value(self, name: str, value: Any) -> str:
        if name in self.secret_names or isinstance(value, Secret):
            return MASK if value else ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ", ".join(f"{v.name} {v.type}" if isinstance(v, Column) else str(v) for v in value)
        return "" if value is None else mask_url(str(value))

    def __repr__(self) -> str:
        return f"Config({self.shown()})"


def read_config_file(path: str | Path) -> dict[str, object]:
    """Read a `.toml` or `.json` file of one connector into flat keys, `${...}` filled in.

    Raises:
        InvalidInput: the file is missing, too big, or not TOML/JSON of a table.
    """
    path = Path(path)
    if path.suffix not in (".toml", ".json"):
        raise InvalidInput(f"{path}: expected a connector file that ends in .toml or .json")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot read the connector file: {error.strerror}") from error
    if len(data) > _MAX_CONFIG_BYTES:
        raise InvalidInput(f"{path}: connector file of more than {_MAX_CONFIG_BYTES} bytes")
    try:
        text = data.decode()
        nested = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(
            f'{path}: not TOML: {error}; write a key below another one in quotes, as in "topic.config.cleanup.policy" = ...'
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{path}: not JSON: {error}") from error
    if not isinstance(nested, dict):
        raise InvalidInput(f"{path}: expected a table of keys, found {type(nested).__name__}")
    return fill_in(flatten(nested), environ=os.environ, base=path.parent, where=str(path))


def flatten(nested: Mapping[str, Any]) -> dict[str, object]:
    """Return nested tables as flat dotted keys.

    >>> flatten({"a": 1, "b": {"c": {"d": 2}}})
    {'a': 1, 'b.c.d': 2}
    """
    flat: dict[str, object] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{inner}": v for inner, v in flatten(value).items()})
        else:
            flat[key] = value
    return flat


def fill_in(flat: Mapping[str, object], *, environ: Mapping[str, str], base: Path, where: str) -> dict[str, object]:
    """Replace `${env:NAME}` and `${file:PATH}` (relative to `base`) in text values.

    Raises:
        InvalidInput: an unknown provider, an unset variable or a file that cannot be read; names the key.
    """

    def resolve(match: re.Match[str], key: str) -> str:
        kind, what = match["kind"], match["what"]
        if kind == "env":
            if what not in environ:
                raise InvalidInput(f"{where}: {key}: environment variable {what!r} is not set")
            return environ[what]
        if kind == "file":
            try:
                return (base / what).read_text().removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(f"{where}: {key}: cannot read {what!r}: {error}") from error
        raise InvalidInput(f"{where}: {key}: unknown provider {kind!r} in {match[0]!r}; expected env or file")

    return {
        key: _PROVIDER.sub(lambda match, key=key: resolve(match, key), value) if isinstance(value, str) else value  # type: ignore[misc]
        for key, value in flat.items()
    }
