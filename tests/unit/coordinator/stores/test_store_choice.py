"""The choice of a coordinator's store: settings and folder must agree."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from icecore.errors import ConfigurationError
from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.sqlite_store import SqliteStore
from icecore_coordinator.stores.store_choice import (
    ETCD_FILE,
    MEMBER_FILE,
    SQLITE_FILE,
    member_of,
    open_store,
)

IN_ETCD = EtcdSettings(endpoints="a:2379,b:2379")


async def test_without_endpoints_metadata_lie_in_the_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path, EtcdSettings(), SystemRng())
    assert isinstance(store, SqliteStore)
    await store.close()
    with pytest.raises(ConfigurationError, match=r"in SQLite.*icecore cluster backup"):
        open_store(tmp_path, IN_ETCD, SystemRng())


async def test_a_folder_remembers_that_its_metadata_are_in_etcd(tmp_path: Path) -> None:
    store = open_store(tmp_path / "c", IN_ETCD, SystemRng())
    assert isinstance(store, EtcdStore)
    store._remember("0f")
    again = open_store(tmp_path / "c", IN_ETCD, SystemRng())
    assert isinstance(again, EtcdStore)
    assert again._known_store == "0f"
    with pytest.raises(ConfigurationError, match=r"are in etcd \(a:2379,b:2379\): give etcd.endp"):
        open_store(tmp_path / "c", EtcdSettings(), SystemRng())
    assert not (tmp_path / "c" / SQLITE_FILE).exists()


def test_a_folder_has_one_identity_in_elections_and_one_process(tmp_path: Path) -> None:
    member = member_of(tmp_path, SystemRng())
    assert len(member) == 16
    with pytest.raises(ConfigurationError, match="already in use by another coordinator"):
        member_of(tmp_path, SystemRng())
    assert (tmp_path / MEMBER_FILE).read_text() == member


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / ETCD_FILE).write_text("{")
    with pytest.raises(ConfigurationError, match=f"{ETCD_FILE} cannot be read"):
        open_store(tmp_path, IN_ETCD, SystemRng())


def test_a_folder_of_a_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "control.db").touch()
    with pytest.raises(ConfigurationError, match="data folder of a node"):
        open_store(tmp_path, IN_ETCD, SystemRng())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endpoints": "a:2379,b"}, "'b' is not host:port"),
        ({"endpoints": "a:2379;b:2379"}, "is not an address"),
        ({"endpoints": " , "}, "names no member"),
        ({"endpoints": "https://a:1,b:1"}, "with and without https"),
        ({"endpoints": "a:1", "user": "ice"}, "etcd.user and etcd.password_file go together"),
        ({"endpoints": "a:1", "key_file": "k"}, "etcd.certificate_file and etcd.key_file"),
    ],
)
def test_settings_that_do_not_fit_say_so(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EtcdSettings.model_validate(given)


def test_members_are_known_by_their_addresses() -> None:
    given = EtcdSettings(endpoints="https://a:1/, https://b:2,https://a:1")
    assert (given.members, given.is_tls) == (("a:1", "b:2"), True)
    assert not EtcdSettings(endpoints="http://a:1").is_tls
