"""From a config file, or keys, to a connector that is checked and ready to be started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from logflume.log import InvalidInput, UnknownName, near_matches

from .api import Connector, SourceConnector
from .common_options import sink_spec, source_spec
from .config import Config, read_config_file
from .errors import ConfigErrors, Problem
from .registry import connector_names, find_connector
from .spec import Spec


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """A connector's plug-in and its validated config."""

    name: str
    plugin: Connector = field(repr=False)
    config: Config
    where: str

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics it writes to (source) or reads (sink)."""
        return (self.config.text("topic"),) if self.is_source else self.config.items("topics")

    @property
    def is_source(self) -> bool:
        return isinstance(self.plugin, SourceConnector)

    @property
    def dead_letter_topic(self) -> str | None:
        """Where what cannot be processed is kept; None when it is not tolerated."""
        if self.config.text("errors.tolerance") != "all":
            return None
        return self.config.text("errors.deadletterqueue.topic.name") or f"{self.name}.dead-letters"


def connector_spec(name: str) -> Spec:
    """Return all options of a plug-in, the common ones included: documentation, validation and form from one object.

    Raises:
        UnknownName: no such plug-in.
    """
    plugin = find_connector(name)
    return source_spec(name, plugin.spec) if isinstance(plugin, SourceConnector) else sink_spec(name, plugin.spec)


def load_connector(
    source: str | Path | Mapping[str, object], *, overrides: Mapping[str, object] | None = None
) -> ConnectorConfig:
    """Read and check a connector's config: the path of a .toml or .json file, or its flat keys; `overrides` replace keys of it.

    Raises:
        ConfigErrors: everything that is wrong with it, in one error.
        InvalidInput: the file cannot be read.
    """
    if isinstance(source, Mapping):
        raw, where = dict(source), f"connector {source.get('name', '(no name)')}"
    else:
        raw, where = read_config_file(source), str(source)
    raw.update(overrides or {})
    name = raw.get("connector")
    if not isinstance(name, str):
        known = ", ".join(connector_names())
        near = near_matches("connector", raw)
        hint = f"; the key {near[0]!r} looks like it" if near else ""
        raise ConfigErrors(where, [Problem("connector", f"required: short name of a plug-in, one of {known}{hint}")])
    try:
        plugin = find_connector(name)
    except UnknownName as error:
        raise ConfigErrors(where, [Problem("connector", f"{error}; installed: {', '.join(connector_names())}")]) from error
    except InvalidInput as error:
        raise ConfigErrors(where, [Problem("connector", str(error))]) from error
    config = connector_spec(name).validate(raw, where=where)
    return ConnectorConfig(config.text("name"), plugin, config, where)
