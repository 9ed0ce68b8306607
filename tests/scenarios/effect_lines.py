"""One line for each effect of the cores: what it is, without its type and field names."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from icecore_replication import effects as out


def nodes(node_ids: Iterable[int]) -> str:
    """``(1, 2)``."""
    return f"({', '.join(map(str, node_ids))})"


def _failed(effect: out.FailProduce) -> str:
    error = effect.error
    kind = "indeterminate" if error.indeterminate else "definite"
    return f"fail request {effect.request_id}: {error.reason}, {kind}"


def _completed(effect: out.CompleteProduce) -> str:
    duplicate = ", a duplicate" if effect.duplicate else ""
    return (
        f"answer request {effect.request_id}: offset {effect.base_offset}, "
        f"durable copies {effect.durable_copies}{duplicate}"
    )


_LINES: Mapping[type, Callable[[Any], str]] = {
    out.Append: lambda effect: (
        f"append [{effect.base_offset}, {effect.end_offset}) for request {effect.request_id}"
    ),
    out.CompleteProduce: _completed,
    out.FailProduce: _failed,
    out.AdvanceHighWatermark: lambda effect: f"high watermark {effect.high_watermark}",
    out.ProposeIsr: lambda effect: f"propose isr {nodes(effect.isr)} at version {effect.version}",
    out.PrepareSuccessor: lambda effect: f"ask for a successor: {effect.why}",
    out.CollectSealDigests: lambda effect: (
        f"ask {nodes(effect.nodes)} for digests at {effect.end_offset}"
    ),
    out.SendSeal: lambda effect: (
        f"send the seal: end {effect.end_offset}, replicas {nodes(effect.replicas)}, "
        f"successor {effect.successor_segment_id}"
    ),
    out.ReportDivergence: lambda effect: (
        f"call a person: {nodes(effect.nodes)} differ at {effect.end_offset}"
    ),
    out.RequestRecovery: lambda effect: f"ask for recovery: {effect.why}",
    out.StepDown: lambda effect: f"step down: {effect.why}",
    out.AppendReplica: lambda effect: f"append [{effect.base_offset}, {effect.end_offset})",
    out.DiscardReplica: lambda _: "append nothing of it",
    out.ReportProgress: lambda effect: (
        f"{'attach at' if effect.attach else 'report durable to'} {effect.durable_end_offset}"
    ),
    out.Quarantine: lambda effect: f"quarantine: {effect.why}",
    out.StopFollowing: lambda effect: f"stop following: {effect.why}",
}


def line(effect: object) -> str:
    """Return the line that shows an effect in a scenario file."""
    return _LINES[effect.__class__](effect)
