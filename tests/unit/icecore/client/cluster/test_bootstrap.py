"""After a server that does not answer comes the next one, given or met; none is left out."""

from icecore.client.cluster.bootstrap import Bootstrap
from icecore.client.cluster.connection import Connection
from icecore.process.system import SystemRng


def test_given_addresses_come_first_and_then_nodes_that_were_met() -> None:
    bootstrap = Bootstrap("c:1, n1:1")
    assert (str(bootstrap), bootstrap.first) == ("c:1,n1:1", "c:1")
    bootstrap.meet(["n1:1", "n2:1", "n3:1"], SystemRng())
    asked = ["c:1"]
    for _ in range(4):
        asked.append(bootstrap.after(asked[-1]))
    assert asked[:2] == ["c:1", "n1:1"]
    assert sorted(asked[2:4]) == ["n2:1", "n3:1"]
    assert asked[4] == "c:1"
    assert bootstrap.after("named-by-somebody:1") == "c:1"


def test_nodes_that_are_gone_are_asked_no_more() -> None:
    bootstrap = Bootstrap("c:1")
    bootstrap.meet(["n2:1"], SystemRng())
    bootstrap.meet([], SystemRng())
    assert bootstrap.after("c:1") == "c:1"


def test_a_node_of_an_older_version_is_left_out() -> None:
    bootstrap = Bootstrap("c:1")
    bootstrap.meet(["n2:1"], SystemRng())
    assert bootstrap.leave_out("n2:1") and not bootstrap.leave_out("c:1")
    bootstrap.meet(["n2:1", "n3:1"], SystemRng())
    assert [bootstrap.after("c:1"), bootstrap.after("n3:1")] == ["n3:1", "c:1"]


def test_who_is_of_another_cluster_is_left_out_while_others_are_there() -> None:
    bootstrap = Bootstrap("c:1,other:1")
    assert bootstrap.pass_by("other:1") and bootstrap.after("c:1") == "c:1"
    assert not bootstrap.pass_by("c:1")
    assert [bootstrap.after("c:1"), bootstrap.after("other:1")] == ["other:1", "c:1"]
    bootstrap.meet(["n:1"], SystemRng())
    assert bootstrap.pass_by("c:1") and bootstrap.pass_by("other:1")
    bootstrap.meet([], SystemRng())
    assert bootstrap.after("c:1") == "other:1"


async def test_a_node_that_hears_nothing_is_left_for_another_server() -> None:
    async with Connection("n1:1") as connection:
        connection.meet(["n2:1"], 100)
        assert connection._server == "n1:1"
        connection.meet(["n2:1"], 60_000)
        assert (connection._server, connection._coordinator) == ("n2:1", "n1:1")
