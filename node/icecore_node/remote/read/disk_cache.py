"""Parts of objects on the local disk, within a budget, and worth nothing unless proved.

Each entry is a file with its key, its length and a SHA-256 over both key and content, which is
compared at every read. So nothing is ever synced: a crash, a torn write or bit rot leaves an entry
that does not prove itself. That one is dropped and read from the store again. Nothing here is the
only copy of anything, and no failure of this disk fails a read.

There are two kinds: *pinned* entries (manifests, footers, index parts: small, needed to find
anything) and blocks. Blocks go first; of each kind what was not used for longest. A file's name
says its kind and length, so that a start reads no entry. Format, little-endian::

    magic "icec", u16 version, u16 length of the key, u64 length of the content,
    SHA-256 over key and content, key (UTF-8), content
"""

import hashlib
import logging
import struct
from collections import OrderedDict
from typing import Final

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.ports import FileSystem
from icecore_node.storage.files.locks import Lock

FOLDER: Final = "cold"
VERSION: Final = 1
FREE_MIN_PART: Final = 20
"""Share of the disk that the cache leaves free for records: one part in this many."""
_MAGIC: Final = b"icec"
_HEADER: Final = struct.Struct("<4sHHQ32s")
_UNFINISHED: Final = ".new"
_PINNED: Final = ".p"
_BLOCK: Final = ".b"

_log = logging.getLogger(__name__)


class DiskCache:
    """Blocking; any thread.

    Args:
        files: The data folder.
        bytes_max: Maximum size of all entries; 0 = none are kept.
    """

    def __init__(self, files: FileSystem, bytes_max: int) -> None:
        self._files = files
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._entries: dict[str, OrderedDict[str, int]] = {
            _BLOCK: OrderedDict(),
            _PINNED: OrderedDict(),
        }
        """Lengths of entries by file name, for each kind; the longest unused comes first."""
        self._names: dict[str, str] = {}
        """File names of entries by their stem, the hash of the key."""
        self._is_open = False
        self.size_bytes = 0

    def get(self, key: str) -> bytes | None:
        """The content, proved; None when it is not here."""
        with self._lock:
            self._open()
            name = self._touch(key)
        if name is None:
            return None
        try:
            content = _content(self._read(name), key)
        except IcecoreError as error:
            event(_log, logging.WARNING, "remote_cache_unreadable", file=name, error=error)
            content = None
        if content is None:
            self.drop(key)
        return content

    def put(self, key: str, content: bytes, *, is_pinned: bool) -> None:
        """Keep it, if there is room."""
        encoded = _encode(key, content)
        kind = _PINNED if is_pinned else _BLOCK
        name = f"{_stem(key)}-{len(encoded)}{kind}"
        with self._lock:
            self._open()
            if self._touch(key) is not None or len(encoded) > self._bytes_max:
                return
            try:
                self._make_room(len(encoded), is_for_block=not is_pinned)
                if not self._has_room(len(encoded)):
                    return
                self._write(name, encoded)
            except IcecoreError as error:
                event(_log, logging.WARNING, "remote_cache_not_written", file=name, error=error)
                return
            self._add(name, len(encoded))

    def drop(self, key: str) -> None:
        """Whatever is kept under this key counts for nothing."""
        with self._lock:
            self._open()
            name = self._touch(key)
            if name is not None:
                self._forget(name)

    # --- with the lock ------------------------------------------------------------------------

    def _open(self) -> None:
        """Look at once what an earlier process has left."""
        if self._is_open:
            return
        self._is_open = True
        try:
            self._files.make_dirs(FOLDER)
            for name in self._files.list_dir(FOLDER):
                length = _length_of(name)
                if length is None:
                    self._files.unlink(f"{FOLDER}/{name}")
                    continue
                self._add(name, length)
            self._make_room(0, is_for_block=False)
        except IcecoreError as error:
            event(_log, logging.WARNING, "remote_cache_unreadable", file=FOLDER, error=error)

    def _touch(self, key: str) -> str | None:
        """Return the file name of a key and mark it as the last used; None without an entry."""
        name = self._names.get(_stem(key))
        if name is not None:
            self._entries[name[-2:]].move_to_end(name)
        return name

    def _add(self, name: str, length: int) -> None:
        self._entries[name[-2:]][name] = length
        self._names[name.partition("-")[0]] = name
        self.size_bytes += length

    def _make_room(self, length: int, *, is_for_block: bool) -> None:
        for kind in (_BLOCK,) if is_for_block else (_BLOCK, _PINNED):
            entries = self._entries[kind]
            while entries and self.size_bytes + length > self._bytes_max:
                self._forget(next(iter(entries)))

    def _has_room(self, length: int) -> bool:
        used, free = self._files.space()
        is_roomy = free - length > (used + free) // FREE_MIN_PART
        return is_roomy and self.size_bytes + length <= self._bytes_max

    def _forget(self, name: str) -> None:
        length = self._entries[name[-2:]].pop(name, 0)
        self._names.pop(name.partition("-")[0], None)
        self.size_bytes -= length
        try:
            self._files.unlink(f"{FOLDER}/{name}")
        except IcecoreError as error:
            event(_log, logging.WARNING, "remote_cache_not_removed", file=name, error=error)

    # --- files --------------------------------------------------------------------------------

    def _write(self, name: str, encoded: bytes) -> None:
        unfinished = f"{FOLDER}/{_UNFINISHED}"
        if self._files.exists(unfinished):
            self._files.unlink(unfinished)
        file = self._files.open(unfinished, create=True)
        try:
            file.pwritev([encoded], 0)
        finally:
            file.close()
        self._files.rename(unfinished, f"{FOLDER}/{name}")

    def _read(self, name: str) -> bytes:
        file = self._files.open(f"{FOLDER}/{name}")
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()


def _stem(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def _length_of(name: str) -> int | None:
    """Return the length in a file name; None when the file is not an entry of this cache."""
    stem, _, rest = name[:-2].partition("-")
    is_ours = len(stem) == 40 and rest.isdecimal() and name[-2:] in (_BLOCK, _PINNED)
    return int(rest) if is_ours else None


def _encode(key: str, content: bytes) -> bytes:
    name = key.encode()
    digest = hashlib.sha256(name + content).digest()
    return _HEADER.pack(_MAGIC, VERSION, len(name), len(content), digest) + name + content


def _content(encoded: bytes, key: str) -> bytes | None:
    """Return an entry's content; None when it is not what was put under this key."""
    if len(encoded) < _HEADER.size:
        return None
    magic, version, key_length, length, digest = _HEADER.unpack_from(encoded)
    if (magic, version) != (_MAGIC, VERSION):
        return None
    proved = encoded[_HEADER.size :]
    if len(proved) != key_length + length or proved[:key_length] != key.encode():
        return None
    return proved[key_length:] if hashlib.sha256(proved).digest() == digest else None
