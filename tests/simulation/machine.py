"""State shared by the ports of one machine: which of its next operations fail, and what each one
costs.

Disk, index and control store tell it of every operation before they carry it out. A *trouble* lies
in wait for some kinds of operations, and fails one of them or all for a while. Costs add up within
a turn of a thread; the executor lets that much virtual time pass afterwards, so that a group of a
thousand deletions takes a thousand times as long as one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from icecore.errors import StorageError
from icecore_node.ports import SyncFailedError

READS = ("pread",)
WRITES = ("pwritev", "allocate", "truncate")
NAMES = ("open", "list_dir", "rename", "unlink")
SYNCS = ("fdatasync", "sync_dir", "sync_all")
INDEX_READS = ("index get", "index floor", "index scan")
INDEX_WRITES = ("index write", "index delete_range", "index flush")
CONTROL = ("control read", "control begin", "control commit")
SYNC_COST = 0.3
"""Cost of a sync, in delays of a thread. Any other operation costs a tenth of that."""


@dataclass(slots=True, eq=False)
class Trouble:
    """Operations that fail."""

    kind: str
    """Kind of the fault; each operation that fails counts."""
    operations: tuple[str, ...]
    times: int = 1
    """Number of operations that fail before it is over; a lasting trouble has very many."""
    skip: int = 0
    """Number of operations that pass before the first one fails."""
    names: str = ""
    """Part of the names of the files that it hits; empty = any file."""
    partly: bool = False
    """True = a failing operation has done a part of its work, or all of it."""

    def strikes(self, operation: str, name: str) -> bool:
        """Return whether this operation is one that fails."""
        if operation not in self.operations or self.names not in name or self.times <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(eq=False)
class Machine:
    """One host's storage stack, whichever disk is in it."""

    count_fault: Callable[[str], None] = lambda kind: None
    changing: Callable[[], None] = lambda: None
    """Called for each operation of index and control store that changes something: the process
    may die right there. Files tell their disk themselves."""
    troubles: list[Trouble] = field(default_factory=list)
    costs_s: dict[str, float] = field(default_factory=dict)
    """Cost of each operation in seconds. The world sets what is usual, faults raise it."""
    _spent_s: float = 0.0

    def begin(self, operation: str, name: str = "") -> Trouble | None:
        """An operation is about to be carried out; the trouble that it meets, which counts."""
        self._spent_s += self.costs_s.get(operation, 0.0)
        for trouble in self.troubles:
            if trouble.strikes(operation, name):
                self.count_fault(trouble.kind)
                return trouble
        return None

    def check(self, operation: str, name: str = "") -> None:
        """The same for what fails as a whole. Raises StorageError."""
        if self.begin(operation, name) is not None:
            raise io_error(operation, name)

    def spent_s(self) -> float:
        """Return the seconds that the operations since the last call have cost."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def usual_costs(self, delay_s: float) -> None:
        """As dear as its threads are slow."""
        cheap = (*READS, *WRITES, *NAMES, *INDEX_READS, *INDEX_WRITES, "control read")
        self.costs_s = dict.fromkeys(cheap, 0.1 * SYNC_COST * delay_s)
        self.raise_costs((*SYNCS, "control commit"), SYNC_COST * delay_s)

    def raise_costs(self, operations: Iterable[str], cost_s: float) -> None:
        """Set the cost of each of these operations from now on, in seconds."""
        self.costs_s.update(dict.fromkeys(operations, cost_s))

    def heal(self, delay_s: float) -> None:
        """Nothing fails, and all costs are as usual."""
        self.troubles.clear()
        self.usual_costs(delay_s)


def io_error(operation: str, name: str) -> StorageError:
    """EIO, as the adapters of the real ports tell it."""
    kind = SyncFailedError if operation in SYNCS else StorageError
    return kind(f"{operation} {name}: simulated I/O error")
