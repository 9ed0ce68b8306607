"""Break real processes under load and judge what clients saw: ``python -m tests.chaos.run``.

Each scenario has a cluster and a folder of its own; the folder is kept when something was wrong.
The last line sums up; the exit status is 1 when anything in it is not as promised, or a scenario
could not run.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icecore import Admin
from icecore.errors import IcecoreError
from icecore.model import Acks
from icecore.rpc.grpc_net import GrpcNet
from tests.chaos.cluster import NAMES, NAMES_WITH_ETCD, ChaosCluster
from tests.chaos.control import ControlPlane, NotInTimeError
from tests.chaos.disks import SmallDisks
from tests.chaos.links import ETCD, Links
from tests.chaos.load import PARTITIONS, Load
from tests.chaos.network import Network, why_impossible
from tests.chaos.proxies import Proxies
from tests.chaos.record import Recorder, first_acks_ms, load, longest_stalls_ms
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.storage import STORAGE, TIERED
from tests.chaos.store import FaultyStore
from tests.chaos.world import TOPIC, Scenario, World
from tests.simulation.checkers import answers_checked, check, lost_by_leader_acks
from tests.simulation.history import History, Outcome
from tests.simulation.observer import Observer
from tests.support.etcd import EtcdMembers, EtcdPlace, etcd_program
from tests.support.server_logs import caught_by_loops

COLUMNS = {
    "lost": ("lost", "unseen"),
    "duplicated": ("duplicate",),
    "gaps": ("gap", "skip", "tiling"),
    "reordered": (
        *("order", "realtime", "nonmonotonic", "changed"),
        *("replicas_differ", "watermark_past_end", "watermark_went_back"),
    ),
    "aborted_reads": ("aborted", "phantom"),
    "wrong_answers": ("query_missed", "query_wrong", "query_order"),
}
"""Fields of the last line, and the checker's categories that each of them counts."""
METADATA = ("file", "etcd")
"""The stores for metadata: a coordinator alone has a file, three coordinators share an etcd."""
WARM_UP_S = 2.0
FINAL_READ_TRIES = 4
MEASURED = "kill"
"""The fault whose time to the first ack is reported: one node, and all others well."""
STOPS = ("stop", "restart")
"""Clean ends of a node: the longest time without acks is reported."""


@dataclass(slots=True)
class Report:
    """The result of one scenario."""

    name: str
    stored_as: str = ""
    """How its topic is stored; empty when it did not get that far."""
    skipped: str = ""
    problems: list[str] = field(default_factory=list)
    categories: Counter[str] = field(default_factory=Counter)
    acked: Counter[Acks] = field(default_factory=Counter)
    lost_acks_leader: int = 0
    answers_checked: int = 0
    recoveries_ms: list[float] = field(default_factory=list)
    stalls_ms: list[float] = field(default_factory=list)
    take_overs_ms: list[float] = field(default_factory=list)
    faults: int = 0


async def _run_scenario(
    scenario: Scenario,
    cluster: ChaosCluster,
    network: Links,
    store: FaultyStore | None,
    recorder: Recorder,
    seconds: float,
    report: Report,
) -> None:
    """Load and faults, heal, final reads; problems go into the report."""

    def on_lost_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        report.problems.append(f"in a client: {context['message']} {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(on_lost_exception)
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            segment_bytes=scenario.segment_bytes,
            **STORAGE[report.stored_as],
        )
    net = GrpcNet()

    def nodes() -> dict[int, tuple[str, int]]:
        return {i: (address, cluster.node(i).pid) for i, address in cluster.addresses.items()}

    traffic = Load(cluster.clients_bootstrap, TOPIC, recorder, nodes)
    observer = Observer(net, cluster.bootstrap)
    control = ControlPlane(cluster, network)
    rng = random.Random(f"{report.name} {os.getpid()}")
    ends_s = time.monotonic() + seconds
    world = World(cluster, network, control, recorder, observer, traffic, rng, store, ends_s)
    try:
        traffic.start()
        await world.writes()
        await asyncio.sleep(WARM_UP_S)
        world.ends_s = time.monotonic() + seconds
        try:
            await scenario.run(world)
        except (NotInTimeError, IcecoreError) as error:
            report.problems.append(f"the scenario stopped: {error!r}")
        await world.heal()
        try:
            await world.writes(within_s=60.0)
            await world.settled(90.0)
        except NotInTimeError as error:
            report.problems.append(f"after healing: {error}")
        await traffic.stop()
        report.problems += [*traffic.problems, *control.problems]
        report.take_overs_ms = control.take_overs_ms
        if scenario.is_smooth:
            report.problems += [f"an error surfaced: {error}" for error in traffic.errors[:20]]
        report.problems += await _read_everything(observer, traffic, recorder)
        report.problems += caught_by_loops(cluster.folder)
        report.faults = world.faults
    finally:
        await net.close()


async def _read_everything(observer: Observer, traffic: Load, recorder: Recorder) -> list[str]:
    """From every replica, and as a consumer would; what could not be read."""
    for attempt in range(FINAL_READ_TRIES):
        found = History()
        try:
            problems = await observer.read_everything(TOPIC, found)
        except IcecoreError as error:
            problems = [f"the final read failed: {error!r}"]
        if not problems:
            break
        await asyncio.sleep(2.0 * (attempt + 1))  # a repair may be under way
    recorder.final(found)
    try:
        async with asyncio.timeout(60.0):
            await traffic.read_to_end()
    except (IcecoreError, TimeoutError) as error:
        problems.append(f"the final consumer failed: {error!r}")
    return problems


def judge(report: Report, history_path: Path) -> None:
    """Run the checker over the recorded lines."""
    with history_path.open() as lines:
        history = load(TOPIC, lines)
    for violation in check(history):
        report.categories[violation.category] += 1
        if report.categories[violation.category] <= 5:
            report.problems.append(str(violation))
    for produce in history.produces:
        if produce.outcome is Outcome.OK:
            report.acked[produce.acks] += 1
    report.lost_acks_leader = lost_by_leader_acks(history)
    report.answers_checked = answers_checked(history)
    with history_path.open() as lines:
        report.recoveries_ms = first_acks_ms(lines, MEASURED)
    for kind in STOPS:
        with history_path.open() as lines:
            report.stalls_ms += longest_stalls_ms(lines, kind)


def run_one(
    name: str,
    folder: Path,
    seconds: float,
    links: type[Links],
    stored_as: str = "",
    metadata: str = METADATA[0],
) -> Report:
    """One scenario from nothing to its verdict; how its topic is stored is drawn if need be."""
    scenario = SCENARIOS[name]
    report = Report(name, stored_as or random.choice(scenario.stored_as))
    if scenario.small_disks and os.geteuid():
        report.skipped = "mounting a tmpfs needs root"
        return report
    has_etcd = scenario.needs_etcd or metadata == METADATA[1]
    if has_etcd and etcd_program() is None:
        report.skipped = "there is no etcd: make setup-etcd"
        return report
    is_tiered = report.stored_as in TIERED
    folder.mkdir(parents=True)
    history_path = folder / "history.jsonl"
    with ExitStack() as stack:
        network = links(NAMES_WITH_ETCD if has_etcd else NAMES)
        stack.enter_context(network)
        stack.enter_context(SmallDisks(folder / "cluster", scenario.small_disks))
        store = None
        if is_tiered:
            store = stack.enter_context(FaultyStore(folder / "store", network.host))
        etcd = _etcd(folder / "etcd", network, stack) if has_etcd else None
        settings = store.settings if store else {}
        cluster = ChaosCluster(folder / "cluster", network, settings, etcd)
        recorder = Recorder(history_path)
        stack.callback(recorder.close)
        cluster.start()
        try:
            asyncio.run(_run_scenario(scenario, cluster, network, store, recorder, seconds, report))
        finally:
            dead = [member.name for member in cluster.dead()]
            warnings = cluster.stop()
        report.problems += [f"{who} ended by itself" for who in dead]
        report.problems += warnings
    judge(report, history_path)
    return report


def _etcd(folder: Path, network: Links, stack: ExitStack) -> EtcdMembers:
    """Three members that run until the stack ends."""
    members: list[EtcdMembers] = []

    def place(number: int, name: str) -> EtcdPlace:
        return network.place(name, lambda: members[0].pid(number) if members else 0)

    members.append(EtcdMembers(folder, [place(*each) for each in enumerate(ETCD)]))
    stack.callback(members[0].stop)
    return members[0].start()


# --- what is printed ------------------------------------------------------------------------------


def show(report: Report, took_s: float, folder: Path) -> None:
    """One scenario's line, and what was wrong."""
    if report.skipped:
        print(f"  {report.name}: SKIPPED: {report.skipped}", flush=True)
        return
    verdict = "FAILED" if report.problems else "ok"
    acked = " ".join(f"{acks.name.lower()}={report.acked[acks]}" for acks in Acks)
    slowest_ms = max(report.recoveries_ms, default=0.0)
    recovery = f" slowest_recovery_ms={slowest_ms:.0f}" if slowest_ms else ""
    stall_ms = max(report.stalls_ms, default=0.0)
    recovery += f" longest_stall_ms={stall_ms:.0f}" if stall_ms else ""
    take_over_ms = max(report.take_overs_ms, default=0.0)
    recovery += f" slowest_take_over_ms={take_over_ms:.0f}" if take_over_ms else ""
    what = f"{report.name} ({report.stored_as or 'no topic'})"
    print(f"  {what}: {verdict} in {took_s:.0f} s, faults={report.faults} {acked}{recovery}")
    for problem in report.problems[:30]:
        print(f"    {problem}")
    if report.problems:
        print(f"    kept: {folder}", flush=True)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(reports: list[Report]) -> str:
    """The last line."""
    categories: Counter[str] = Counter()
    for report in reports:
        categories.update(report.categories)
    recoveries = [each for report in reports for each in report.recoveries_ms]
    take_overs = [each for report in reports for each in report.take_overs_ms]
    fields: dict[str, object] = {
        "scenarios": sum(not report.skipped for report in reports),
        "skipped": sum(bool(report.skipped) for report in reports),
        "acked_all": sum(report.acked[Acks.ALL] for report in reports),
        "acked_quorum": sum(report.acked[Acks.QUORUM] for report in reports),
        **{name: sum(categories[each] for each in of) for name, of in COLUMNS.items()},
        "answers_checked": sum(report.answers_checked for report in reports),
        "lost_acks_leader": sum(report.lost_acks_leader for report in reports),
        "recovery_p99_ms": f"{percentile(recoveries, 0.99):.0f}",
        "take_over_p50_ms": f"{percentile(take_overs, 0.5):.0f}",
        "take_over_max_ms": f"{max(take_overs, default=0.0):.0f}",
    }
    return "chaos: " + " ".join(f"{name}={value}" for name, value in fields.items())


def main() -> int:
    """Exit status 1 when anything went wrong or a scenario was skipped."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults, per scenario")
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS), help="only this")
    parser.add_argument("--stored-as", choices=sorted(STORAGE), default="", help="not drawn")
    parser.add_argument(
        "--metadata", choices=METADATA, default=METADATA[0], help="etcd: of all scenarios"
    )
    parser.add_argument("--proxies", action="store_true", help="no network namespaces")
    parser.add_argument("--keep", action="store_true", help="keep all folders")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it started, as Ctrl-C does
    root = Path(tempfile.mkdtemp(prefix="icecore-chaos-"))
    links: type[Links] = Network
    if arguments.proxies or (refused := why_impossible()):
        links = Proxies
        print("  through TCP proxies" if arguments.proxies else f"  through TCP proxies: {refused}")
    reports: list[Report] = []
    for name in arguments.scenario or SCENARIOS:
        began_s = time.monotonic()
        print(f"  {name} …", flush=True)
        folder = root / f"{len(reports) + 1:02d}-{name}"
        try:
            stored_as, metadata = arguments.stored_as, arguments.metadata
            report = run_one(name, folder, arguments.seconds, links, stored_as, metadata)
        except Exception as error:  # the other scenarios still have something to tell
            traceback.print_exc()
            report = Report(name, problems=[f"the scenario broke: {error!r}"])
        reports.append(report)
        show(report, time.monotonic() - began_s, folder)
        if not report.problems and not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not any(root.iterdir()):
        root.rmdir()
    print(summary(reports))
    return 1 if any(report.problems or report.skipped for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
