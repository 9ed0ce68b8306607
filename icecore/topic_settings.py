"""Settings of a topic: one table of them, and the values that a cluster makes of them.

A new setting is a row of ``TopicSettings``, its name in ``TopicFields`` and a field of the value
that holds it, all here; in ``proto/`` (``make proto``) a field of ``TopicSettings`` and, if it is
pinned in each segment, of ``SegmentSettings``; its name in the rows of both in
``docs/design/evidence.md``; and the code that obeys it. What two settings must agree on, and a
default that depends on the cluster, are in ``decisions/topic_changes.py``. Checks, options of
commands, the cluster's ``topic_defaults``, conversions and ``docs/reference/settings.md`` (``make
references``) follow from the row.

A setting that is not said is None here, and absent in a message.
"""

from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from typing import Any, Final, TypedDict

from icecore.errors import InvalidRequestError

# --- words ----------------------------------------------------------------------------------------


class FlushMode(IntEnum):
    """The event that an append waits for before it counts as durable."""

    SYNC = 1
    ASYNC = 2


SEGMENT_ENGINE: Final = "segment"
"""Batches in files: one for each segment, or those of the shared file model."""
ROCKSDB_ENGINE: Final = "rocksdb"
"""Batches of the active segment in a RocksDB database, of sealed ones in files."""
MEMORY_ENGINE: Final = "memory"
"""Batches of the active segment in memory: replicated, not durable; of sealed ones in files."""
ENGINES: Final = (SEGMENT_ENGINE, ROCKSDB_ENGINE, MEMORY_ENGINE)
VOLATILE_ENGINES: Final = (MEMORY_ENGINE,)
"""Engines whose active logs end with the process."""

OWN_FILE: Final = "partition"
"""Each active segment has a file of its own."""
SHARED_FILE: Final = "shared"
"""The active segments of an I/O worker share one append file, and its sync."""
FILE_MODELS: Final = (OWN_FILE, SHARED_FILE)

UNAVAILABLE_ON_LOSS: Final = "unavailable"
"""A segment whose every copy is lost waits for a person."""
RESTART_EMPTY: Final = "restart_empty"
"""The segment ends where it can be proved to, recorded as lossy, and the partition goes on."""
ON_TOTAL_LOSS: Final = (UNAVAILABLE_ON_LOSS, RESTART_EMPTY)

NO_LIMIT: Final = -1
REFUSE: Final = "refuse"
"""A full disk takes no more; what is kept stays."""
DELETE_OLDEST: Final = "delete_oldest"
"""When a disk is nearly full, the oldest sealed segments go, expired or not."""
ON_FULL: Final = (REFUSE, DELETE_OLDEST)

PARQUET_FORMAT: Final = "parquet"
"""Rows, which other programs read as a table."""
SEGMENT_FORMAT: Final = "segment"
"""Batches as they lie on nodes."""
TIER_FORMATS: Final = (PARQUET_FORMAT, SEGMENT_FORMAT)
TIER: Final = {"off": False, "on": True}
"""The words of ``tier``, and ``Tiering.is_on`` of each."""

PARTITIONERS: Final = ("xxh64", "custom")

RECORD_BYTES_CAP: Final = 8 << 20
"""This and the two below: the most that every reader takes, and so that a topic may allow (R70)."""
BATCH_BYTES_CAP: Final = 8 << 20
UNCOMPRESSED_BYTES_CAP: Final = 64 << 20
INDEXED_HEADERS_MAX: Final = 16
HEADER_NAME_BYTES_MAX: Final = 249
"""Largest name of an indexed header, as UTF-8."""
AMOUNT_MAX: Final = 1 << 60
"""Largest limit in milliseconds or bytes."""

# --- the table ------------------------------------------------------------------------------------


class SettingKind(Enum):
    """The kind of a setting's values."""

    COUNT = "count"
    MS = "milliseconds"
    BYTES = "bytes"
    WORD = "word"
    FLUSH = "flush mode"
    NAMES = "names"


class Holds(Enum):
    """The moment from which a changed setting holds."""

    AT_CREATION = "never: said at creation"
    AT_ONCE = "at once"
    NEXT_SEGMENT = "in the next segment"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Args:
        kind: Kind of its values.
        help: One sentence for ``--help`` and the reference page.
        low, high: Bounds of a number, both included; ``high`` is 0 for all else.
        is_limit: Whether -1 means "no limit".
        words: Allowed words of a word.
        default: The default in words, where it is no field of a value below.
        holds: When a change takes effect; None = by the value that has the field.
        title: The name in ``describe``, where the field's name alone reads badly.
        flags: Options of the command line; empty = ``--`` and the name.
        is_for_all: Whether ``topic_defaults`` of a cluster may say it.
        name: The field's name.
    """

    kind: SettingKind
    help: str
    low: int = 0
    high: int = 0
    is_limit: bool = False
    words: tuple[str, ...] = ()
    default: str = ""
    holds: Holds | None = None
    title: str = ""
    flags: tuple[str, ...] = ()
    is_for_all: bool = True
    name: str = ""

    @property
    def range(self) -> str:
        """The values that are allowed, in words; empty for names, which may be any."""
        if not self.high:
            return ", ".join(self.words)
        high = "2^60" if self.high == AMOUNT_MAX else self.high
        return f"{'-1 (no limit) or ' if self.is_limit else ''}{self.low} to {high}"

    def check(self, value: Any) -> None:
        """Refuse a number or a word that is out of range. Raises InvalidRequestError.

        A flush mode and names are checked where a message or a caller gives them.
        """
        if self.kind is SettingKind.WORD and value not in self.words:
            raise InvalidRequestError(f"{self.name} {value[:64]!r} must be one of {self.range}")
        is_unlimited = self.is_limit and value == NO_LIMIT
        if self.high and not is_unlimited and not self.low <= value <= self.high:
            raise InvalidRequestError(f"{self.name} is {self.range}, not {value}")


_YEAR_MS = 366 * 24 * 3600 * 1000


def _row(kind: SettingKind, text: str, **rest: Any) -> Any:
    return field(default=None, metadata={"row": Setting(kind, text, **rest)})


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic. None means the cluster's default, or *unchanged* where a topic is
    altered; a topic that is described has them all."""

    partitions: int | None = _row(
        SettingKind.COUNT,
        "Partitions; only add-partitions changes them.",
        low=1,
        high=10_000,
        default="1",
        holds=Holds.AT_CREATION,
        flags=("--partitions", "-p"),
    )
    replication_factor: int | None = _row(
        SettingKind.COUNT,
        "Copies of each segment; sealed ones follow when it is altered.",
        low=1,
        high=32,
        default="3, or fewer where fewer nodes are up",
        flags=("--replication-factor", "--replicas"),
    )
    min_insync_replicas: int | None = _row(
        SettingKind.COUNT,
        "Fewest in-sync copies that acks=all accepts.",
        low=1,
        high=32,
        default="2 with three copies or more, else 1",
    )
    flush_mode: FlushMode | None = _row(  # noqa: RUF009 - a field like the others
        SettingKind.FLUSH,
        "sync: fsync before each ack; async: at intervals.",
        words=("sync", "async"),
        flags=("--flush",),
    )
    segment_bytes: int | None = _row(
        SettingKind.BYTES, "Seal a segment at this size.", low=64 << 10, high=AMOUNT_MAX
    )
    segment_age_ms: int | None = _row(
        SettingKind.MS, "Seal a segment at this age.", low=1_000, high=100 * _YEAR_MS
    )
    partitioner: str | None = _row(
        SettingKind.WORD,
        "Choice of a record's partition: xxh64 of its key, or the client's own.",
        words=PARTITIONERS,
        holds=Holds.AT_CREATION,
        is_for_all=False,
    )
    record_bytes_max: int | None = _row(
        SettingKind.BYTES,
        "Largest record: key, value, headers and tags.",
        low=1,
        high=RECORD_BYTES_CAP,
        is_for_all=False,
    )
    batch_bytes_max: int | None = _row(
        SettingKind.BYTES,
        "Largest batch; producers make theirs smaller where it asks for that.",
        low=1,
        high=BATCH_BYTES_CAP,
        is_for_all=False,
    )
    uncompressed_bytes_max: int | None = _row(
        SettingKind.BYTES,
        "Largest payload of a batch before compression, and its tags written out.",
        low=1,
        high=UNCOMPRESSED_BYTES_CAP,
        is_for_all=False,
    )
    delete_grace_ms: int | None = _row(
        SettingKind.MS,
        "Time in which a deleted topic can be undeleted; 0 = not at all.",
        high=10 * _YEAR_MS,
        default="24 h",
        holds=Holds.AT_ONCE,
    )
    engine: str | None = _row(
        SettingKind.WORD, "Storage of active segments: segment, rocksdb or memory.", words=ENGINES
    )
    file_model: str | None = _row(
        SettingKind.WORD,
        "Files of active segments: one per partition, or shared by an I/O worker.",
        words=FILE_MODELS,
    )
    flush_interval_ms: int | None = _row(
        SettingKind.MS, "With flush mode async: longest time to the fsync.", low=1, high=3_600_000
    )
    flush_bytes: int | None = _row(
        SettingKind.BYTES,
        "With flush mode async: most bytes of a segment without fsync.",
        low=1,
        high=1 << 30,
    )
    on_total_loss: str | None = _row(
        SettingKind.WORD,
        "When no copy of an active segment, or one in memory, is left: wait for a person or go on.",
        words=ON_TOTAL_LOSS,
        default="unavailable; restart_empty for engine memory",
    )
    indexed_headers: tuple[str, ...] | None = _row(
        SettingKind.NAMES,
        "Names of headers by whose values records are found.",
        default="none",
        flags=("--indexed-header",),
        is_for_all=False,
    )
    retention_ms: int | None = _row(
        SettingKind.MS,
        "Delete sealed segments this long after their last record; -1 = never.",
        low=1,
        high=AMOUNT_MAX,
        is_limit=True,
        title="retention time",
    )
    retention_bytes: int | None = _row(
        SettingKind.BYTES,
        "Keep this much of the newest of each partition, of one copy; -1 = all.",
        low=1,
        high=AMOUNT_MAX,
        is_limit=True,
        title="retention size",
    )
    on_full: str | None = _row(
        SettingKind.WORD,
        "When a disk is nearly full: refuse records, or delete_oldest segments.",
        words=ON_FULL,
    )
    tier: str | None = _row(
        SettingKind.WORD,
        "Copy sealed segments into object storage: off or on.",
        words=tuple(TIER),
        default="off",
        holds=Holds.AT_ONCE,
    )
    tier_format: str | None = _row(
        SettingKind.WORD, "Format of those copies: parquet or segment.", words=TIER_FORMATS
    )
    tier_after_ms: int | None = _row(
        SettingKind.MS, "Copy a segment this long after its seal.", high=AMOUNT_MAX
    )
    local_retention_ms: int | None = _row(
        SettingKind.MS,
        "Copied segments leave the nodes this long after their seal; -1 = never.",
        high=AMOUNT_MAX,
        is_limit=True,
        title="local retention time",
    )
    local_retention_bytes: int | None = _row(
        SettingKind.BYTES,
        "Nodes keep this much of the newest of each partition; -1 = all.",
        high=AMOUNT_MAX,
        is_limit=True,
        title="local retention size",
    )


class TopicFields(TypedDict, total=False):
    """``TopicSettings`` as keywords."""

    partitions: int | None
    replication_factor: int | None
    min_insync_replicas: int | None
    flush_mode: FlushMode | None
    segment_bytes: int | None
    segment_age_ms: int | None
    partitioner: str | None
    record_bytes_max: int | None
    batch_bytes_max: int | None
    uncompressed_bytes_max: int | None
    delete_grace_ms: int | None
    engine: str | None
    file_model: str | None
    flush_interval_ms: int | None
    flush_bytes: int | None
    on_total_loss: str | None
    indexed_headers: tuple[str, ...] | None
    retention_ms: int | None
    retention_bytes: int | None
    on_full: str | None
    tier: str | None
    tier_format: str | None
    tier_after_ms: int | None
    local_retention_ms: int | None
    local_retention_bytes: int | None


# --- values of a cluster --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlushBounds:
    """Bounds of the bytes that a log may leave unsynced."""

    interval_ms: int
    """Longest time from a write to its sync."""
    length_bytes: int
    """Once so many are not synced, a sync is due at once."""


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Pinned in the segment record when it opens: nobody decides by newer settings."""

    replication_factor: int = 1
    min_insync_replicas: int = 1
    flush_mode: FlushMode = FlushMode.SYNC
    segment_bytes: int = 1 << 30
    segment_age_ms: int = 24 * 3600 * 1000
    flush_interval_ms: int = 1_000
    flush_bytes: int = 16 << 20
    engine: str = SEGMENT_ENGINE
    file_model: str = OWN_FILE
    on_total_loss: str = UNAVAILABLE_ON_LOSS
    recovery_rule: str = "quorum"
    partitioner: str = "xxh64"
    record_bytes_max: int = 1 << 20
    batch_bytes_max: int = 4 << 20
    uncompressed_bytes_max: int = 32 << 20
    indexed_headers: tuple[str, ...] = ()

    @property
    def active_engine(self) -> str:
        """The storage of an active segment: the engine, and its file model if it is not the usual
        one. All are sealed into files of the segment engine."""
        return self.engine if self.file_model == OWN_FILE else f"{self.engine}/{self.file_model}"

    @property
    def acked_mode(self) -> FlushMode:
        """The meaning of an ack: SYNC = replicas have it on disk, ASYNC = they hold it."""
        return FlushMode.ASYNC if self.engine == MEMORY_ENGINE else self.flush_mode

    @property
    def flush(self) -> FlushBounds | None:
        """Bounds of what a replica leaves unsynced; None = it syncs each append before it
        counts."""
        if self.flush_mode is FlushMode.SYNC:
            return None
        return FlushBounds(self.flush_interval_ms, self.flush_bytes)

    @property
    def quorum(self) -> int:
        """Majority of the *replication factor*, never of the in-sync set or of fewer replicas."""
        return self.replication_factor // 2 + 1


@dataclass(frozen=True, slots=True)
class Retention:
    """The records that a topic keeps. A change holds at once for all segments; sealed segments that
    are expired are deleted. -1 = no limit."""

    retention_ms: int = NO_LIMIT
    retention_bytes: int = NO_LIMIT
    on_full: str = REFUSE

    @property
    def has_limits(self) -> bool:
        """Return whether anything expires."""
        return self.retention_ms != NO_LIMIT or self.retention_bytes != NO_LIMIT


KEEP_ALL: Final = Retention()
"""Retention of topics that say nothing else."""


@dataclass(frozen=True, slots=True)
class Tiering:
    """The segments of a topic that move into object storage. A change holds at once for all
    segments. -1 = no limit."""

    is_on: bool = False
    tier_format: str = PARQUET_FORMAT
    tier_after_ms: int = 0
    local_retention_ms: int = NO_LIMIT
    local_retention_bytes: int = NO_LIMIT

    @property
    def has_local_limits(self) -> bool:
        """Return whether nodes are to drop what is copied."""
        return self.local_retention_ms != NO_LIMIT or self.local_retention_bytes != NO_LIMIT


NOT_TIERED: Final = Tiering()
"""Tiering of topics that say nothing else."""

# --- what follows from the table ------------------------------------------------------------------


def _completed(name: str, row: Setting) -> Setting:
    """The row with its name, its default in words, and when it holds."""
    for value, holds in _VALUES.items():
        if hasattr(value, name):
            row = replace(row, holds=row.holds or holds, default=row.default or _said(value, name))
    return replace(row, name=name)


def _said(value: object, name: str) -> str:
    default = getattr(value, name)
    return default.name.lower() if isinstance(default, FlushMode) else str(default)


_VALUES = {
    SegmentSettings(): Holds.NEXT_SEGMENT,
    KEEP_ALL: Holds.AT_ONCE,
    NOT_TIERED: Holds.AT_ONCE,
}
SETTINGS: Final[dict[str, Setting]] = {
    each.name: _completed(each.name, each.metadata["row"]) for each in fields(TopicSettings)
}
"""All rows by name, in the order in which they are shown."""


def check_value(name: str, value: object) -> None:
    """Refuse a value that is out of the range of its row; a name without a row may have any value.
    Raises InvalidRequestError."""
    if name in SETTINGS:
        SETTINGS[name].check(value)


def check_values(values: object) -> None:
    """Refuse values that are out of range. Raises InvalidRequestError.

    Args:
        values: ``SegmentSettings``, ``Retention`` or ``Tiering``.
    """
    for each in fields(values):  # type: ignore[arg-type]
        check_value(each.name, getattr(values, each.name))


def check_indexed_headers(names: tuple[str, ...]) -> None:
    """Refuse headers that a topic can't index. Raises InvalidRequestError."""
    if len(names) > INDEXED_HEADERS_MAX:
        raise InvalidRequestError(
            f"indexed_headers names {len(names)} headers, at most {INDEXED_HEADERS_MAX} are allowed"
        )
    if len(set(names)) < len(names):
        raise InvalidRequestError("indexed_headers names a header twice")
    for name in names:
        try:
            length = len(name.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"header name {name!r} has no UTF-8 form") from error
        if not 1 <= length <= HEADER_NAME_BYTES_MAX:
            raise InvalidRequestError(
                f"an indexed header's name has 1 to {HEADER_NAME_BYTES_MAX} bytes, not {length}"
            )
