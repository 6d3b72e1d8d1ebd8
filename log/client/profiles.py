"""Profiles: where a log is and how to log in there, by name, in `~/.config/logflume/config.toml` (or $LOGFLUME_CONFIG).

    default = "prod"

    [profiles.prod]
    bootstrap = "kafka.example:9093"
    "security.protocol" = "SASL_SSL"
    "sasl.password.file" = "/run/secrets/alice"

The file is its owner's alone (0600), and replaced as a whole.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logflume.log.errors import InvalidInput, UnknownName

from .security import Security, settings_of_environment

PREFIX = "profile:"
MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Profile:
    """Bootstrap addresses, and security settings under librdkafka's names."""

    name: str
    bootstrap: str
    settings: Mapping[str, str] = field(repr=False)

    def security(self) -> Security:
        """Raises InvalidInput, UnknownName: settings that do not fit."""
        try:
            return Security.from_settings(self.settings)
        except InvalidInput as error:
            raise InvalidInput(f"profile {self.name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles of a file, and the one that counts when none is named ("" for none)."""

    by_name: Mapping[str, Profile]
    default: str = ""

    def get(self, name: str) -> Profile:
        """Raises UnknownName."""
        if name not in self.by_name:
            raise UnknownName("profile", name, self.by_name)
        return self.by_name[name]


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where profiles are kept."""
    given = environment.get("LOGFLUME_CONFIG")
    if given:
        return Path(given)
    home = environment.get("XDG_CONFIG_HOME")
    return Path(home) / "logflume/config.toml" if home else Path("~/.config/logflume/config.toml").expanduser()


def load_profiles(path: Path) -> Profiles:
    """Read the profiles; none if there is no file. Raises InvalidInput."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Profiles({})
    except OSError as error:
        raise InvalidInput(f"cannot read the profiles in {path}: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidInput(f"{path} has more than {MAX_FILE_BYTES} bytes")
    try:
        content = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    found = content.get("profiles", {})
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise InvalidInput(f"{path}: expected [profiles.NAME] tables")
    return Profiles({name: _profile(name, own, path) for name, own in found.items()}, str(content.get("default", "")))


def save_profiles(path: Path, profiles: Profiles) -> None:
    """Replace the file by these profiles. Raises InvalidInput: it cannot be written."""
    lines = [f"default = {_quoted(profiles.default)}", ""] if profiles.default else []
    for profile in profiles.by_name.values():
        lines += [f"[profiles.{_quoted(profile.name)}]", f"bootstrap = {_quoted(profile.bootstrap)}"]
        lines += [f"{_quoted(name)} = {_quoted(value)}" for name, value in sorted(profile.settings.items())]
        lines.append("")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write the profiles to {path}: {error.strerror or error}") from None


def check_profile_name(name: str) -> None:
    """Raise InvalidInput unless a profile may have this name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"a profile's name has 1 to 64 letters, digits, . _ - and begins with a letter, found {name[:80]!r}")


def named_profile(name: str, environment: Mapping[str, str] = os.environ) -> Profile:
    """Return a profile by name. Raises InvalidInput, UnknownName."""
    return load_profiles(config_path(environment)).get(name)


def default_security(environment: Mapping[str, str] = os.environ) -> Security:
    """Return what the environment says about security: LOGFLUME_PROFILE and the LOGFLUME_SASL_... variables, which win."""
    name = environment.get("LOGFLUME_PROFILE")
    settings = dict(named_profile(name, environment).settings) if name else {}
    return Security.from_settings(settings | settings_of_environment(environment))


def default_profile(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the profile that counts when nobody says where the log is, "" for none."""
    return environment.get("LOGFLUME_PROFILE") or load_profiles(config_path(environment)).default


def _profile(name: str, own: Mapping[str, Any], path: Path) -> Profile:
    check_profile_name(name)
    values = dict(_flat(own, ""))
    wrong = [key for key, value in values.items() if not isinstance(value, str)]
    if wrong or not values.get("bootstrap"):
        raise InvalidInput(f"{path}: profile {name} expects text for {wrong[0] if wrong else 'bootstrap'}")
    return Profile(name, values.pop("bootstrap"), values)


def _flat(content: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Return a.b = value for nested tables: names may be written with or without quotes."""
    found: list[tuple[str, Any]] = []
    for name, value in content.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


def _quoted(text: str) -> str:
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'
