"""The network between a scenario's processes: a scenario can cut one direction of a link."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import ClassVar, Final, Self

from icecore.process.members import Member
from tests.support.etcd import EtcdPlace

COORDINATOR: Final = "coordinator"
COORDINATORS: Final = (COORDINATOR, "coordinator-2", "coordinator-3")
ETCD: Final = ("etcd-1", "etcd-2", "etcd-3")


class Links(ABC):
    """The links between all processes; a context manager, made with their names."""

    insecure_bind: ClassVar[bool]
    """Whether the addresses are not loopback's."""

    @abstractmethod
    def __init__(self, names: Iterable[str]) -> None: ...

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    @abstractmethod
    def host(self) -> str:
        """The address of this process as the others see it; never cut off."""

    @abstractmethod
    def attach(self, member: Member) -> None:
        """Put a process where its links can be cut. Call before its first start."""

    @abstractmethod
    def place(self, name: str, pid: Callable[[], int]) -> EtcdPlace:
        """Return where a member of etcd is to be, so that its links can be cut.

        Args:
            name: Of the member.
            pid: Tells its process; 0 = it has none.
        """

    @abstractmethod
    def cut(self, source: str, target: str) -> None:
        """Nothing from ``source`` reaches ``target`` any more; the other way stays."""

    @abstractmethod
    def heal(self) -> None:
        """All links as before."""

    def separate(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Nothing passes between the two groups, either way."""
        others = list(others)
        for one in some:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)
