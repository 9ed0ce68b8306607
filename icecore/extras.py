"""Libraries of an extra (``pip install 'icecore[server]'``): what says that one is missing.

A plain ``pip install icecore`` is a client: it has neither the command line nor the servers.
Whoever uses more gets one line that says what to install, and no traceback of our imports.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping

from icecore.errors import ConfigurationError

_COMMANDS = ("typer", "rich", "pydantic")
_SERVERS = ("uvloop", "prometheus_client", "rocksdict", "grpc_health", "grpc_reflection")

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "cli": _COMMANDS,
    "server": _SERVERS + _COMMANDS,
    "arrow": ("pyarrow",),
    "tier": ("obstore", "deltalake"),
    "spark": ("pyspark",),
    "testing": ("testcontainers",),
}
"""Modules that each extra brings."""


class MissingExtraError(ModuleNotFoundError):
    """A library is not installed; the message says which extra brings it."""


@contextlib.contextmanager
def explained(extra: str = "") -> Iterator[None]:
    """Imports in this block: a library that is missing is named with what to install.

    Args:
        extra: What is being used; empty = the first extra that brings the library.

    Raises:
        MissingExtraError: A library of an extra is missing.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        brings = [each for each, modules in EXTRAS.items() if name in modules]
        if not brings:
            raise
        chosen = extra if extra in brings else brings[0]
        raise MissingExtraError(_sentence(name, chosen), name=name) from error


def check(extra: str) -> None:
    """For who starts programs that need an extra.

    Raises:
        ConfigurationError: A library of the extra is missing.
    """
    for name in EXTRAS[extra]:
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(_sentence(name, extra), extra=extra)


@contextlib.contextmanager
def as_one_line(program: str, extra: str) -> Iterator[None]:
    """A whole program: it ends with status 1 and one line when a library is missing."""
    try:
        with explained(extra):
            yield
    except MissingExtraError as error:
        sys.exit(f"{program}: {error}")


def _sentence(name: str, extra: str) -> str:
    return f"{name} is not installed: pip install 'icecore[{extra}]'"
