"""Levels of the broker's loggers as a config resource (KIP-412): kept while the broker runs, as in Kafka.

A logger without a level of its own has its parent's; `root` is the parent of all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from logflume.log.errors import near_matches
from logflume.log.protocol import ErrorCode, KafkaError

from .lookup import ConfigSource, ConfigValue
from .spec import ConfigSpec, ConfigType

ROOT = "root"
LOGGERS = {
    ROOT: "logflume",
    "logflume.authorizer": "logflume.authorizer",
    "logflume.broker": "logflume.broker",
    "logflume.server": "logflume.server",
}
"""Names that clients use, and the loggers they mean."""
LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {level: name for name, level in LEVELS.items()}


def logger_spec(name: str) -> ConfigSpec:
    """Return a logger as a setting. Raises KafkaError INVALID_CONFIG with near matches."""
    if name not in LOGGERS:
        near = near_matches(name, LOGGERS)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(LOGGERS)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown logger {name[:200]!r}{hint}")
    return ConfigSpec(name, ConfigType.STRING, "INFO", "Level of this logger.", choices=tuple(LEVELS))


def levels() -> list[ConfigValue]:
    """Return the level of each logger as it counts now."""
    found = []
    for name, logger_name in LOGGERS.items():
        logger = logging.getLogger(logger_name)
        source = ConfigSource.DYNAMIC_BROKER_LOGGER if logger.level else ConfigSource.DEFAULT
        level = _NAMES.get(logger.getEffectiveLevel(), "INFO")
        found.append(ConfigValue(logger_spec(name), level, source, ((name, level, source),)))
    return found


def own_levels() -> dict[str, str]:
    """Return the loggers that have a level of their own."""
    return {each.spec.name: each.value or "" for each in levels() if each.source is ConfigSource.DYNAMIC_BROKER_LOGGER}


def set_levels(wanted: Mapping[str, str]) -> None:
    """Give these loggers these levels, which were checked, and all others their parent's."""
    for name, logger_name in LOGGERS.items():
        logging.getLogger(logger_name).setLevel(LEVELS[wanted[name]] if name in wanted else logging.NOTSET)
