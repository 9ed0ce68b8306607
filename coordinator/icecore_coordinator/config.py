"""Settings of a coordinator process, checked once at its edge."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ByteSize, ConfigDict, Field, TypeAdapter, field_validator

from icecore.process.log import LogFormat
from icecore.process.settings import Settings
from icecore.process.system import DESCRIPTORS_MIN

Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 32)]
Bytes: TypeAlias = Annotated[ByteSize, Field(ge=0, lt=1 << 60)]
Limit: TypeAlias = Annotated[int, Field(ge=-1, lt=1 << 60)]
"""-1 = none."""
Age: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 60)]


class TopicDefaults(BaseModel):
    """Settings of topics whose creation does not say them; what is left out here is the product's
    own default. They hold for topics that are created from then on."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    partitions: Number = 0
    replication_factor: Number = 0
    min_insync: Number = 0
    engine: Literal["", "segment", "rocksdb", "memory"] = ""
    file_model: Literal["", "partition", "shared"] = ""
    flush_mode: Literal["", "sync", "async"] = ""
    flush_interval_ms: Number = 0
    flush_bytes: Bytes = ByteSize(0)
    on_total_loss: Literal["", "unavailable", "restart_empty"] = ""
    segment_bytes: Bytes = ByteSize(0)
    segment_age_ms: Number = 0
    delete_grace_ms: Number | None = None
    retention_ms: Limit | None = None
    retention_bytes: Limit | None = None
    on_full: Literal["", "refuse", "delete_oldest"] = ""
    tier: Literal["", "off", "on"] = ""
    tier_format: Literal["", "parquet", "segment"] = ""
    tier_after_ms: Age | None = None
    local_retention_ms: Limit | None = None
    local_retention_bytes: Limit | None = None

    @field_validator("retention_bytes", "local_retention_bytes", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        """Sizes are written like others, and -1 is none."""
        is_size = isinstance(value, str) and value != "-1"
        return TypeAdapter(ByteSize).validate_python(value) if is_size else value

    @property
    def said(self) -> dict[str, Any]:
        """Those that are given."""
        return {key: value for key, value in self if key in self.model_fields_set}


class CoordinatorSettings(Settings):
    """icecore coordinator: places segments, seals, recovers."""

    section: ClassVar[str] = "coordinator"
    flags: ClassVar[dict[str, str]] = {"metrics_listen": "--metrics"}

    data: str = Field(description="Folder of the metadata store.")
    listen: str = Field("127.0.0.1:7400", description="Address to serve on.")
    native_listen: str = Field(
        "", description="Address to serve on for native:// bootstraps; empty = gRPC only."
    )
    metrics_listen: str = Field(
        "", description="HOST:PORT for Prometheus and probes; empty = neither."
    )
    insecure_bind: bool = Field(False, description="Allow other machines to connect without TLS.")
    descriptors_min: int = Field(
        DESCRIPTORS_MIN, ge=64, description="Least limit of open files (hard) to start with."
    )
    heartbeat_ms: int = Field(500, ge=10, description="Interval of nodes' heartbeats.")
    lease_ms: int = Field(6_000, ge=100, description="How long a silent node stays up.")
    recovery_wait_ms: int = Field(
        1_000, ge=10, description="How long a recovery waits for replicas it could do without."
    )
    lost_replica_grace_ms: int = Field(
        1_200_000, ge=0, description="How long a copy on a node that is down still counts."
    )
    tier_reader_grace_ms: int = Field(
        600_000,
        ge=0,
        description="How long objects of segments that are gone stay for those who read them.",
    )
    topic_defaults: TopicDefaults = Field(
        TopicDefaults(),
        description="Settings of topics whose creation does not say them: a table"
        " [coordinator.topic_defaults], or JSON in the environment and in flags; keys are "
        + ", ".join(TopicDefaults.model_fields)
        + ".",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe messages to log."
    )
    log_format: LogFormat = Field("text", description="Of the log: text, or json.")

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, given: object) -> object:
        """It was in capital letters once."""
        return given.lower() if isinstance(given, str) else given

    @field_validator("topic_defaults", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        """The environment and flags have only text."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a JSON object: {error}") from error


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for what."""

    heartbeat_ms: int = 500
    lease_ms: int = 6_000
    recovery_wait_ms: int = 1_000
    lost_replica_grace_ms: int = 1_200_000
    open_wait_ms: int = 3_000
    """How long to wait for all candidates while nobody waits for the segment to open."""
    roll_up_wait_ms: int = 10_000
    """How long a node must be up before thin segments are rolled onto it."""
    return_wait_ms: int = 10_000
    """How long a node may be down before its copies are made elsewhere: most come back, with all
    they had, and whoever produces has better use for the disks right after a failure."""
    prepared_keep_ms: int = 60_000
    """How long a PREPARED segment waits for its predecessor's seal."""
    audit_ms: int = 1_000
    tick_ms: int = 100
    node_call_s: float = 10.0
    fence_call_s: float = 3.0
    """Short: a node that hangs holds up the other segments of the same recovery."""
    copy_call_s: float = 120.0
    """Long: a replica may have to copy a whole segment."""
    upload_call_s: float = 900.0
    """Long: a segment is encoded, put into object storage, and read back whole."""
    tier_call_s: float = 60.0
    """Of tables and sweeps."""
    tier_reader_grace_ms: int = 600_000
    """How long somebody may still read what was retired from object storage."""
    tier_closed_keep_ms: int = 24 * 3600 * 1000
    """How long an upload may be paused and go on all the same; its objects are swept again then."""
