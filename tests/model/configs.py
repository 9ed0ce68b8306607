"""The named configurations: what is pinned in the segment, which actions exist, how many faults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """One bounded world. All of it is explored."""

    name: str
    nodes: int = 3
    """Replicas the segment opened with."""
    replication_factor: int = 3
    min_insync_replicas: int = 2
    records: int = 1
    crashes: int = 1
    losses: int = 0
    """Number of crashes that may also destroy the disk."""
    rebuild: bool = False
    """A replica that lost its data may copy the log again and be certified by the leader."""
    synced: bool = True
    """False = appends count as durable before they are synced (flush_mode async, memory)."""
    restart_empty: bool = False
    """The coordinator may give up a segment of which every copy is UNKNOWN (R82)."""
    isr_changes: bool = True
    live_seal: bool = False
    altered_to: int = 0
    """An admin may raise the topic's min_insync_replicas to this while the segment is active."""


QUORUM_M2 = Config("quorum m=2")
QUORUM_M1 = Config("quorum m=1", min_insync_replicas=1)

CONFIGS: tuple[Config, ...] = (
    QUORUM_M2,
    QUORUM_M1,
    Config("2 records, m=2", records=2),
    Config(
        "2 records, both seals, m=1", records=2, min_insync_replicas=1, live_seal=True, crashes=0
    ),
    Config("2 records, m=1, 2 replicas", nodes=2, records=2, min_insync_replicas=1, live_seal=True),
    Config("live and recovery seal, m=2", live_seal=True),
    Config("live and recovery seal, m=1", live_seal=True, min_insync_replicas=1),
    Config("2 crashes, m=2", crashes=2),
    Config("disk loss, both seals, m=2", losses=1, live_seal=True),
    Config("disk loss, both seals, m=1", losses=1, live_seal=True, min_insync_replicas=1),
    Config("disk loss and rebuild, m=2", crashes=2, losses=1, rebuild=True),
    Config("disk loss and rebuild, m=1", losses=1, rebuild=True, min_insync_replicas=1),
    Config("settings changed, m=1 to 2", min_insync_replicas=1, altered_to=2),
    Config("opened with 3 of RF 5, m=2", replication_factor=5),
    Config("opened with 2 of RF 3, m=1", nodes=2, min_insync_replicas=1, crashes=2, live_seal=True),
    Config("not-synced replicas, m=2", synced=False, rebuild=True, crashes=2),
    Config("not-synced, both seals, m=2", synced=False, live_seal=True),
    Config(
        "not-synced, 2 replicas, may restart",
        nodes=2,
        min_insync_replicas=1,
        synced=False,
        restart_empty=True,
        live_seal=True,
        crashes=2,
    ),
    Config(
        "not-synced, all lost, may restart",
        synced=False,
        restart_empty=True,
        isr_changes=False,
        crashes=3,
    ),
)
