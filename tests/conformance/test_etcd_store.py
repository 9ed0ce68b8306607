"""The metadata store in a real etcd."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.metadata_store import MetadataStore
from tests.conformance.metadata_store_suite import MetadataStoreSuite
from tests.support.etcd import NEEDS_ETCD, NEEDS_MEMBERS, running_etcd, running_members

_numbers = itertools.count()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_members(tmp_path_factory.mktemp("etcd"), 3) as members:
        yield ",".join(members.endpoints)


class _Suite(MetadataStoreSuite):
    """Each test has a prefix of its own."""

    @pytest.fixture(autouse=True)
    async def _etcd(self, endpoints: str) -> AsyncIterator[None]:
        self.settings = EtcdSettings(endpoints=endpoints, prefix=f"test/{next(_numbers)}/")
        self.opened: list[EtcdStore] = []
        yield
        for store in self.opened:
            await store.close()

    async def open_store(self) -> MetadataStore:
        self.opened.append(EtcdStore(self.settings, SystemRng()))
        return self.opened[-1]


@NEEDS_ETCD
class TestOneMember(_Suite):
    """One member, as every run has it."""

    @pytest.fixture
    def endpoints(self, one: str) -> str:
        return one


@NEEDS_MEMBERS
@pytest.mark.every(3)
class TestThreeMembers(_Suite):
    """Three members, all of them named."""

    @pytest.fixture
    def endpoints(self, three: str) -> str:
        return three
