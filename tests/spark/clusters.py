"""Clusters beside a real Spark that have an object store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icecore.dev import LocalCluster
from tests.support.clusters import running

PATTERN = "bucket [1]{a,b}"
"""A folder's name that Spark could take for a pattern."""


@contextmanager
def with_bucket(
    folder: Path, nodes: int, *, is_link: bool = False, **settings: Any
) -> Iterator[LocalCluster]:
    """A cluster whose bucket is a folder of that name.

    Args:
        folder: Where both are made.
        nodes: How many.
        is_link: The name is a link to ``bucket``, for tests that open the bucket by that as well:
            Delta's library and Spark can't open the other one by themselves.
        settings: More arguments of the cluster.
    """
    bucket = folder / PATTERN
    if is_link:
        (folder / "bucket").mkdir()
        bucket.symlink_to(folder / "bucket")
    else:
        bucket.mkdir()
    made = LocalCluster(folder / "c", nodes, tier_url=bucket.as_uri(), **settings)
    with running(made) as started:
        yield started


def plain_url(cluster: LocalCluster) -> str:
    """The folder that the link of a cluster's bucket leads to."""
    return (cluster.folder.parent / "bucket").as_uri()
