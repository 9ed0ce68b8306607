"""Three Kafka brokers on this machine, as they are recommended: KRaft, RF 3, min.insync.replicas 2.

The jars come through Maven into a cache folder, once. Each broker is a Java process of its own with
a bounded heap, known by pid only; data and logs live in the folder that is given and end with it.
"""

import contextlib
import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any, Self

from benchmarks.cluster import Missing, NotStarted
from benchmarks.harness.cases import Case
from benchmarks.peers.maven import jars
from benchmarks.peers.processes import HOST, Processes, free_ports

VERSION = "3.9.1"
BROKERS = 3
START_S = 60.0
HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")

_PROPERTIES = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
auto.create.topics.enable=false
offsets.topic.replication.factor=3
offsets.topic.num.partitions=3
log.segment.bytes=134217728
num.replica.fetchers=2
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
{patience}
"""
_PATIENCE_S = 3600
_PATIENT = (
    *("broker.session.timeout.ms", "controller.quorum.fetch.timeout.ms"),
    *("replica.lag.time.max.ms", "replica.socket.timeout.ms"),
)
"""Brokers are held while others are measured: none of them is to believe that the others died."""


def missing() -> str:
    """Return the programs and packages that this machine lacks to run Kafka; empty when there are
    none."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        absent.append("confluent-kafka (pip install -e '.[bench]')")
    return ", ".join(absent)


class Kafka:
    """The brokers. Use as a context manager.

    Args:
        folder: For data, logs and configuration; need not exist.
    """

    name = "kafka"
    warm_s = 60.0  # so long their compilers take more CPU than the brokers, on two cores

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports: dict[int, int] = {}
        self._processes = Processes(folder)
        self._admin: Any = None

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    @property
    def nodes(self) -> int:
        """Return how many brokers."""
        return BROKERS

    @property
    def pids(self) -> dict[str, int]:
        """By name, of all brokers."""
        return self._processes.pids

    def lacks(self, case: Case) -> str:
        """See ``System``."""
        return "acks=quorum" if case.acks == "quorum" else ""

    def __enter__(self) -> Self:
        if absent := missing():
            raise Missing(absent)
        library = jars("kafka", VERSION, "org.apache.kafka", ["kafka_2.13"])
        try:
            self._start(library)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self, library: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        free = free_ports(2 * BROKERS)
        self._ports = {number: free.pop() for number in range(1, BROKERS + 1)}
        controllers = {number: free.pop() for number in self._ports}
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in controllers.items())
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        java = ["java", "-Djava.awt.headless=true", "-cp", f"{library}/*"]
        for number, port in self._ports.items():
            text = _PROPERTIES.format(
                number=number,
                voters=voters,
                host=HOST,
                port=port,
                controller_port=controllers[number],
                data=self._folder / f"data-{number}",
                patience="\n".join(f"{name}={_PATIENCE_S * 1000}" for name in _PATIENT),
            )
            self._properties(number).write_text(text)
        _format(java, cluster_id, [self._properties(number) for number in self._ports])
        for number in self._ports:
            command = [*java, *HEAP, "kafka.Kafka", str(self._properties(number))]
            self._processes.start(f"broker-{number}", command)
        self._wait_until_up()

    def _properties(self, number: int) -> Path:
        return self._folder / f"broker-{number}.properties"

    def _wait_until_up(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # Asked before any broker listens, the client logs each refused connection.
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        end_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(KafkaException):
                if len(self._admin.list_topics(timeout=2).brokers) == BROKERS:
                    return
            if self._processes.have_ended() or time.monotonic() > end_s:
                raise NotStarted(f"Kafka did not start: {self._processes.complaint()}")
            time.sleep(0.2)

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        """A topic whose partitions all have a leader; ``flush`` is ``sync`` or ``async``."""
        from confluent_kafka.cimpl import NewTopic

        config = {"flush.messages": "1"} if flush == "sync" else {}
        self._create(NewTopic(topic, partitions, rf, config=config))
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            found = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
            if len(found) == partitions and all(len(each.isrs) == rf for each in found.values()):
                return
            time.sleep(0.2)
        raise TimeoutError(f"not all partitions of {topic} have a leader")

    def _create(self, wanted: Any) -> None:
        """Again when the client gave up the connection that it had asked: it has better ones as
        soon as it knows all brokers."""
        from confluent_kafka import KafkaError, KafkaException

        end_s = time.monotonic() + START_S
        while True:
            try:
                self._admin.create_topics([wanted])[wanted.topic].result(timeout=START_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if code != KafkaError._DESTROY_BROKER or time.monotonic() > end_s:
                    raise
                time.sleep(0.2)
            else:
                return

    def delete_topic(self, topic: str) -> None:
        """Its files are gone when this returns, for brokers may be held next."""
        self._admin.delete_topics([topic])[topic].result(timeout=START_S)
        end_s = time.monotonic() + START_S
        while any(self._folder.glob(f"data-*/{topic}-*")):
            if time.monotonic() > end_s:
                raise TimeoutError(f"files of {topic} stay")
            time.sleep(0.1)

    def hold(self) -> bool:
        """See ``System``: compilers would take a minute again."""
        self._processes.hold()
        return True

    def go_on(self) -> None:
        """See ``System``."""
        self._processes.go_on()
        self._wait_until_up()

    def _stop(self) -> None:
        self._admin = None  # or it tries to reach the brokers while they end
        self._processes.stop()


def _format(java: list[str], cluster_id: str, properties: list[Path]) -> None:
    """Make the storage folders of all brokers at once."""
    tool = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]
    running = [
        subprocess.Popen([*tool, str(each)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for each in properties
    ]
    if any(each.wait(START_S) for each in running):
        raise NotStarted("Kafka's storage could not be formatted")
