"""Runs one case on one system: topic, client processes, result.

Everything ends with the context, also on Ctrl-C: client processes first, then the systems, then the
folder with all data.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from benchmarks import hop
from benchmarks.cluster import Missing, PeerFailed, System
from benchmarks.gates.base import ROOT, Tree
from benchmarks.harness import limit
from benchmarks.harness.cases import BASE, ICECORE, Case, is_ours
from benchmarks.harness.lifetime import uninterrupted
from benchmarks.harness.systems import Systems
from benchmarks.harness.warm_memory import HELD_BYTES, warm_memory
from benchmarks.harness.workload import Job
from tests.support.minio import minio_program

GIB = 1 << 30
FREE_BYTES_MIN = 20 * GIB
CLIENT_EXTRA_S = 180.0
"""Seconds that a client may take beside warm-up and measuring: to start, to touch partitions, to
end."""
FILL_BYTES = 256 << 20
FILL_RECORDS_MAX = 2_000_000
FAILOVER_MIB = 64
LIMIT_MIB, LIMIT_RUNS = 128, 3
TAKEN_BYTES_S = 3 * GIB // 2
"""New memory that a measurement takes at most: what all replicas write."""
LEAST_S = 0.5
"""Number of round trips."""


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds that a client measures, and those of its warm-up."""

    seconds: float = 4.0
    warm_s: float = 2.5


class _Shape(NamedTuple):
    """Cases that may share a topic."""

    system: str
    partitions: int
    rf: int
    flush: str
    content: str
    """Records of a topic that is fetched; no other case produces into it. Empty = any records."""


def progress(text: str) -> None:
    """A line for people; results go to stdout."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Runner:
    """Use as a context manager.

    Args:
        folder: Where data may be written, made if need be; what is written is removed again.
        times: Of all cases.
        base: The code of the system ``base``, if there is one.
        in_turns: Whether measurements are short and come back often: ours stay beside each other
            then, and no more memory is made ready than one of them takes.
    """

    def __init__(
        self, folder: Path, times: Times, base: Tree | None = None, in_turns: bool = False
    ) -> None:
        self._home, self._times = folder, times
        self._base, self._in_turns = base, in_turns
        self._stack = contextlib.ExitStack()
        self._topics: dict[_Shape, tuple[System, str]] = {}
        self._filled: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True, exist_ok=True)
        home = tempfile.TemporaryDirectory(prefix="icecore-bench-", dir=self._home)
        with contextlib.ExitStack() as stack:
            self._folder = Path(stack.enter_context(home))
            self._systems = stack.enter_context(self._all_systems())
            self._stack = stack.pop_all()
        return self

    def _all_systems(self) -> Systems:
        return Systems(self._folder, self._warm, self._base, are_ours_beside=self._in_turns)

    def __exit__(self, *_: object) -> None:
        progress("stopping")
        with uninterrupted():
            self._stack.close()

    def _warm(self, system: System) -> None:
        """Let a system work for a while before anything counts."""
        progress(f"{system.name} has started; {system.warm_s:g} s to warm up")
        case = Case("produce", spread="keyed", rf=min(3, system.nodes))
        system.create_topic("warm-up", case.partitions, case.rf, case.flush)
        job = self._job(system, case, "warm-up", case.kind)
        self._client(replace(job, warm_s=system.warm_s, seconds=0.1)).result()
        system.delete_topic("warm-up")

    @contextlib.contextmanager
    def topics(self) -> Iterator[None]:
        """Topics that cases make inside are deleted at the end."""
        try:
            yield
        finally:
            self.delete_topics()
            self._filled.clear()

    def delete_topics(self, *, with_filled: bool = True) -> None:
        """Those of all cases so far, perhaps without those that are filled to be fetched."""
        for shape, (system, topic) in list(self._topics.items()):
            if shape.content and not with_filled:
                continue
            if self._systems.is_running(system):  # or its files are gone with it
                with self._forgiving(system.name):
                    self._systems.wake(system)
                    system.delete_topic(topic)
            self._topics.pop(shape, None)

    def end_group(self) -> None:
        """Stop ours: what the next measurements do not need must not idle beside them."""
        self._systems.stop_ours()

    @contextlib.contextmanager
    def _failures_told(self, name: str) -> Iterator[None]:
        """Whatever a peer or its client raises is PeerFailed; the peer ends, others go on."""
        try:
            yield
        except Missing:
            raise
        except Exception as error:
            if is_ours(name):
                raise
            self._topics = {key: each for key, each in self._topics.items() if key.system != name}
            self._systems.drop(name)
            raise PeerFailed(f"{name}: {type(error).__name__}: {error}") from error

    @contextlib.contextmanager
    def _forgiving(self, name: str) -> Iterator[None]:
        """As the above, where nothing is lost by it."""
        try:
            with self._failures_told(name):
                yield
        except PeerFailed as error:
            progress(str(error))

    def _topic(self, system: System, case: Case) -> str:
        """The topic of all cases of one shape; made when first needed."""
        content = f"{case.record_bytes} B {case.spread}" if case.kind == "fetch" else ""
        shape = _Shape(system.name, case.partitions, case.rf, case.flush, content)
        known = self._topics.get(shape)
        if known is None or known[0] is not system:  # started anew since
            if shutil.disk_usage(self._folder).free < FREE_BYTES_MIN:
                raise OSError(f"less than {FREE_BYTES_MIN // GIB} GiB of disk are free")
            topic = f"bench-{time.monotonic_ns()}"
            system.create_topic(topic, case.partitions, case.rf, case.flush)
            self._topics[shape] = (system, topic)
            if not content:
                progress(f"{system.name}: first records of {case.partitions} partitions")
                self._client(self._job(system, case, topic, "touch")).result()
        return self._topics[shape][1]

    # --- measuring ------------------------------------------------------------------------------

    def limit(self, rf: int, files: int) -> dict[str, float]:
        """Measure the limits of the disk at this moment."""
        progress(f"limit RF {rf}")
        return limit.measure(self._folder, rf, files, LIMIT_MIB, LIMIT_RUNS)

    def bounds(self, rf: int, files: int = 16) -> dict[str, float]:
        """Measure the limits of disk and transport at this moment: the denominators of a result."""
        return {**self.limit(rf, files), "sync_ms": limit.sync_ms(self._folder), **hop.measure()}

    def least(self, rf: int) -> dict[str, float]:
        """The latency of a record that does nothing but what it can't do without."""
        progress(f"one sync and the round trips, RF {rf}")
        trips = 1 if rf == 1 else 2
        hop_ms = hop.measure(LEAST_S)["hop_ms"]
        return {"p50_ms": round(limit.sync_ms(self._folder) + trips * hop_ms, 3)}

    def failover(self, partitions: int, is_base: bool = False) -> dict[str, float]:
        """Return how long produce stood still in the partitions whose leader was killed, in ms.

        Raises:
            Missing: It is the base's, and there is none.
            RuntimeError: It failed, or a record could not be produced.
        """
        progress(f"failover of {partitions} partitions × {FAILOVER_MIB} MiB")
        options = ["--kills", "1", "--mib", str(FAILOVER_MIB), "--partitions", str(partitions)]
        whole = self._apart("benchmarks.failover", is_base, *options)
        if whole["errors"]:
            raise RuntimeError(f"{whole['errors']} records could not be produced")
        return {f"led_{name}": value for name, value in whole["longest_gap"]["led"].items()}

    def lookup(self, is_base: bool = False) -> dict[str, float]:
        """Return how long look-ups take, in ms, and how large indexes are.

        Raises:
            RuntimeError: It failed, or what was found was not what was produced.
        """
        progress("look-ups")
        figures: dict[str, float] = self._apart("benchmarks.lookup", is_base)["figures"]
        return figures

    def cold_reads(self, is_base: bool = False) -> dict[str, float]:
        """Return how long reads of object storage take.

        Raises:
            Missing: There is no MinIO on this machine.
            RuntimeError: It failed.
        """
        if minio_program() is None:
            raise Missing("minio")
        progress("cold reads")
        figures: dict[str, float] = self._apart("benchmarks.cold_reads", is_base)["figures"]
        return figures

    def _apart(self, module: str, is_base: bool, *options: str) -> dict[str, Any]:
        """The last line of a benchmark that has a cluster of its own.

        Raises:
            Missing: It is the base's, and there is none.
            RuntimeError: It failed.
        """
        where = self._tree(BASE if is_base else ICECORE)
        self._systems.stop()  # what idles takes processor time that the cluster would have had
        done = subprocess.run(
            where.command(module, *options, "--folder", str(self._folder)),
            cwd=where.root,
            env=where.environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{module} ended with status {done.returncode}")
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return last

    def _tree(self, system: str) -> Tree:
        """The tree whose code serves and measures a system."""
        if system != BASE:
            return Tree(ROOT, "this tree")
        if self._base is None:
            raise Missing("a base to compare with: BASE=<commit>")
        return self._base

    def run(self, name: str, case: Case) -> dict[str, Any]:
        """One run of a case: ``figures`` and what each process has cost.

        Raises:
            Missing: The system can't run here, or lacks what the case needs.
            PeerFailed: It is none of ours, and it or its client failed.
            RuntimeError: The client failed.
        """
        with self._failures_told(name):
            return self._run(name, case)

    def _run(self, name: str, case: Case) -> dict[str, Any]:
        system = self._systems.get(name, case.rf)
        if lack := system.lacks(case):
            raise Missing(lack)
        job = self._job(system, case, self._topic(system, case), case.kind)
        if case.kind == "fetch":
            job = replace(job, records=self._fill(job))
        progress(f"{name}: {case.label}")
        os.sync()  # what others left in the page cache would be written during this
        with (
            contextlib.nullcontext() if case.kind == "single" else warm_memory(self._taken_bytes())
        ):
            return self._measured(job)

    def _taken_bytes(self) -> int:
        if not self._in_turns:
            return HELD_BYTES
        return min(HELD_BYTES, int((self._times.seconds + self._times.warm_s) * TAKEN_BYTES_S))

    def _measured(self, job: Job) -> dict[str, Any]:
        if job.case.kind != "mixed":
            return self._client(job).result()
        with self._client(replace(job, act="follow")) as follow:
            produced = self._client(replace(job, act="produce")).result()
            fetched = follow.result()
        figures = {f"fetch_{key}": value for key, value in fetched["figures"].items()}
        processes = {**produced["processes"], "consumer": fetched["processes"]["client"]}
        return {"figures": {**produced["figures"], **figures}, "processes": processes}

    def _job(self, system: System, case: Case, topic: str, act: str) -> Job:
        return Job(
            system=system.name,
            bootstrap=system.bootstrap,
            topic=topic,
            case=case,
            act=act,
            seconds=self._times.seconds,
            warm_s=self._times.warm_s,
            pids=system.pids,
        )

    def _fill(self, job: Job) -> int:
        """Put records into a topic once, for all that fetch from it; how many there are."""
        if job.topic not in self._filled:
            wanted = min(FILL_RECORDS_MAX, FILL_BYTES // job.case.record_bytes)
            progress(f"{job.system}: {wanted} records to fetch")
            api = "columns" if is_ours(job.system) else "records"
            fill = replace(job, act="fill", records=wanted, case=replace(job.case, api=api))
            self._filled[job.topic] = self._client(fill).result()["records"]
        return self._filled[job.topic]

    def _client(self, job: Job) -> "_Client":
        timeout_s = self._times.seconds + self._times.warm_s + CLIENT_EXTRA_S
        where = self._tree(job.system)
        if job.system == BASE:
            job = replace(job, system=ICECORE)  # as the base calls it
        return _Client(job, timeout_s, where)


class _Client:
    """One client process; ends with the context at the latest."""

    def __init__(self, job: Job, timeout_s: float, where: Tree) -> None:
        self._job, self._timeout_s = job, timeout_s
        self._process = subprocess.Popen(
            where.command("benchmarks.client", json.dumps(job.to_dict())),
            cwd=where.root,
            env=where.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the runner, which ends its clients
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()

    def result(self) -> dict[str, Any]:
        """Return the result that the client prints.

        Raises:
            RuntimeError: It failed, or took too long.
        """
        with self:
            try:
                out, _ = self._process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired as error:
                raise RuntimeError(f"{self._job.case.label}: no result in time") from error
        if self._process.returncode:
            raise RuntimeError(f"{self._job.case.label}: status {self._process.returncode}")
        found: dict[str, Any] = json.loads(out)
        return found
