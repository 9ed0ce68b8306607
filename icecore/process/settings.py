"""Settings of every process: a TOML file, then the environment, then flags, in rising priority.

Each process has one frozen settings class below :class:`Settings` and reads its own *section*: the
table of that name in the file, and ``ICECORE_SECTION__KEY`` (or plain ``ICECORE_KEY``) in the
environment. One file can therefore serve a whole cluster. A key that no field has is an error
that names where it stands and what was probably meant; plain ``ICECORE_X`` variables that this
process does not know are left alone, since they may be another process's (or Kubernetes's) own.
"""

import argparse
import difflib
import ipaddress
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ByteSize, ConfigDict, PrivateAttr, ValidationError

from icecore.errors import ConfigurationError

__all__ = ["ByteSize", "Settings", "check_listen", "is_loopback", "load", "load_from_arguments"]

ENV_PREFIX = "ICECORE_"
SECTIONS = ("node", "coordinator", "client")
"""Tables a file may hold; a process reads one and leaves the others to those they belong to."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Base of all settings classes: frozen, and nothing in them that nobody knows.

    Fields carry their unit in the name (``_ms``, ``_bytes``) and a description, which is what
    ``--help`` and ``icecore config`` print. Sizes are :class:`ByteSize`: ``8388608`` or ``"8MiB"``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    section: ClassVar[str] = "node"
    """The table of the file, and the middle of ``ICECORE_SECTION__KEY``."""
    flags: ClassVar[Mapping[str, str]] = {}
    """Flags that are not ``--field-name``: field to flag."""
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    def source_of(self, key: str) -> str:
        """Where the value of a field was said: a file, a variable, a flag, or ``default``."""
        return self._sources.get(key, "default")


def load(
    cls: type[S],
    config_path: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> S:
    """Settings from all sources; later ones win: file, environment, ``overrides``.

    Args:
        cls: Which settings.
        config_path: A TOML file, or None for no file.
        overrides: From flags; entries that are None count as not given.
        environ: Instead of ``os.environ``.

    Raises:
        ConfigurationError: The file can't be read, or a key is unknown or its value is wrong; the
            message names the source, the key and, for a typo, the nearest key there is.
    """
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    for source, found in (
        *_from_file(cls, config_path),
        *_from_environment(cls, os.environ if environ is None else environ),
        *((f"flag {flag_of(cls, key)}", {key: value}) for key, value in given.items()),
    ):
        for key, value in found.items():
            if key not in cls.model_fields:
                raise _unknown(cls, source, key)
            values[key] = value
            sources[key] = source
    try:
        settings = cls.model_validate(values)
    except ValidationError as error:
        raise _invalid(cls, error, sources) from error
    settings._sources.update(sources)
    return settings


def _from_file(
    cls: type[Settings], config_path: str | Path | None
) -> list[tuple[str, dict[str, object]]]:
    """The section of the file; or its top level, when the file has no sections at all."""
    if config_path is None:
        return []
    path = Path(config_path)
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}", file=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}", file=path) from error
    tables = {key for key, value in document.items() if isinstance(value, dict)}
    for key in tables - set(SECTIONS):
        raise ConfigurationError(
            f"{path}: unknown section [{key}]{_nearest(key, SECTIONS)}", file=path, key=key
        )
    top = {key: value for key, value in document.items() if key not in tables}
    if tables and top:
        key = next(iter(top))
        raise ConfigurationError(
            f"{path}: {key} stands outside of a section: move it below [{cls.section}]",
            file=path,
            key=key,
        )
    if tables:
        return [(f"{path} [{cls.section}]", document.get(cls.section, {}))]
    return [(str(path), top)]


def _from_environment(
    cls: type[Settings], environ: Mapping[str, str]
) -> list[tuple[str, dict[str, object]]]:
    """Plain keys first, so that ``ICECORE_SECTION__KEY`` wins over ``ICECORE_KEY``."""
    plain, own = [], []
    own_prefix = f"{ENV_PREFIX}{cls.section.upper()}__"
    for name, value in environ.items():
        source = f"environment variable {name}"
        if name.startswith(own_prefix):
            own.append((source, {name.removeprefix(own_prefix).lower(): value}))
        elif name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower()
            if key in cls.model_fields:
                plain.append((source, {key: value}))
    return [*plain, *own]  # type: ignore[list-item]  # dict is invariant in its values


def _unknown(cls: type[Settings], source: str, key: str) -> ConfigurationError:
    hint = _nearest(key, cls.model_fields)
    return ConfigurationError(f"{source}: unknown setting {key}{hint}", source=source, key=key)


def _nearest(key: str, known: Sequence[str] | Mapping[str, object]) -> str:
    if close := difflib.get_close_matches(key, list(known), n=1, cutoff=0.5):
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(sorted(known))}"


def _invalid(
    cls: type[Settings], error: ValidationError, sources: Mapping[str, str]
) -> ConfigurationError:
    problems = []
    for detail in error.errors(include_url=False):
        key = str(detail["loc"][0]) if detail["loc"] else ""
        if detail["type"] == "missing":
            problems.append(
                f"{key} is missing: give {flag_of(cls, key)} or {env_name_of(cls, key)}"
            )
        else:
            message = detail["msg"].removeprefix("Value error, ")
            where = sources.get(key, "default")
            path = ".".join(map(str, detail["loc"]))
            problems.append(f"{where}: {path} = {detail['input']!r}: {message}" if key else message)
    return ConfigurationError("; ".join(problems))


def flag_of(cls: type[Settings], key: str) -> str:
    """What sets this field on the command line."""
    return cls.flags.get(key, "--" + key.replace("_", "-"))


def env_name_of(cls: type[Settings], key: str) -> str:
    """The environment variable that sets this field, and only that of this kind of process."""
    return f"{ENV_PREFIX}{cls.section.upper()}__{key.upper()}"


# --- command lines of the servers -----------------------------------------------------------------


def load_from_arguments(cls: type[S], prog: str, argv: Sequence[str] | None = None) -> S:
    """Settings of a server from its command line: one flag per field, and ``--config FILE``.

    ``--show-config`` prints the effective settings as JSON and ``--config-schema`` their JSON
    schema; both end the process. Usage errors end it with status 2, as argparse does.

    Raises:
        ConfigurationError: As :func:`load`.
    """
    parser = argparse.ArgumentParser(prog=prog, description=cls.__doc__, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="TOML file; environment and flags win")
    parser.add_argument("--show-config", action="store_true", help="print the settings as JSON")
    parser.add_argument("--config-schema", action="store_true", help="print their JSON schema")
    for key, field in cls.model_fields.items():
        is_switch = field.annotation is bool
        default = "required" if field.is_required() else f"default {shown(field.default)}"
        names = dict.fromkeys((flag_of(cls, key), "--" + key.replace("_", "-")))
        parser.add_argument(
            *names,
            dest=key,
            default=None,
            help=f"{field.description or key} ({default})".replace("%", "%%"),
            **({"action": argparse.BooleanOptionalAction} if is_switch else {"metavar": "VALUE"}),
        )
    arguments = vars(parser.parse_args(argv))
    config_path = arguments.pop("config")
    shows, is_schema = arguments.pop("show_config"), arguments.pop("config_schema")
    if is_schema:
        print(json.dumps(cls.model_json_schema(), indent=2))
        sys.exit(0)
    if shows:
        found = effective(cls, config_path, arguments)
        print(json.dumps({key: value for key, (value, _) in found.items()}, indent=2))
        sys.exit(0)
    return load(cls, config_path, arguments)


def effective(
    cls: type[Settings], config_path: str | None, arguments: Mapping[str, object]
) -> dict[str, tuple[object, str]]:
    """By field the value that :func:`load` would return, and where it was said.

    Required settings that nobody has given yet are None, and said nowhere.

    Raises ConfigurationError as :func:`load`.
    """
    absent: dict[str, object] = {}
    for key, field in cls.model_fields.items():
        if field.is_required():
            try:
                load(cls, config_path, {**arguments, **absent})
            except ConfigurationError as error:
                if f"{key} is missing" not in error.message:
                    continue
                absent[key] = (field.examples or [""])[0]
    settings = load(cls, config_path, {**arguments, **absent})
    return {
        key: (None, "") if key in absent else (value, settings.source_of(key))
        for key, value in settings.model_dump(mode="json").items()
    }


def shown(value: object) -> str:
    """A default, as a person would write it."""
    if isinstance(value, ByteSize):
        return value.human_readable(separator="") if value % KIB else _binary(value)
    if value in (None, "", ()) or isinstance(value, BaseModel):
        return "none"
    return "off" if value is False else str(value)


def _binary(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)


# --- addresses ------------------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises ConfigurationError when it is neither.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigurationError(f"{address!r} is not an address: write HOST:PORT", value=address)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach a server that listens on ``host``.

    Names other than ``localhost`` are not resolved: they count as reachable from outside.
    """
    bare = host.removeprefix("[").removesuffix("]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def check_listen(address: str, *, insecure_bind: bool) -> None:
    """Refuse to listen without TLS where others could connect, unless told to.

    Raises ConfigurationError naming the address and ``--insecure-bind``.
    """
    host, _ = split_address(address)
    if not insecure_bind and not is_loopback(host):
        raise ConfigurationError(
            f"{address} can be reached from other machines and there is no TLS: listen on "
            "127.0.0.1, or accept that anyone may read and write with --insecure-bind",
            address=address,
        )
