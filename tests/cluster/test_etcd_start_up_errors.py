"""A coordinator that can't use its etcd ends with one line, which says what to do: real processes.

What is stored is as before, and whoever has it goes on.
"""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.process import launch
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, as_text, old_etcd, running_members

pytestmark = NEEDS_MEMBERS
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with running_members(tmp_path_factory.mktemp("etcd"), 1) as members:
        yield members


def command(data: Path, **etcd: str) -> list[str]:
    flags = ["--data", str(data), "--listen", "127.0.0.1:0", "--etcd", json.dumps(etcd)]
    return [*launch.command("icecore_coordinator"), *flags]


def refused(data: Path, **etcd: str) -> str:
    """Start a coordinator that must end by itself: the one line that it says."""
    done = subprocess.run(
        command(data, **etcd),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        env=launch.environment("coordinator", {"etcd": ""}),
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("icecore-coordinator: ")
    return last


@contextlib.contextmanager
def acting(folder: Path, **etcd: str) -> Iterator[None]:
    """A coordinator that makes its metadata in etcd, and acts until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    with log.open("ab") as written:
        process = subprocess.Popen(
            command(folder, **etcd),
            stdout=written,
            stderr=subprocess.STDOUT,
            env=launch.environment("coordinator", {"etcd": ""}),
        )
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while "event=started" not in log.read_text():  # ready it is as a standby, too
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.kill()  # a clean stop has tests of its own
        process.wait()


def test_a_wrong_prefix_and_two_clusters_on_one_prefix(etcd: EtcdMembers, tmp_path: Path) -> None:
    """A folder remembers whose it is, and a prefix whose it is. Both go on afterwards."""
    [endpoints] = etcd.endpoints
    one = {"endpoints": endpoints, "prefix": "one/"}
    other = {"endpoints": endpoints, "prefix": "other/"}
    for name, where in (("one", one), ("other", other)):
        with acting(tmp_path / name, **where):
            pass
    said = refused(tmp_path / "one", endpoints=endpoints, prefix="onee/")
    assert "etcd has nothing below 'onee/'" in said and "look at etcd.endpoints" in said
    said = refused(tmp_path / "one", **other)
    assert "of another cluster" in said and "give the etcd.prefix" in said
    for name, where in (("one", one), ("other", other)):
        with acting(tmp_path / name, **where):
            pass


@pytest.mark.every(3)
def test_a_backup_never_goes_where_a_cluster_is(etcd: EtcdMembers, tmp_path: Path) -> None:
    """Not one of another cluster, and nothing of one that was cut short: nothing is changed."""
    config, file = {}, tmp_path / "backup"
    places = {}
    for name in ("one", "other"):
        places[name] = {"endpoints": etcd.endpoints[0], "prefix": f"backup/{name}/"}
        config[name] = tmp_path / f"{name}.toml"
        config[name].write_text(launch.as_toml({"coordinator": {"etcd": places[name]}}))
        with acting(tmp_path / name, **places[name]):
            pass
    dumped = store_command("dump", file, tmp_path / "other", config["other"])
    assert dumped.returncode == 0, dumped.stderr
    for data in ("one", "new"):
        done = store_command("restore", file, tmp_path / data, config["one"])
        assert done.returncode == 1 and "nothing was changed" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    empty = tmp_path / "empty.toml"
    where = {**places["one"], "prefix": "backup/empty/"}
    empty.write_text(launch.as_toml({"coordinator": {"etcd": where}}))
    done = store_command("restore", file, tmp_path / "new", empty)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert str(file) in done.stderr
    for name, where in places.items():
        with acting(tmp_path / name, **where):
            pass


def store_command(
    word: str, file: Path, data: Path, config: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command on a store whose coordinator does not run."""
    words = [word, str(file), "--data", str(data), "--config", str(config)]
    return subprocess.run(
        [*launch.command("icecore_coordinator.store_commands"), *words],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


@pytest.mark.every(3, turn=1)
def test_wrong_credentials(tmp_path: Path) -> None:
    """A wrong password, none, and a user who may not have this prefix."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    with running_members(tmp_path / "etcd", 1) as etcd:
        for name, secret in (("root", "root"), ("ice", "secret")):
            etcd.post("/v3/auth/user/add", {"name": name, "password": secret})
        etcd.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.post("/v3/auth/role/add", {"name": "ice"})
        allowed = {"permType": "READWRITE", "key": as_text(b"a/"), "range_end": as_text(b"a0")}
        etcd.post("/v3/auth/role/grant", {"name": "ice", "perm": allowed})
        etcd.post("/v3/auth/user/grant", {"user": "ice", "role": "ice"})
        etcd.post("/v3/auth/enable", {})
        given = {"endpoints": etcd.endpoints[0], "prefix": "a/"}
        mine = {**given, "user": "ice", "password_file": str(password)}
        with acting(tmp_path / "one", **mine):
            pass
        assert "etcd asks who this is: give etcd.user" in refused(tmp_path / "two", **given)
        said = refused(tmp_path / "two", **{**mine, "prefix": "b/"})
        assert "etcd denies 'ice' the keys that begin with 'b/'" in said
        password.write_text("wrong")
        said = refused(tmp_path / "one", **mine)
        assert "etcd knows no user 'ice' with this password" in said
        said = refused(tmp_path / "one", **{**mine, "password_file": str(tmp_path / "none")})
        assert str(tmp_path / "none") in said


@pytest.mark.every(3, turn=2)
async def test_an_etcd_of_an_old_version(tmp_path: Path) -> None:
    async with old_etcd("3.5.1") as endpoint:
        said = await asyncio.to_thread(refused, tmp_path / "one", endpoints=endpoint)
    assert "of version 3.5.1" in said and "3.5.3" in said


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        ("127.0.0.1", "'127.0.0.1' is not host:port: write HOST:PORT"),
        ("127.0.0.1:1;127.0.0.1:2", "is not an address: write HOST:PORT"),
        ("https://127.0.0.1:1,127.0.0.1:2", "with and without https://: all or none"),
        (" , ", "names no member: write HOST:PORT,HOST:PORT"),
    ],
)
def test_a_list_of_members_with_a_typo(tmp_path: Path, endpoints: str, said: str) -> None:
    assert said in refused(tmp_path / "one", endpoints=endpoints)


def test_a_member_that_nobody_is(tmp_path: Path) -> None:
    """Its name is none, and its port is shut: each is told with its reason."""
    said = refused(
        tmp_path / "one", endpoints="127.0.0.1:1,no-such-host.invalid:2379", timeout_ms="1000"
    )
    assert "no member of etcd has answered" in said and "etcd.endpoints" in said
    assert "127.0.0.1:1: " in said and "no-such-host.invalid:2379: " in said
