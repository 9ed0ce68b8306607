"""The real clock and chance of a process, and what a process that moves bulk data must set first.

The ports themselves are in ``icecore/rpc/ports.py``; tests and the simulator bring their own.
"""

import contextlib
import ctypes
import errno
import logging
import os
import random
import resource
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from icecore.errors import ConfigurationError
from icecore.process.garbage import bound_full_collections
from icecore.process.log import event

SMALL_FILE_BYTES_MAX: Final = 1 << 20
"""Settings, passwords, certificates: far more than people write."""
_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
DESCRIPTORS_MIN = 1024
"""Minimum of open files with which a server is of use; most systems allow far more."""
_DESCRIPTORS_MAX = 1 << 20
"""More would be of no use, and some hard limits are larger than anything."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds since some moment, never going back."""
        return time.monotonic_ns() / 1_000_000


class SystemRng:
    """Chance of the operating system."""

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))

    def random(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def bytes(self, count: int) -> bytes:
        """``count`` random bytes, fit for identifiers that must never collide."""
        return os.urandom(count)


def boot_id() -> str:
    """A random name of this run of the kernel, and so of its page cache: what was written before is
    there as long as it is the same. Empty where nobody can tell."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def raise_descriptor_limit(least: int = DESCRIPTORS_MIN) -> int:
    """Let the process open as many files and sockets as it may; how many that is.

    The soft limit is often 1,024, for the sake of programs that use select(2). Call it once, when
    logging is set up.

    Raises:
        ConfigurationError: Fewer than ``least``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    limit = wanted if soft == resource.RLIM_INFINITY else soft
    if limit < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            limit = wanted
        except (OSError, ValueError) as error:
            event(_log, logging.WARNING, "descriptor_limit_kept", limit=limit, error=error)
    event(_log, logging.INFO, "descriptor_limit", limit=limit, before=soft)
    if limit < least:
        raise ConfigurationError(
            f"only {limit} files and connections may be open at once, {least} are needed: raise the"
            " hard limit (ulimit -Hn, or LimitNOFILE= of the service)"
        )
    return limit


def check_file(path: Path) -> None:
    """Raises OSError unless it is a file: who opens a pipe waits for its writer, and who reads a
    device may never come to an end."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, and must be a file", str(path))


def read_small_file(path: Path) -> bytes:
    """Read all of a file that people write by hand; ``/dev/null`` is an empty one.

    Raises OSError where it is none, or much larger than such a file.
    """
    if os.path.samestat(path.stat(), Path(os.devnull).stat()):
        return b""
    check_file(path)
    with path.open("rb") as file:
        found = file.read(SMALL_FILE_BYTES_MAX + 1)
    if len(found) > SMALL_FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has more than {SMALL_FILE_BYTES_MAX:,} bytes", str(path))
    return found


def open_standard_streams() -> None:
    """Put ``/dev/null`` where a supervisor or a shell (``<&-``) closed a standard stream. Else the
    first file or socket would get its number, and be written to by whoever prints. Call it first in
    ``main``.

    Output becomes blocking: Python drops what a slow reader of a non-blocking pipe has no room for,
    and says nothing. Parents such as Node.js hand over such pipes.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for output in (1, 2):
        with contextlib.suppress(OSError):
            os.set_blocking(output, True)
    # A library may have taken the number of a closed stream before: ours have their own.
    null = Path(os.devnull)
    sys.stdin = sys.stdin or null.open(encoding="utf-8")
    sys.stdout = sys.stdout or null.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or null.open("w", encoding="utf-8")


def tune_process() -> None:
    """Set up the garbage collector and the allocator for bulk data. Call it first in ``main``,
    once.

    gRPC receives on several threads, so glibc spreads megabyte buffers over many arenas and maps
    and unmaps each of them: every message is paid for again in page faults. One arena that keeps
    its memory doubles what a gRPC server receives (measured 720 to 1,550 MiB/s). Does nothing where
    the C library is not glibc. The interpreter's switch interval stays as it is: a shorter one
    costs more in thread switches than it gains in latency (docs/adr/tried.md).

    Arrow takes its memory from the same allocator, unless the environment says otherwise: its own
    keeps what was freed, and ``MemoryReturn`` could not give that back.
    """
    bound_full_collections()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # read when Arrow is imported
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  # the test: other C libraries lack the symbol
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    mallopt(_M_TOP_PAD, 64 << 20)


@contextlib.contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Opens a data folder in its body.

    Raises ConfigurationError, with what to do, where the system refuses something of it.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:  # pathlib tells a loop of links by a RuntimeError
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ConfigurationError(
            f"data folder {folder} cannot be used: {why}. Give --data a folder that this user may "
            "write",
            folder=folder,
        ) from error
