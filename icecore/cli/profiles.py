"""Profiles: names for clusters, in ``$XDG_CONFIG_HOME/icecore/config.toml`` (``~/.config``).

::

    profile = "local"                  # the one that is taken when nobody says another

    [profiles.local]
    bootstrap = "127.0.0.1:7400"

    [profiles.production]
    bootstrap = "c1:7400,c2:7400"
    timeout_s = 10

Flags and environment variables win over a profile. A key that nobody knows is an error.
"""

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icecore.errors import ConfigurationError
from icecore.process.system import read_small_file

_BOOTSTRAP = "127.0.0.1:7400"
_TIMEOUT_S = 30.0
_KEYS = {"bootstrap": str, "timeout_s": (int, float)}


@dataclass(frozen=True, slots=True)
class Profile:
    """Address of a cluster, and seconds to wait for its answers."""

    bootstrap: str = _BOOTSTRAP
    timeout_s: float = _TIMEOUT_S


def config_path() -> Path:
    """Return the path of the configuration file; it need not exist.

    Raises RuntimeError when this user has no home folder.
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "icecore" / "config.toml"


def load(name: str, note: Callable[[str], object] = lambda _: None) -> Profile:
    """The profile ``name``; if that is empty the one the file names, else the defaults.

    Args:
        name: Of the profile, or empty.
        note: Told of a file that this user may not read. Without a named profile that is no error:
            HOME may be another user's.

    Raises:
        ConfigurationError: The file or the profile is wrong, or there is no such profile.
    """
    try:
        path = config_path()
        document = _read(path)
    except RuntimeError as error:
        if name:
            raise ConfigurationError(f"no profile {name!r}: set HOME or XDG_CONFIG_HOME") from error
        return Profile()
    except OSError as error:
        why = f"{path} can't be read ({error.strerror})"
        if name:
            raise ConfigurationError(f"no profile {name!r}: {why}") from error
        note(f"{why}: going on without it")
        return Profile()
    profiles = document.pop("profiles", {})
    chosen = name or document.pop("profile", "")
    document.pop("profile", None)
    if document:
        raise ConfigurationError(f"{path}: unknown key {min(document)}: write [profiles.NAME]")
    if not isinstance(chosen, str) or not isinstance(profiles, dict):
        raise ConfigurationError(f"{path}: profile is a name, and profiles are tables")
    if not chosen:
        return Profile()
    if chosen not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise ConfigurationError(f"no profile {chosen!r} in {path}; there are: {known}")
    return _profile(path, chosen, profiles[chosen])


def _read(path: Path) -> dict[str, Any]:
    """Raises OSError as well."""
    try:
        return tomllib.loads(read_small_file(path).decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from error


def _profile(path: Path, name: str, values: object) -> Profile:
    where = f"{path} [profiles.{name}]"
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where} is not a table")
    for key, value in values.items():
        if key not in _KEYS:
            raise ConfigurationError(f"{where}: unknown key {key}; known are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool) or not value:  # type: ignore[arg-type]
            raise ConfigurationError(f"{where}: {key} = {value!r} is of no use")
    timeout_s = values.get("timeout_s", _TIMEOUT_S)
    if not 0.1 <= timeout_s <= 86_400:  # a whole number may be too large for a float
        raise ConfigurationError(f"{where}: timeout_s = {timeout_s!r:.40} is not from 0.1 to 86400")
    return Profile(values.get("bootstrap", _BOOTSTRAP), float(timeout_s))
