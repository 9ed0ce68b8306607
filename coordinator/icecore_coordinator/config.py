"""Settings of a coordinator process, checked once at its edge."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ByteSize, Field, TypeAdapter, field_validator

from icecore.process.log import LogFormat
from icecore.process.settings import Settings, TableSettings
from icecore.process.system import DESCRIPTORS_MIN
from icecore_coordinator.timing import CoordinatorTiming, Timing, WaitSettings

Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 32)]
Bytes: TypeAlias = Annotated[ByteSize, Field(ge=0, lt=1 << 60)]
Limit: TypeAlias = Annotated[int, Field(ge=-1, lt=1 << 60)]
"""-1 = none."""
Age: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 60)]


class TopicDefaults(TableSettings):
    """Settings of topics whose creation does not say them; what is left out here is the product's
    own default. They hold for topics that are created from then on."""

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


class _Process(Settings):
    """Settings of a coordinator as a process."""

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


class CoordinatorSettings(WaitSettings, _Process):
    """icecore coordinator: places segments, seals, recovers."""

    section: ClassVar[str] = "coordinator"
    flags: ClassVar[dict[str, str]] = {"metrics_listen": "--metrics"}

    timing: CoordinatorTiming = Field(
        CoordinatorTiming(), description="Other waits: a table [coordinator.timing]."
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

    @property
    def waits(self) -> Timing:
        """All that a coordinator waits, in one value."""
        common = {name: getattr(self, name) for name in WaitSettings.model_fields}
        return Timing(**common, **self.timing.model_dump())
