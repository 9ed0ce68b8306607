"""Addresses to ask about the cluster: the given ones, and nodes that were met since.

One that does not answer is followed by the next one, round and round, so that a client that began
with one address outlives the server there.
"""

from collections.abc import Iterable

from icecore.client import checks
from icecore.errors import ConfigurationError
from icecore.rpc.addresses import NATIVE, check_called
from icecore.rpc.ports import Rng


class Bootstrap:
    """The addresses that one client may ask.

    Args:
        text: Addresses of coordinators or nodes, ``host:port``, separated by commas.

    Raises:
        TypeError: It is no text.
        ConfigurationError: There is no address, or one is not ``host:port``.
    """

    def __init__(self, text: str) -> None:
        checks.text("bootstrap", text)
        self._given = [part.strip() for part in text.split(",") if part.strip()]
        if not self._given:
            raise ConfigurationError(f"bootstrap is not host:port[,host:port…]: {text!r}")
        for address in self._given:
            check_called("bootstrap", address.removeprefix(NATIVE))
        self._met: list[str] = []
        self._older: set[str] = set()
        self._strangers: set[str] = set()
        """They answered for another cluster."""

    def __str__(self) -> str:
        return ",".join(self._given)

    @property
    def first(self) -> str:
        """The address that is asked first."""
        return self._given[0]

    def meet(self, addresses: Iterable[str], rng: Rng) -> None:
        """These nodes are in the cluster. Clients go round them from different places, so that
        they do not all turn to the same one."""
        found = sorted({*addresses} - {*self._given} - self._older)
        if found != sorted(self._met):
            at = int(rng.random() * len(found))
            self._met = found[at:] + found[:at]

    def leave_out(self, address: str) -> bool:
        """It lacks the method, as nodes of an older version do. Whether it was one that was met:
        whoever gave an address hears that it is none of ours."""
        if address not in self._met:
            return False
        self._met = [each for each in self._met if each != address]
        self._older.add(address)
        return True

    def pass_by(self, address: str) -> bool:
        """It answers for another cluster: others are asked. Whether there are any; else all of them
        have another chance, for who is where may change."""
        self._strangers.add(address)
        is_anybody_left = not self._strangers.issuperset(self._given + self._met)
        if not is_anybody_left:
            self._strangers.clear()
        return is_anybody_left

    def after(self, address: str) -> str:
        """Return the address to ask when ``address`` does not answer."""
        everybody = self._given + self._met
        if address not in everybody:
            return self.first
        behind = everybody.index(address) + 1
        following = everybody[behind:] + everybody[:behind]
        return next((each for each in following if each not in self._strangers), following[0])
