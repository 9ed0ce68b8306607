"""Settings of a node, with their units, limits and meaning; what ``icecore-node --help`` prints."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from icecore.errors import ConfigurationError
from icecore.model import NodeId
from icecore.process.log import LogFormat
from icecore.process.settings import (
    GIB,
    MIB,
    ByteSize,
    Settings,
    check_folder,
    check_listen,
    split_address,
)
from icecore.process.system import DESCRIPTORS_MIN
from icecore.rpc.addresses import NATIVE, Transport, check_told, is_wildcard
from icecore.topic_settings import BATCH_BYTES_CAP
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.files.whole_sync import SyncFs
from icecore_node.timing import NodeTiming


def _size(default: int, description: str, least: int = 1) -> ByteSize:
    """A size field; ``least`` in bytes."""
    field: ByteSize = Field(ByteSize(default), ge=least, description=description)
    return field


class NodeSettings(Settings):
    """A storage node of an icecore cluster."""

    section: ClassVar[str] = "node"
    flags: ClassVar[dict[str, str]] = {"metrics_listen": "--metrics"}

    # who and where
    data: Annotated[Path, BeforeValidator(check_folder)] = Field(
        description="Data folder; made if absent, locked while the node runs.", examples=["data"]
    )
    data_dirs: tuple[Path, ...] = Field(
        (),
        description="Folders on further disks for segments, with commas between them; a disk that"
        " fails takes its segments with it, and the node goes on.",
    )
    index_dir: Path | None = Field(
        None, description="Folder for the index alone; none = in the data folder."
    )
    node_id: NodeId = Field(
        ge=1, lt=1 << 32, description="Number of this node, unique and for ever.", examples=[1]
    )
    coordinator: str = Field(
        "127.0.0.1:7400", description="HOST:PORT of each coordinator, joined by commas."
    )
    listen: str = Field("127.0.0.1:0", description="HOST:PORT to serve on; port 0 takes any.")
    advertise: str = Field("", description="HOST:PORT others connect to; empty = where we listen.")
    native_listen: str = Field(
        "auto",
        description="HOST:PORT of the native transport, which Python processes prefer to gRPC: auto"
        " = any port on the host of listen; empty = none.",
    )
    native_advertise: str = Field(
        "",
        description="HOST:PORT others connect to natively; empty = the port where we listen, on the"
        " host of advertise.",
    )
    transport: Transport = Field(
        "auto",
        description="grpc = this node neither listens nor calls natively; auto = it does.",
    )
    rack: str = Field("", description="Failure domain, such as a zone; replicas are spread.")
    host: str = Field(
        "",
        description="Name of the machine: replicas of several nodes on it are spread; empty = the"
        " host name.",
    )
    metrics_listen: str = Field(
        "", description="HOST:PORT for Prometheus and probes; empty = neither."
    )
    insecure_bind: bool = Field(
        False, description="Listen beyond loopback although there is no TLS."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe messages to log."
    )
    log_format: LogFormat = Field("text", description="Of the log: text, or json.")

    # descriptors
    descriptors_min: int = Field(
        DESCRIPTORS_MIN, ge=64, description="Least limit of open files (hard) to start with."
    )
    descriptors_reserve: int = Field(
        128,
        ge=0,
        description="With fewer descriptors left no new replica is taken: what is here needs them.",
    )

    # disk
    io_workers: int = Field(2, ge=1, le=64, description="Threads that append and fsync.")
    sync_on_loop_ms_max: float = Field(
        2.0,
        ge=0,
        le=100,
        description="A lone small append is written and synced by the event loop itself, without a"
        " change of threads, while syncs take no longer than this; 0 = never.",
    )
    syncfs: SyncFs = Field(
        "auto",
        description="One syncfs for a group of 32 files or more, instead of one fdatasync each:"
        " auto = if the data folder is a mount of its own; always = also beside others, whose"
        " writes it waits for.",
    )
    group_items_max: int = Field(
        256, ge=1, description="Appends in one group (one fsync), of up to 4 MiB each."
    )
    group_bytes_max: ByteSize = _size(16 * MIB, "Bytes in one group.", BATCH_BYTES_CAP)
    recycle_bytes_max: ByteSize = _size(
        4 * GIB,
        "Files of deleted segments kept to be overwritten, while a fifth of the disk is free; 0 ="
        " none.",
        least=0,
    )
    preallocate_bytes: ByteSize = _size(8 * MIB, "Step in which segment files grow.", least=4096)
    index_memory_bytes: ByteSize = _size(
        64 * MIB, "Newest index entries of all segments kept in memory.", least=1 * MIB
    )

    memory_engine_bytes: ByteSize = _size(
        1 * GIB,
        "Active segments of topics with engine memory, of all of them together. From half of it on"
        " the largest are sealed early, near the end producers wait; copies of what other nodes"
        " lead may take as much again.",
        least=0,
    )

    disk_reclaim_percent: float = Field(
        80.0,
        gt=0,
        le=100,
        description="From this use of the disk on topics with on_full = delete_oldest give up their"
        " oldest segments here; at disk_read_only_percent at the latest.",
    )
    disk_read_only_percent: float = Field(
        90.0, gt=0, le=100, description="From this use of the disk on no new replicas come here."
    )
    disk_full_percent: float = Field(
        95.0, gt=0, le=100, description="From this use of the disk on nothing is followed here."
    )
    disk_free_bytes_min: ByteSize = _size(
        50 * GIB, "A disk with so much free counts as roomy; 0 = always does.", least=0
    )
    scrub_bytes_per_s: ByteSize = _size(
        8 * MIB, "Sealed segments read back and checked, per second; 0 = not at all.", least=0
    )
    scrub_days: float = Field(
        7.0, gt=0, description="Days within which each sealed segment is read back once."
    )

    # requests; how large batches may be is a matter of topics
    fetch_bytes_max: ByteSize = _size(8 * MIB, "Largest answer to a fetch.")
    produce_inflight_bytes_max: ByteSize = _size(
        64 * MIB,
        "Produce requests held in memory; more are answered with THROTTLED.",
        BATCH_BYTES_CAP,
    )
    tail_cache_bytes: ByteSize = _size(64 * MIB, "Newest batches of all partitions kept in memory.")
    remote_memory_bytes: ByteSize = _size(
        64 * MIB, "Row groups and indexes of segments in object storage kept in memory.", least=0
    )
    remote_cache_bytes: ByteSize = _size(
        4 * GIB,
        "Parts of objects kept in the data folder, in a cache that may be lost; 0 = none.",
        least=0,
    )

    # object storage
    tier_url: str = Field(
        "",
        description="Object store for sealed segments of topics with tier = on, the same for all"
        " nodes of a cluster: s3://bucket/prefix, gs://…, az://…, webhdfs://namenode:9870/folder or"
        " file:///folder that all share;"
        " credentials come from the environment; empty = none.",
    )
    tier_region: str = Field("", description="Region of an S3 bucket; empty = as AWS_REGION says.")
    tier_endpoint: str = Field(
        "",
        description="http(s)://HOST:PORT of an S3 server that is not Amazon's; http = clear text."
        " With webhdfs:// hdfs://HOST:PORT of the NameNode, for tables.",
    )
    tier_request_timeout_ms: int = Field(
        30_000, ge=100, description="Longest time of one request to the object store."
    )
    tier_uploads_at_once: int = Field(
        1, ge=1, le=16, description="Segments that this node uploads at the same time."
    )
    tier_upload_bytes_per_s: ByteSize = _size(
        64 * MIB,
        "Bytes of segments read for uploads, per second, of all of them together; 0 = no limit.",
        least=0,
    )

    # replication
    replication_credit_bytes: ByteSize = _size(
        16 * MIB, "What a leader may have under way to one follower.", BATCH_BYTES_CAP
    )
    replica_lag_ms_max: int = Field(
        10_000, ge=100, description="A follower this far behind leaves the in-sync set."
    )
    check_every_steps: int = Field(
        16,
        ge=1,
        description="The invariants of each led or followed segment are checked after so many"
        " steps of its protocol; 1 = after each. A broken one ends the node.",
    )
    leave_wait_ms: int = Field(
        5_000, ge=0, description="How long a clean stop waits until others took over."
    )

    timing: NodeTiming = Field(NodeTiming(), description="Other waits: a table [node.timing].")

    @field_validator("data_dirs", mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        """Flags and the environment have one text."""
        if isinstance(given, str):
            return [part.strip() for part in given.split(",") if part.strip()]
        return given

    @field_validator("index_dir", mode="before")
    @classmethod
    def _none_if_empty(cls, given: object) -> object:
        return None if given == "" else given

    @model_validator(mode="after")
    def _fits_together(self) -> "NodeSettings":
        for smaller, larger in (
            ("disk_read_only_percent", "disk_full_percent"),
            ("descriptors_reserve", "descriptors_min"),
        ):
            if getattr(self, smaller) > getattr(self, larger):
                raise ValueError(f"{smaller} must not exceed {larger}")
        return self

    @property
    def disk_limits(self) -> DiskLimits:
        """Levels from which a disk counts as filling up or full. Room is asked for before new
        replicas are refused."""
        return DiskLimits(
            self.disk_read_only_percent,
            self.disk_full_percent,
            int(self.disk_free_bytes_min),
            min(self.disk_reclaim_percent, self.disk_read_only_percent),
        )

    def check_addresses(self) -> None:
        """Raises ConfigurationError when an address is malformed or unsafe to listen on."""
        for address in self.coordinator.split(","):
            check_told("coordinator", address.strip().removeprefix(NATIVE))
        for address in filter(None, (self.listen, self.native_bind, self.metrics_listen)):
            check_listen(address, insecure_bind=self.insecure_bind)
        self._check_told("advertise", self.listen, self.advertise)
        if self.native_bind:
            host = self.advertise or self.native_bind
            self._check_told("native_advertise", host, self.native_advertise)

    @staticmethod
    def _check_told(name: str, listen: str, advertised: str) -> None:
        """Others are told a host that they can connect to, said or taken from where we listen."""
        if advertised:
            check_told(name, advertised)
        elif is_wildcard(split_address(listen)[0]):
            raise ConfigurationError(
                f"others can't connect to {listen}: say at which address they reach this node, "
                f"with --{name.replace('_', '-')} HOST:PORT"
            )

    @property
    def native_bind(self) -> str:
        """``host:port`` to listen on natively; empty = not at all."""
        if self.transport == "grpc":
            return ""
        if self.native_listen == "auto":
            return f"{_host(self.listen)}:0"
        return self.native_listen

    def native_reached(self, bound: str) -> str:
        """Return the address for native connections to this node, when it listens on ``bound``."""
        if self.native_advertise or not self.advertise:
            return self.native_advertise or bound
        return f"{_host(self.advertise)}:{bound.rpartition(':')[2]}"


def _host(address: str) -> str:
    """With the brackets, if it has any."""
    return address.rpartition(":")[0]
