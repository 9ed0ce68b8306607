"""Settings of a coordinator process, checked once at its edge."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from icecore.process.settings import Settings
from icecore.process.system import DESCRIPTORS_MIN


class CoordinatorSettings(Settings):
    """icecore coordinator: places segments, seals, recovers."""

    section: ClassVar[str] = "coordinator"

    data: str = Field(description="folder of the metadata store")
    listen: str = Field("127.0.0.1:7400", description="address to serve on")
    native_listen: str = Field(
        "", description="address to serve on for native:// bootstraps; empty = gRPC only"
    )
    insecure_bind: bool = Field(False, description="allow other machines to connect without TLS")
    descriptors_min: int = Field(
        DESCRIPTORS_MIN, ge=64, description="least limit of open files (hard) to start with"
    )
    heartbeat_ms: int = Field(500, ge=10, description="interval of nodes' heartbeats")
    lease_ms: int = Field(6_000, ge=100, description="how long a silent node stays up")
    recovery_wait_ms: int = Field(
        1_000, ge=10, description="how long a recovery waits for replicas it could do without"
    )
    lost_replica_grace_ms: int = Field(
        1_200_000, ge=0, description="how long a copy on a node that is down still counts"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="what to log: DEBUG, INFO, WARNING or ERROR"
    )


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
