"""Broker settings from files and the environment: Java properties or TOML, and LOGFLUME_CONFIG_* variables.

Which wins: `--config`, then the environment, then the file, then the default. Only text is read here; names and values are
checked where the settings are known.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from logflume.log.errors import InvalidInput

from .addresses import parse_address
from .listeners import named_addresses

MAX_FILE_BYTES = 1 << 20
ENVIRONMENT_PREFIX = "LOGFLUME_CONFIG_"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_config_file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings of a `.toml` file, or of a properties file as Apache Kafka's `server.properties` is one.

    In TOML a name may be written as it is (`num.partitions = 4`) or in quotes, which is needed where one name begins like another
    (`"max.connections.per.ip" = 10` beside `max.connections`). Lists become comma-separated text.

    Raises InvalidInput: it cannot be read, is not of its format, is over 1 MiB, or sets a name twice.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read the config file {path}: {error.strerror or error}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidInput(f"the config file {path} has {len(raw)} bytes; expected at most {MAX_FILE_BYTES}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the config file {path} is not UTF-8 text at byte {error.start}") from error
    if Path(path).suffix.lower() != ".toml":
        return parse_properties(text, where=str(path))
    try:
        return dict(_flat(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not TOML: {error}; put a name in quotes if another name begins with it") from error


def parse_properties(text: str, *, where: str = "properties") -> dict[str, str]:
    """Return the settings of Java properties: `name=value`, `#` and `!` comments, `\\` at a line's end continues it.

    >>> parse_properties("# a broker\\nnum.partitions = 4")
    {'num.partitions': '4'}

    Raises InvalidInput.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        name, value = _name_and_value(line)
        if not name:
            raise InvalidInput(f"{where}, line {number}: expected NAME=VALUE, found {line[:100]!r}")
        if name in found:
            raise InvalidInput(f"{where}, line {number}: {name} is set for the second time; keep one of the lines")
        found[name] = value
    return found


def environment_configs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among environment variables.

    >>> environment_configs({"LOGFLUME_CONFIG_NUM_PARTITIONS": "4", "HOME": "/root"})
    {'num.partitions': '4'}
    """
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def gather_configs(path: str | None, pairs: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return all settings given: those of the file under those of the environment under NAME=VALUE pairs. Raises InvalidInput."""
    return {
        **(read_config_file(path) if path else {}),
        **environment_configs(environment),
        **dict(map(_parse_config, pairs)),
    }


def configured_data_dir(configs: Mapping[str, str]) -> str:
    """Return the one data directory of `log.dirs` or `log.dir`. Raises InvalidInput."""
    directories = [part for part in (configs.get("log.dirs") or configs.get("log.dir") or "").split(",") if part]
    if len(directories) != 1:
        raise InvalidInput(f"expected one data directory, found {len(directories)}; give --data DIR")
    return directories[0].strip()


def refuse_contradictions(
    configs: Mapping[str, str],
    *,
    listen: Sequence[str] = (),
    advertise: str | None = None,
    data: str | None = None,
    http: str | None = None,
) -> None:
    """Raise InvalidInput when an option of the command line and a setting say different things: neither wins in silence.

    `listen`, `advertise`, `data`, `http`: what the options of these names were given.
    """
    if listen and configs.get("listeners"):
        said = {part.strip() for part in configs["listeners"].split(",") if part.strip()}
        if said not in ({*listen}, {*named_addresses([parse_address(each) for each in listen]).split(",")}):
            raise _contradiction("--listen", ",".join(listen), "listeners", configs["listeners"])
    if advertise and configs.get("advertised.listeners"):
        raise _contradiction("--advertise", advertise, "advertised.listeners", configs["advertised.listeners"])
    for option, given, names in (("--data", data, ("log.dirs", "log.dir")), ("--http", http, ("logflume.http.listener",))):
        for name in names:
            value = configs.get(name)
            if given and value and value != given and os.path.realpath(value) != os.path.realpath(given):
                raise _contradiction(option, given, name, value)


def _contradiction(option: str, given: str, name: str, value: str) -> InvalidInput:
    return InvalidInput(f"{option} {given} and {name}={value} say different things; give one of them")


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, _text_of(name, value)


def _text_of(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text_of(name, each) for each in value)
    raise InvalidInput(f"{name}: expected text, a number, true, false or a list, found {type(value).__name__}")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of the lines that hold a setting, continued ones joined."""
    kept, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip(" \t\f")
        if not kept and (not line or line[0] in "#!"):
            continue
        first = first if kept else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            kept += line[:-1]
            continue
        yield first, kept + line
        kept = ""
    if kept:
        yield first, kept


def _name_and_value(line: str) -> tuple[str, str]:
    """Split at the first `=`, `:` or white space that is not escaped."""
    index = 0
    while index < len(line) and line[index] not in "=: \t\f":
        index += 2 if line[index] == "\\" else 1
    name, rest = line[:index], line[index:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(name), _unescape(rest).rstrip()


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out, index = [], 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\" or index == len(text):
            out.append(char)
            continue
        code = text[index]
        index += 1
        if code == "u":
            digits = text[index : index + 4]
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise InvalidInput(f"expected four hexadecimal digits after \\u, found {digits!r}")
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(code, code))
    return "".join(out)


def _parse_config(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"expected --config NAME=VALUE, found {text!r}")
    return name.strip(), value.strip()
