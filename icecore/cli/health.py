"""``icecore cluster health``: one verdict on a cluster, with its reasons, by node and partition.

- HEALTHY (exit status 0): every partition has a leader and all of its copies; all nodes are up.
- DEGRADED (10): all records can be written and read, but copies, nodes or disks are missing, a
  limit is nearly reached, object storage fails, or something waits for a person.
- UNAVAILABLE (20): some partition refuses records of ``acks=all``, or nobody answers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from icecore.cli.output import Output, counted
from icecore.cli.records.times import duration, iso_time
from icecore.cli.session import CommandSession, session_of
from icecore.client.cluster_types import ClusterDescription, NodeDescription
from icecore.client.types import PartitionDescription, TopicDescription, TopicTiering
from icecore.errors import NotCoordinatorError, RequestTimeoutError, UnavailableError
from icecore.model import NodeState, SegmentState

EXIT_DEGRADED, EXIT_UNAVAILABLE = 10, 20
BACKUP_AGE_MAX_DAYS = 7
TIERING_LAG_MAX_MS = 60_000
_ERROR_SHOWN = 200
"""Characters of an error of an object store, which may be a page."""
_POLL_S = 1.0
_NAMED = 3
"""Partitions that a line for people names."""
_SHOWN = 20
"""So many reasons are printed for people; JSON has them all."""


class HealthVerdict(StrEnum):
    """From best to worst."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


STATUS = {
    HealthVerdict.HEALTHY: 0,
    HealthVerdict.DEGRADED: EXIT_DEGRADED,
    HealthVerdict.UNAVAILABLE: EXIT_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Reason:
    """The reasons for which a cluster is not healthy."""

    verdict: HealthVerdict
    what: str
    topic: str = ""
    partition: int | None = None
    node_id: int | None = None
    help: str = ""
    """Advice for a person; empty where it depends on more."""

    @property
    def where(self) -> str:
        """``flights/3``, ``node 2`` or ``cluster``."""
        if self.topic:
            return f"{self.topic}/{self.partition}"
        return "cluster" if self.node_id is None else f"node {self.node_id}"


@dataclass(frozen=True, slots=True)
class Health:
    """Problems of the cluster, worst first."""

    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> HealthVerdict:
        """The worst of all reasons."""
        worst = [each for each in HealthVerdict if any(each == r.verdict for r in self.reasons)]
        return worst[-1] if worst else HealthVerdict.HEALTHY


def judge(
    cluster: ClusterDescription,
    topics: Sequence[TopicDescription],
    tiering: Sequence[TopicTiering] = (),
) -> Health:
    """The health of what the coordinator described."""
    found = [*_of_nodes(cluster)]
    for topic in topics:
        for partition in topic.partitions:
            found += _of_partition(topic, partition)
    for limit in cluster.limits:
        if limit.way_out:
            name = limit.name.replace("_", " ")
            text = f"{limit.used} of {limit.most} {name} are used: {limit.way_out}"
            found.append(Reason(HealthVerdict.DEGRADED, text))
    found += _of_backup(cluster, time.time())
    found += _of_tiering(tiering)
    for alert in cluster.alerts:
        what = f"segment {alert.segment_id} waits for" if alert.segment_id else "it waits for"
        text = f"{what} a person: {alert.why}"
        found.append(Reason(HealthVerdict.DEGRADED, text))
    found.sort(key=lambda each: each.verdict != HealthVerdict.UNAVAILABLE)
    return Health(tuple(found))


def _of_backup(cluster: ClusterDescription, now_s: float) -> Iterator[Reason]:
    """A cluster that was backed up before is to be backed up again; others are left alone."""
    age_days = (now_s - cluster.backup_at_ms / 1000) / 86_400
    if cluster.backup_at_ms and age_days > BACKUP_AGE_MAX_DAYS:
        yield Reason(
            HealthVerdict.DEGRADED,
            f"the last backup of the metadata is {age_days:.0f} days old: icecore cluster backup "
            "FILE",
        )


def _of_tiering(topics: Sequence[TopicTiering]) -> Iterator[Reason]:
    """Failures that pass by themselves are none; records wait on the nodes' disks meanwhile."""
    late = [each for each in topics if each.last_error and each.lag_ms > TIERING_LAG_MAX_MS]
    if not late:
        return
    worst = max(late, key=lambda each: each.lag_ms)
    text = (
        f"object storage fails: {counted(len(late), 'topic')} up to {duration(worst.lag_ms)} behind"
        f", {worst.name} most: {worst.last_error[:_ERROR_SHOWN]}"
    )
    yield Reason(HealthVerdict.DEGRADED, text, help="icecore tier status says more")


def _of_nodes(cluster: ClusterDescription) -> Iterator[Reason]:
    if not any(each.node.state.name == "UP" for each in cluster.nodes):
        yield Reason(HealthVerdict.UNAVAILABLE, "no node is up")
    for each in sorted(cluster.nodes, key=lambda one: one.node.node_id):
        yield from _of_node(each)


def _of_node(each: NodeDescription) -> Iterator[Reason]:
    number = each.node.node_id
    if each.is_drained and each.node.state is NodeState.DOWN:
        return  # as a person wants it: nobody waits for such a node
    if (state := each.node.state.name.lower()) != "up":
        text, is_down = f"it is {state.replace('_', ' ')}", each.node.state is NodeState.DOWN
        if is_down and each.down_since_ms:
            text = f"{text} since {iso_time(each.down_since_ms)}"
        help_ = f"start it; if it is gone for good: icecore node remove {number} --disk-gone"
        yield Reason(HealthVerdict.DEGRADED, text, node_id=number, help=help_ if is_down else "")
    for disk in each.disks:
        if disk.problem:
            text = f"disk {disk.path}: {disk.problem}"
            help_ = (
                "bring the disk back and start the node again; if it is gone for good, stop the "
                "node and give the disk up: icecore-node forget-disk"
            )
            yield Reason(HealthVerdict.DEGRADED, text, node_id=number, help=help_)


def _of_partition(topic: TopicDescription, each: PartitionDescription) -> Iterator[Reason]:
    def reason(verdict: HealthVerdict, what: str) -> Reason:
        return Reason(verdict, what, topic.name, each.partition)

    tail = each.tail
    if tail is None or not tail.leader or tail.state is not SegmentState.ACTIVE:
        yield reason(HealthVerdict.UNAVAILABLE, "it has no leader")
    elif len(tail.isr) < tail.settings.min_insync_replicas:
        needed, there = tail.settings.min_insync_replicas, len(tail.isr)
        yield reason(HealthVerdict.UNAVAILABLE, f"{there} of {needed} replicas needed are in sync")
    elif len(tail.isr) < tail.settings.replication_factor:
        wanted, there = tail.settings.replication_factor, len(tail.isr)
        yield reason(HealthVerdict.DEGRADED, f"{there} of {wanted} replicas are in sync")
    if missing := each.under_replicated_segments:
        yield reason(HealthVerdict.DEGRADED, f"{counted(missing, 'segment')} with copies missing")


def _look(session: CommandSession) -> tuple[Health, dict[str, Any]]:
    """The health, and the cluster in numbers; what can't be reached is UNAVAILABLE."""
    try:
        described = session.admin(_ask)
    except (UnavailableError, RequestTimeoutError) as error:
        return _nobody(f"no coordinator answers: {error.message}")
    except NotCoordinatorError as error:  # standbys answer, and none of them can act
        return _nobody(f"no coordinator acts: {error.message}")
    cluster, nodes = described[0], [each.node.state.name == "UP" for each in described[0].nodes]
    numbers = {
        "nodes": len(nodes),
        "nodes_up": sum(nodes),
        "topics": cluster.topics,
        "partitions": cluster.partitions,
        "segments": cluster.segments,
        "under_replicated_segments": cluster.under_replicated,
        "offline_partitions": cluster.offline_partitions,
    }
    return judge(*described), numbers


def _nobody(why: str) -> tuple[Health, dict[str, Any]]:
    return Health((Reason(HealthVerdict.UNAVAILABLE, why),)), {}


async def _ask(
    admin: Any,
) -> tuple[ClusterDescription, list[TopicDescription], Sequence[TopicTiering]]:
    tiering = await admin.describe_tiering()
    return await admin.describe_cluster(), await admin.describe_topics(), tiering.topics


def health(
    context: typer.Context,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print it again whenever it changes, until Ctrl-C.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait so long until it is healthy.", show_default=False
        ),
    ] = 0,
) -> None:
    """Say whether the cluster is healthy, and if not, why.

    Ends with status 0 when it is healthy, 10 when it is degraded (copies, nodes or disks are
    missing, or object storage fails for a minute), 20 when it is unavailable (records are
    refused, or nobody answers).
    """
    session = session_of(context)
    if watch and wait:
        raise typer.BadParameter(
            "ends, and --watch does not: give one of them", param_hint="--wait"
        )
    if watch:
        _watch(session.output, lambda: _look(session))
    found, numbers = _wait(lambda: _look(session), wait)
    _show(session.output, found, numbers)
    raise typer.Exit(STATUS[found.verdict])


_Look = Callable[[], tuple[Health, dict[str, Any]]]


def _wait(look: _Look, within_s: float) -> tuple[Health, dict[str, Any]]:
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        left_s = deadline - time.monotonic()
        if found[0].verdict is HealthVerdict.HEALTHY or left_s <= 0:
            return found
        time.sleep(min(_POLL_S, left_s))


def _watch(output: Output, look: _Look) -> None:
    """Until it is interrupted, which is how it ends."""
    before: Health | None = None
    status = 0
    try:
        while True:
            found, numbers = look()
            if found != before:
                _show(output, found, numbers, is_line=True)
                before, status = found, STATUS[found.verdict]
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise typer.Exit(status) from None


def _show(output: Output, found: Health, numbers: dict[str, Any], *, is_line: bool = False) -> None:
    if output.is_json:
        reasons = [{"where": each.where, **asdict(each)} for each in found.reasons]
        fields = {"verdict": found.verdict.value, **numbers, "reasons": reasons}
        (output.line if is_line else output.json)(fields)
        return
    output.verdict(found.verdict.value.upper(), _summary(numbers), STATUS[found.verdict])
    lines = list(causes(found.reasons))
    for line in lines[:_SHOWN]:
        typer.echo(f"  {line}")
    if (more := len(lines) - _SHOWN) > 0:
        typer.echo(f"  and {more} more: --json has them all")


def causes(reasons: Sequence[Reason]) -> Iterator[str]:
    """One line for each cause: partitions that suffer alike share it, and what helps follows."""
    alike: dict[tuple[HealthVerdict, str, str], list[str]] = {}
    for each in reasons:
        place = "" if each.topic else each.where
        alike.setdefault((each.verdict, each.what, place), []).append(each.where)
    helps = {each.what + each.where: each.help for each in reasons if each.help}
    for (_, what, place), where in alike.items():
        names = ", ".join(where[:_NAMED])
        if len(where) > _NAMED:
            names = f"{counted(len(where), 'partition')} ({names}, …)"
        help_ = helps.get(what + place, "")
        yield f"{names}: {what}" + (f"; {help_}" if help_ else "")


def _summary(numbers: dict[str, Any]) -> str:
    if not numbers:
        return ""
    return (
        f"{numbers['nodes_up']} of {counted(numbers['nodes'], 'node')} up, "
        f"{counted(numbers['topics'], 'topic')}, {counted(numbers['partitions'], 'partition')}"
    )
