"""Settings of every process: a TOML file, then the environment, then flags, in rising priority.

Each process has one frozen settings class below :class:`Settings` and reads its own *section*: the
table of that name in the file, and ``ICECORE_SECTION__KEY`` (or plain ``ICECORE_KEY``) in the
environment. One file can therefore serve a whole cluster. A key that no field has is an error
that names where it stands and what was probably meant; plain ``ICECORE_X`` variables that this
process does not know are left alone, since they may be another process's (or Kubernetes's) own.

A field may be a *table* of settings (:class:`TableSettings`): ``[section.field]`` in the file,
``ICECORE_SECTION__FIELD__KEY`` for one of its keys, or JSON for several of them. Each key counts
for itself: a later source replaces the keys that it says and leaves the others.
"""

import argparse
import difflib
import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ByteSize, ConfigDict, PrivateAttr, ValidationError

from icecore.errors import ConfigurationError
from icecore.process.system import read_small_file
from icecore.rpc.addresses import check_listen, is_loopback, split_address

__all__ = [
    "ByteSize",
    "Settings",
    "TableSettings",
    "check_folder",
    "check_listen",
    "is_loopback",
    "load",
    "load_from_arguments",
    "split_address",
]

ENV_PREFIX = "ICECORE_"
SECTIONS = ("node", "coordinator", "client")
"""Tables a file may hold; a process reads one and leaves the others to those they belong to."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

S = TypeVar("S", bound="Settings")


class TableSettings(BaseModel):
    """Base of a table of settings within a :class:`Settings` class."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    is_rare: ClassVar[bool] = False
    """A rare table is left out of ``--help``, and the reference documents it apart."""


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
        """The source of a field's value: a file, a variable, a flag, or ``default``.

        A key of a table is written as ``table.key``.
        """
        return self._sources.get(key, "default")

    @classmethod
    def table(cls, key: str) -> type[TableSettings] | None:
        """The class of a field that is a table; None for any other field."""
        field = cls.model_fields.get(key)
        kind = field.annotation if field is not None else None
        return kind if isinstance(kind, type) and issubclass(kind, TableSettings) else None

    def listed(self) -> Iterator[tuple[str, object, str, str]]:
        """Every setting, the keys of rare tables one by one: its name, its value as JSON has it,
        where the value was said, and the meaning."""
        for key, value in self.model_dump(mode="json").items():
            table = self.table(key)
            if table is None or not table.is_rare:
                description = type(self).model_fields[key].description or ""
                yield key, value, self.source_of(key), description
                continue
            for name, field in table.model_fields.items():
                path = f"{key}.{name}"
                yield path, value[name], self.source_of(path), field.description or ""


def check_folder(given: object) -> object:
    """A folder, as a validator of a field has it before it is a path. An empty one is a variable
    that nobody set, never the folder where the process happens to be.

    Raises ValueError.
    """
    if isinstance(given, str | Path) and not str(given).strip():
        raise ValueError("it is empty: name a folder")
    return given


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
        for name, value in found.items():
            _take(cls, source, name, value, values, sources)
    try:
        settings = cls.model_validate(values)
    except ValidationError as error:
        raise _invalid(cls, error, sources) from error
    settings._sources.update(sources)
    return settings


def _take(
    cls: type[Settings],
    source: str,
    name: str,
    value: object,
    values: dict[str, object],
    sources: dict[str, str],
) -> None:
    """Add what one source says of one field, or of ``table__key``, to what earlier ones said."""
    key, _, inner = name.partition("__")
    table = cls.table(key)
    if key not in cls.model_fields or (inner and table is None):
        raise _unknown(source, name, cls.model_fields)
    sources[key] = source
    if table is None:
        values[key] = value
        return
    said = {inner: value} if inner else _as_table(source, key, value)
    for each in said:
        if each not in table.model_fields:
            raise _unknown(
                source, f"{key}.{each}", [f"{key}.{known}" for known in table.model_fields]
            )
        sources[f"{key}.{each}"] = source
    earlier = values.get(key)
    values[key] = {**earlier, **said} if isinstance(earlier, dict) else said


def _as_table(source: str, key: str, value: object) -> dict[str, object]:
    """The environment and flags have only text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"{source}: {key} is not a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{source}: {key} = {value!r} is not a table: write its keys with their values"
        )
    return value


def _from_file(
    cls: type[Settings], config_path: str | Path | None
) -> list[tuple[str, dict[str, object]]]:
    """The section of the file; or its top level, when the file has no sections at all."""
    if config_path is None:
        return []
    path = Path(config_path)
    try:
        document: dict[str, Any] = tomllib.loads(read_small_file(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}", file=path) from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
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
    """Plain keys first, so that ``ICECORE_SECTION__KEY`` wins over ``ICECORE_KEY``; and single keys
    of tables last, so that they win over JSON."""
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
    own.sort(key=lambda each: any("__" in name for name in each[1]))
    return [*plain, *own]  # type: ignore[list-item]  # dict is invariant in its values


def _unknown(
    source: str, key: str, known: Sequence[str] | Mapping[str, object]
) -> ConfigurationError:
    hint = _nearest(key, known)
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
            path = ".".join(map(str, detail["loc"]))
            where = sources.get(path) or sources.get(key, "default")
            problems.append(f"{where}: {path} = {detail['input']!r}: {message}" if key else message)
    return ConfigurationError("; ".join(problems))


def flag_of(cls: type[Settings], key: str) -> str:
    """Return the command line flag that sets this field."""
    return cls.flags.get(key, "--" + key.replace("_", "-"))


def env_name_of(cls: type[Settings], key: str) -> str:
    """The environment variable that sets a field, or ``table.key``, of such a process only."""
    return f"{ENV_PREFIX}{cls.section.upper()}__{key.replace('.', '__').upper()}"


# --- command lines of the servers -----------------------------------------------------------------


def load_from_arguments(cls: type[S], prog: str, argv: Sequence[str] | None = None) -> S:
    """Settings of a server from its command line: one flag per field, and ``--config FILE``.

    ``--show-config`` prints the effective settings as JSON and ``--config-schema`` their JSON
    schema; both end the process. Usage errors end it with status 2, as argparse does.

    Raises:
        ConfigurationError: As :func:`load`.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=cls.__doc__,
        epilog=f"`icecore config show {cls.section}` also lists settings without a flag.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file; environment and flags win")
    parser.add_argument("--show-config", action="store_true", help="print the settings as JSON")
    parser.add_argument("--config-schema", action="store_true", help="print their JSON schema")
    for key, field in cls.model_fields.items():
        is_switch = field.annotation is bool
        table = cls.table(key)
        is_hidden = table is not None and table.is_rare
        default = "required" if field.is_required() else f"default {shown(field.default)}"
        names = dict.fromkeys((flag_of(cls, key), "--" + key.replace("_", "-")))
        parser.add_argument(
            *names,
            dest=key,
            default=None,
            help=argparse.SUPPRESS
            if is_hidden
            else f"{field.description or key} ({default})".replace("%", "%%"),
            **({"action": argparse.BooleanOptionalAction} if is_switch else {"metavar": "VALUE"}),
        )
    arguments = vars(parser.parse_args(argv))
    config_path = arguments.pop("config")
    shows, is_schema = arguments.pop("show_config"), arguments.pop("config_schema")
    if is_schema:
        print(json.dumps(cls.model_json_schema(), indent=2))
        sys.exit(0)
    if shows:
        settings, absent = effective(cls, config_path, arguments)
        found = settings.model_dump(mode="json") | dict.fromkeys(absent)
        print(json.dumps(found, indent=2))
        sys.exit(0)
    return load(cls, config_path, arguments)


def effective(
    cls: type[S], config_path: str | None, arguments: Mapping[str, object]
) -> tuple[S, frozenset[str]]:
    """Return the settings that :func:`load` would return, and the required ones that are still
    missing. An example stands in place of each missing one.

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
    return load(cls, config_path, {**arguments, **absent}), frozenset(absent)


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
