"""One set of short waits for tests with real processes.

Servers take them from the environment, so every process of a test gets them: those of
``LocalCluster``, of ``icecore dev``, and of what a document types. Safety depends on none of them;
they only decide how long a test waits until a cluster tiers, rolls, repairs or retries.

A test with the marker ``default_timing`` runs with the product's defaults instead, as do clusters
that it starts itself. One test of each kind does, so that the defaults stay proved.
"""

from collections.abc import Iterator, Mapping

import pytest

FAST: Mapping[str, str] = {
    f"ICECORE_{section}__TIMING__{name}": str(ms)
    for section, waits in {
        "COORDINATOR": {
            "AUDIT_MS": 100,
            "LOOK_MS": 100,
            "LOCAL_LOOK_MS": 200,
            "ROLL_UP_WAIT_MS": 500,
            "RETURN_WAIT_MS": 500,
            "ROLL_RETRY_MS": 2_000,
            "REPLACE_RETRY_MS": 500,
            "RETRY_MS": 100,
            "RETRY_MAX_MS": 500,
            "UPLOAD_RETRY_MS": 100,
            "UPLOAD_NODE_RETRY_MS": 100,
            "TABLE_RETRY_MS": 100,
            "SWEEP_RETRY_MS": 100,
        },
        "NODE": {
            "DIGEST_CALM_MS": 100,
            "DIGEST_RETRY_MS": 100,
            "DISK_LOOK_MS": 200,
            "SPACE_RETRY_MS": 100,
            "DELETION_RETRY_MS": 100,
            "INDEX_LOOK_MS": 100,
            "REGISTRATION_RETRY_MS": 100,
            "STORE_RETRY_MS": 100,
        },
    }.items()
    for name, ms in waits.items()
}
"""Without the waits of a clean stop. They end early when nothing is left to move; with a shorter
limit producers would notice a stop on a slow machine."""


@pytest.fixture(scope="session", autouse=True)
def fast_waits() -> Iterator[None]:
    """For the whole session, also for processes that fixtures start."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FAST.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def default_waits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give a test marked ``default_timing`` the product's defaults for what it starts itself."""
    if request.node.get_closest_marker("default_timing") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in FAST:
            patch.delenv(name, raising=False)
        yield
