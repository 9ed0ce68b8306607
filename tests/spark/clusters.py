"""Clusters beside a real Spark that have an object store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icecore.dev import LocalCluster
from tests.support.clusters import running


@contextmanager
def with_bucket(folder: Path, nodes: int, **settings: Any) -> Iterator[LocalCluster]:
    """A cluster whose bucket is a folder with a name that Spark could take for a pattern."""
    bucket = folder / "bucket [1]{a,b}"
    bucket.mkdir()
    made = LocalCluster(folder / "c", nodes, tier_url=bucket.as_uri(), **settings)
    with running(made) as started:
        yield started
