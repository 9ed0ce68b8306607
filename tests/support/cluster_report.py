"""The state of a cluster when a test fails: its servers' folders are gone before anybody looks."""

from collections.abc import Iterator

from icecore.blocking import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import SegmentState
from tests.support.server_logs import warned_by_servers

_ANSWER_WITHIN_S = 5.0
_LINES_MAX = 40
"""The last ones of a server."""


def report(cluster: LocalCluster) -> str:
    """Segments that are not sealed, and the last warnings of each server; never raises."""
    lines = [f"running: {sorted(cluster.pids)}", *_segments(cluster)]
    for name, warned in warned_by_servers(cluster.folder):
        lines += [f"-- {name}: {len(warned)} warnings", *warned[-_LINES_MAX:]]
    return "\n".join(lines)


def _segments(cluster: LocalCluster) -> Iterator[str]:
    try:
        with Admin(cluster.bootstrap, timeout_s=_ANSWER_WITHIN_S) as admin:
            for topic in admin.describe_topics():
                for each in admin.list_segments(topic.name):
                    if each.state is not SegmentState.SEALED:
                        yield f"{topic.name}: {each}"
    except (IcecoreError, OSError, TimeoutError) as error:
        yield f"its segments are not known: {error}"
