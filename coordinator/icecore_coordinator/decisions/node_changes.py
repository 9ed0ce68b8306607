"""Decisions about nodes: hand out an incarnation, activate it, judge what its disk holds. Pure.

A registration is refused by ``check_registration``, ``check_number``, ``register`` and
``check_heard_revision``, a heartbeat stream by ``check_stream``; ``disk_changes.py`` refuses a disk
that would cost last copies. Three functions say what is not trusted: ``register`` of a whole disk
(R45, R58), ``shrunk_logs`` of a log (R59), ``lost_copies`` of a sealed copy.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from icecore.errors import (
    InvalidRequestError,
    SupersededError,
    UnavailableError,
    WrongClusterError,
)
from icecore.model import Incarnation, NodeId, Segment, SegmentId, SegmentState
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    NUMBER_JUMP_MAX,
    Change,
    CounterRecord,
    NodeRecord,
    SegmentRecord,
    is_prepared,
    updated,
    updated_segment,
)

INCARNATIONS = "incarnation"
"""Counter: an id without a record was never given its next value, nor a higher one (R106)."""
NODE_ID_MAX = 99_999_999
"""As many digits as the metadata store's keys have."""
TEXT_MAX = 255
DISK_ID_BYTES_MAX = 64
TIER_URL_MAX = 1_024
STREAM_PROOF_VERSION = 4
"""From this protocol version on a node's heartbeats carry its disk id."""
REVISION_JUMP_MAX = 1 << 40
"""Largest accepted lead of a revision that a node heard of: centuries of changes."""


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """One entry of a node's inventory."""

    segment_id: SegmentId
    durable_end_offset: int
    is_sealed: bool
    is_intact: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """A starting node's request to register."""

    cluster_id: bytes
    node_id: NodeId
    disk_id: bytes
    incarnation: Incarnation
    """The last incarnation that the node's folder persisted; 0 on first start."""
    address: str
    rack: str
    disk_counter: int = 0
    """The disk counter in the node's folder."""
    native_address: str = ""
    """Empty for a node that speaks gRPC only."""
    protocol_version: int = 0
    tier_url: str = ""
    """URL of the node's object store; empty = it has none."""
    host: str = ""
    """Name of its machine; empty = of one that no other node is on."""


def check_registration(asked: Registration) -> None:
    """Raises InvalidRequestError for what no node says: it would go into logs, into metadata that
    every client gets, and into calls to whatever address it names."""
    for address in (asked.address, asked.native_address or asked.address):
        if not _is_address(address):
            raise InvalidRequestError(f"address {address[:TEXT_MAX]!r} is not host:port")
    for name in ("rack", "host"):
        if not _is_plain(text := getattr(asked, name)):
            raise InvalidRequestError(
                f"{name} {text[:TEXT_MAX]!r}: at most {TEXT_MAX} printable characters"
            )
    if len(asked.tier_url) > TIER_URL_MAX or not asked.tier_url.isprintable():
        raise InvalidRequestError(
            f"tier_url {asked.tier_url[:TEXT_MAX]!r}: at most {TIER_URL_MAX} printable characters"
        )
    if len(asked.disk_id) > DISK_ID_BYTES_MAX:
        raise InvalidRequestError(f"a disk id has at most {DISK_ID_BYTES_MAX} bytes")
    if asked.node_id > NODE_ID_MAX:
        raise InvalidRequestError(f"node id {asked.node_id} is above {NODE_ID_MAX}")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536
    return bool(host) and is_port and _is_plain(text) and " " not in text


def _is_plain(text: str) -> bool:
    return len(text) <= TEXT_MAX and text.isprintable()


def register(
    state: ClusterState, live: Liveness, asked: Registration, disk_counter: int = 0
) -> tuple[Change, bool]:
    """Hand out the next incarnation; nothing else changes until the first heartbeat.

    A node that is not known gets no record before it has proved that it is one (R107). Its
    incarnation comes from a counter: whatever becomes of it, nobody gets that one again.

    Args:
        state: The cluster.
        live: Who is connected now.
        asked: By whom.
        disk_counter: The highest one that this node ever sent a heartbeat with.

    Returns:
        The change, of which ``issued_by`` knows the incarnation, and whether the folder is older
        than one that was known before (R45, R58): then nothing on it counts.

    Raises:
        WrongClusterError: the folder is of another cluster, or another live process has this id.
        InvalidRequestError: no id, no address.
    """
    if asked.cluster_id and asked.cluster_id != state.cluster_id:
        raise WrongClusterError(
            f"the data folder belongs to cluster {asked.cluster_id.hex()}, this is "
            f"{state.cluster_id.hex()}: give the node its own coordinator, or an empty data folder"
        )
    if asked.node_id < 1 or not asked.address or not asked.disk_id:
        raise InvalidRequestError("a node needs an id of at least 1, an address and a disk id")
    known = state.nodes.get(asked.node_id)
    if known is None:
        counter = next_of(state, INCARNATIONS)
        return Change((updated(counter, next_value=counter.next_value + 1),)), asked.incarnation > 0
    is_same_disk = known.disk_id == asked.disk_id
    if not is_same_disk and known.incarnation and live.of(asked.node_id).is_connected:
        raise WrongClusterError(
            f"node id {asked.node_id} is in use by a live process at {known.address}"
        )
    check_number("incarnation", asked.incarnation, known.issued_incarnation)
    is_unknown = known.incarnation > 0 and (
        not is_same_disk
        or asked.incarnation < known.incarnation
        or asked.disk_counter < disk_counter
    )
    persisted = asked.incarnation if is_same_disk else 0
    issued = updated(known, issued_incarnation=max(known.issued_incarnation, persisted) + 1)
    return Change((issued,)), is_unknown


def issued_by(change: Change) -> Incarnation:
    """Return the incarnation that a registration has handed out."""
    [record] = change.puts
    if isinstance(record, NodeRecord):
        return record.issued_incarnation
    assert isinstance(record, CounterRecord)
    return Incarnation(record.next_value - 1)


def check_number(name: str, told: int, known: int) -> None:
    """Raises InvalidRequestError for a number that only grows and can't have come so far (R65): it
    would be stored, and whoever really has that node could never reach it."""
    if told > known + NUMBER_JUMP_MAX:
        raise InvalidRequestError(f"{name} {told} is too far beyond {known}, the highest one known")


@dataclass(frozen=True, slots=True)
class HeardRevision:
    """The newest revision of the metadata that a node says it heard of."""

    node_id: NodeId
    disk_id: bytes
    revision: int


def is_known_disk(state: ClusterState, told: HeardRevision, *, is_new_cluster: bool) -> bool:
    """Return whether a node proves who it is: no client can ask for the id of a disk. One word of a
    stranger must not end a coordinator. Anybody can register a new node with a disk id of his own;
    but no segment opens on it unless it answers the order to open. Metadata without a segment give
    nothing to lose by a stranger, and may be a copy of before the first topic: so any node counts
    there, unless a person has said that this ``is_new_cluster``."""
    known = state.nodes.get(told.node_id)
    if known is None or known.disk_id != told.disk_id:
        return False
    if not state.segments:
        return not is_new_cluster
    listed = (state.segments[each] for each in state.segments_of_node.get(told.node_id, ()))
    return not all(map(is_prepared, listed))


def check_stream(
    state: ClusterState, node_id: NodeId, disk_id: bytes, asked: Registration | None
) -> None:
    """Compare the disk id in a stream's first heartbeat with that of the node's process (R104).

    Args:
        state: The cluster.
        node_id: In whose name the heartbeats come.
        disk_id: The one that they carry; empty = none, as of processes of before there was one.
        asked: The registration that this stream is to activate; None = it is active already.

    Raises InvalidRequestError when they come from another process.
    """
    known = asked or state.nodes.get(node_id)
    if known is None or disk_id == known.disk_id:
        return
    if disk_id or known.protocol_version >= STREAM_PROOF_VERSION:
        raise InvalidRequestError(
            f"heartbeats in the name of node {node_id} do not come from its disk. They were "
            "refused, and the node itself goes on. Look who sends them to the coordinator"
        )


def check_heard_revision(state: ClusterState, told: HeardRevision) -> None:
    """Compare the metadata with the newest that a node heard of (R94).

    Raises:
        UnavailableError: The node heard of a later state of this cluster's metadata. This
            store is an older copy, so what it does not know of may be acknowledged records.
        InvalidRequestError: No store can have been changed so often.
    """
    node_id, heard = told.node_id, told.revision
    known = state.metadata_revision
    if heard > known + REVISION_JUMP_MAX:
        raise InvalidRequestError(f"node {node_id}: no metadata store has revision {heard}")
    if heard > known:
        raise UnavailableError(
            f"the metadata store is an older copy: it has revision {known}, node {node_id} heard "
            f"of {heard}. Nothing was ordered. Stop the coordinator, put its newest data folder "
            "back, and start it; the nodes go on serving meanwhile. If the newest one is lost: "
            "icecore cluster adopt"
        )


def check_blank(
    state: ClusterState, cluster_id: bytes, node_id: NodeId, *, is_new_cluster: bool
) -> None:
    """An empty metadata store does not become a new cluster where nodes of another one call: it may
    be the store of that cluster that is lost.

    Raises:
        UnavailableError: A node of another cluster calls, and no node ever came to this one.
    """
    if is_new_cluster or state.nodes or state.topics or cluster_id in (b"", state.cluster_id):
        return
    raise UnavailableError(
        f"the metadata store is empty, and node {node_id} of cluster {cluster_id.hex()} calls. "
        "Nothing was ordered. Stop the coordinator, put the newest data folder of that cluster "
        "back, and start it; the nodes go on serving meanwhile. If it is lost: icecore cluster "
        "adopt. If this is to be a new cluster: start it with --new-cluster"
    )


def unborn_segments(state: ClusterState, told: Collection[SegmentId]) -> list[SegmentId]:
    """Segments that a node speaks of and that this metadata store has not given out yet.

    Ids are never used twice. So either the store was put back from an old copy, and knows nothing
    of what was acknowledged since, or somebody forged an Open: a person must look.
    """
    next_id = next_of(state, "segment_id").next_value
    return [each for each in told if each >= next_id]


def activate(state: ClusterState, asked: Registration, incarnation: Incarnation) -> Change:
    """Make an issued incarnation the registered one, with the address and disk it came with. A
    node that is not known gets its record by this.

    Raises SupersededError when a newer incarnation was handed out or registered since.
    """
    known = state.nodes.get(asked.node_id)
    if known is None:
        known = NodeRecord(
            asked.node_id, asked.disk_id, asked.address, issued_incarnation=incarnation
        )
    if incarnation != known.issued_incarnation or incarnation < known.incarnation:
        raise SupersededError(
            f"incarnation {incarnation} of node {asked.node_id} is not the newest"
        )
    if incarnation == known.incarnation:
        return Change()
    return Change(
        (
            updated(
                known,
                incarnation=incarnation,
                disk_id=asked.disk_id,
                address=asked.address,
                rack=asked.rack,
                host=asked.host,
                native_address=asked.native_address,
                protocol_version=asked.protocol_version,
                tier_url=asked.tier_url,
                is_disk_accepted=False,
            ),
        )
    )


def shrunk_logs(
    state: ClusterState,
    node_id: NodeId,
    held: dict[SegmentId, HeldReplica],
    ends: dict[SegmentId, int],
) -> list[SegmentId]:
    """Unsealed segments of which the node's log was longer once, durably (R59).

    Args:
        state: The cluster.
        node_id: Whose.
        held: What it says that it has now.
        ends: By segment, the farthest durable end that it ever told.
    """
    shrunk = []
    for segment_id, end_offset in ends.items():
        copy, record = held.get(segment_id), state.segments.get(segment_id)
        if copy is None or record is None or node_id not in record.segment.replicas:
            continue
        is_open = record.segment.state in (SegmentState.ACTIVE, SegmentState.RECOVERING)
        if is_open and copy.is_intact and copy.durable_end_offset < end_offset:
            shrunk.append(segment_id)
    return shrunk


def lost_copies(
    state: ClusterState,
    node_id: NodeId,
    held: dict[SegmentId, HeldReplica],
    *,
    is_disk_unknown: bool,
) -> list[SegmentId]:
    """Sealed segments whose copy the node is listed for and does not provably hold."""
    lost = []
    for segment_id in state.segments_of_node.get(node_id, ()):
        segment = state.segments[segment_id].segment
        if segment.state != SegmentState.SEALED:
            continue
        copy = held.get(segment_id)
        is_whole = copy is not None and copy.is_intact
        is_whole = is_whole and copy is not None and copy.durable_end_offset >= segment.end_offset
        if is_disk_unknown or not is_whole:
            lost.append(segment_id)
    return lost


def holds_nothing(held: Mapping[SegmentId, HeldReplica], segment: Segment) -> bool:
    """Return whether an inventory shows that its node has no byte of a segment. A copy that is not
    intact may be on a disk that is away."""
    copy = held.get(segment.segment_id)
    return copy is None or (copy.is_intact and copy.durable_end_offset <= segment.base_offset)


def deletions_confirmed(
    state: ClusterState, node_id: NodeId, held: dict[SegmentId, HeldReplica]
) -> list[SegmentId]:
    """Segments whose bytes the node was meant to remove and has no more: deleted ones, and those
    of which there are enough copies elsewhere."""
    deleted = (
        segment_id
        for segment_id in state.deleted_held
        if node_id in state.deleted[segment_id].holders
    )
    dropped = (
        segment_id
        for segment_id in state.dropping
        if node_id in state.segments[segment_id].segment.surplus
    )
    return [each for each in dict.fromkeys(chain(deleted, dropped)) if each not in held]


def unknown_copies(
    state: ClusterState, node_id: NodeId, held: dict[SegmentId, HeldReplica]
) -> list[SegmentId]:
    """Sealed segments of which the node has bytes that nobody knows of: a recovery or a repair
    asked it for a copy, and never heard that there is one."""
    found = []
    for segment_id in held:
        record = state.segments.get(segment_id)
        if record is not None and _is_unknown_holder(record, node_id):
            found.append(segment_id)
    return found


def note_holder(state: ClusterState, segment_id: SegmentId, node_id: NodeId) -> Change:
    """The node has bytes of this segment: it is told of it, and may be told to drop them (R93)."""
    record = state.segments.get(segment_id)
    if record is None or not _is_unknown_holder(record, node_id):
        return Change()
    return Change((updated_segment(record, {}, holders=(*record.holders, node_id)),))


def _is_unknown_holder(record: SegmentRecord, node_id: NodeId) -> bool:
    """Return whether a sealed segment's record lacks the node as a holder. Segments that lie in
    object storage alone do not count: all their bytes on nodes are deleted in another way."""
    segment = record.segment
    is_kept = segment.state == SegmentState.SEALED and bool(segment.replicas)
    return is_kept and node_id not in record.holders


def confirm_deletion(
    state: ClusterState, segment_id: SegmentId, node_ids: Sequence[NodeId]
) -> Change:
    """These nodes have said, or shown by an inventory, that the bytes of a deleted segment, or of
    a copy too many, are gone."""
    change, record = _note_dropped(state, segment_id, node_ids), state.deleted.get(segment_id)
    if record is None or not any(each in record.holders for each in node_ids):
        return change
    holders = tuple(each for each in record.holders if each not in node_ids)
    return change + Change((updated(record, holders=holders),))


def _note_dropped(state: ClusterState, segment_id: SegmentId, node_ids: Sequence[NodeId]) -> Change:
    """These nodes have dropped their copy of a segment that stays (R93)."""
    record = state.segments.get(segment_id)
    if record is None or not any(each in record.segment.surplus for each in node_ids):
        return Change()
    gone = [each for each in record.segment.surplus if each in node_ids]
    left = tuple(each for each in record.segment.surplus if each not in gone)
    holders = tuple(each for each in record.holders if each not in gone)
    return Change((updated_segment(record, {"surplus": left}, holders=holders),))
