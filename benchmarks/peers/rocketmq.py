"""A RocketMQ broker group on this machine: a master with the gRPC proxy inside, and two slaves.

The jars come through Maven into a cache folder, once. Name server and brokers are Java processes of
their own with a bounded heap, known by pid only; data and logs live in the folder that is given and
end with it.
"""

import importlib.metadata
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

from benchmarks.cases import Case
from benchmarks.cluster import Missing
from benchmarks.peers.maven import jars
from benchmarks.peers.processes import HOST, Processes, free_ports

VERSION = "5.3.3"
ARTIFACTS = ("rocketmq-namesrv", "rocketmq-broker", "rocketmq-proxy", "rocketmq-tools")
BROKERS = 3
CLUSTER = "bench"
START_S, COMMAND_S, PAUSE_S = 90.0, 30.0, 0.5
JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseG1GC",
    "-XX:MaxDirectMemorySize=2g",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
HEAP = ("-Xms1g", "-Xmx1g")
NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
MASTER = "org.apache.rocketmq.proxy.ProxyStartup"
SLAVE = "org.apache.rocketmq.broker.BrokerStartup"
ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"

_NO_LOGS = '<configuration><root level="OFF"/></configuration>'
_BROKER = """brokerClusterName={cluster}
brokerName=broker
brokerId={number}
brokerRole={role}
flushDiskType=SYNC_FLUSH
listenPort={port}
fastListenPort={fast_port}
bindAddress={host}
haListenPort={ha_port}
brokerIP1={host}
brokerIP2={host}
namesrvAddr={name_server}
storePathRootDir={data}
storePathCommitLog={data}/commitlog
totalReplicas=3
inSyncReplicas=3
minInSyncReplicas=2
autoCreateTopicEnable=false
mappedFileSizeCommitLog=134217728
sendThreadPoolQueueCapacity=1000000
waitTimeMillsInSendQueue=120000
timerWheelEnable=false
diskMaxUsedSpaceRatio=99
"""


def missing() -> str:
    """What this machine lacks to run RocketMQ; empty when nothing."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    try:
        importlib.metadata.version("rocketmq-python-client")  # its import would write a log
    except importlib.metadata.PackageNotFoundError:
        absent.append("rocketmq-python-client (pip install -e '.[bench]')")
    return ", ".join(absent)


def broker_config(number: int, ports: tuple[int, int, int], name_server: str, data: Path) -> str:
    """What a broker is told; number 0 is the master.

    Args:
        number: From 0.
        ports: Its own, the one for small requests, the one for replicas.
        name_server: Its address.
        data: Its folder.
    """
    port, fast_port, ha_port = ports
    return _BROKER.format(
        cluster=CLUSTER,
        number=number,
        role="SLAVE" if number else "SYNC_MASTER",
        host=HOST,
        port=port,
        fast_port=fast_port,
        ha_port=ha_port,
        name_server=name_server,
        data=data,
    )


def proxy_config(port: int, remoting_port: int, name_server: str) -> str:
    """What the proxy in the master is told; by default it sends with as many threads as cores."""
    return json.dumps(
        {
            "rocketMQClusterName": CLUSTER,
            "proxyMode": "LOCAL",
            "namesrvAddr": name_server,
            "localServeAddr": HOST,
            "grpcServerPort": port,
            "remotingListenPort": remoting_port,
            "grpcProducerThreadPoolNums": 256,
            "grpcProducerThreadQueueCapacity": 1_000_000,
        }
    )


class RocketMQ:
    """Name server and brokers. Use as a context manager.

    Args:
        folder: For data, logs and configuration; need not exist.
    """

    name = "rocketmq"
    nodes = BROKERS
    warm_s = 60.0  # as for Kafka

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes = Processes(folder)
        self._java: list[str] = []
        self._ports: list[int] = []

    @property
    def bootstrap(self) -> str:
        """The proxy's address."""
        return f"{HOST}:{self._ports[0]}"

    @property
    def pids(self) -> dict[str, int]:
        """By name, of name server and brokers."""
        return self._processes.pids

    def lacks(self, case: Case) -> str:
        """See ``System``."""
        if case.kind in ("fetch", "mixed"):
            return f"{case.kind}: its client takes and acknowledges each message by itself"
        if case.acks != "all":
            return f"acks={case.acks}"
        if case.flush != "sync":
            return f"flush={case.flush}: that of the brokers, which would have to warm up again"
        return "" if case.rf == BROKERS else f"RF {case.rf}: that of the brokers is {BROKERS}"

    def __enter__(self) -> Self:
        if absent := missing():
            raise Missing(absent)
        library = jars("rocketmq", VERSION, "org.apache.rocketmq", ARTIFACTS)
        self._folder.mkdir(parents=True, exist_ok=True)
        logs = self._folder / "logback.xml"
        logs.write_text(_NO_LOGS)
        self._java = [
            *JAVA,
            f"-Duser.home={self._folder}",
            f"-Drocketmq.home.dir={self._folder}",
            f"-Drmq.logback.configurationFile={logs}",
            "-cp",
            f"{library}/*",
        ]
        self._ports = free_ports(3 + 3 * BROKERS)
        try:
            self._start()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.stop()

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        """A topic of as many queues; all else is as the brokers have it."""
        queues = ("-r", str(partitions), "-w", str(partitions))
        made = self._admin(
            *("updateTopic", "-c", CLUSTER, "-t", topic, *queues, "-a", "+message.type=FIFO")
        )
        if "success" not in made:
            raise RuntimeError(f"{topic} could not be made: {made[-500:]}")

    def delete_topic(self, topic: str) -> None:
        """Its records stay in the log of all topics until the brokers end."""
        self._admin("deleteTopic", "-c", CLUSTER, "-t", topic)

    def _start(self) -> None:
        proxy_port, remoting_port, name_server_port, *ports = self._ports
        name_server = f"{HOST}:{name_server_port}"
        config = self._write(
            "name-server.conf", f"listenPort={name_server_port}\nbindAddress={HOST}\n"
        )
        self._processes.start("name-server", [*self._java, NAME_SERVER, "-c", str(config)])
        proxy = self._write("proxy.json", proxy_config(proxy_port, remoting_port, name_server))
        for number in range(BROKERS):
            own, fast, ha = ports[3 * number : 3 * number + 3]
            data = self._folder / f"data-{number}"
            text = broker_config(number, (own, fast, ha), name_server, data)
            config = self._write(f"broker-{number}.conf", text)
            if number == 0:
                options = ["-pm", "local", "-bc", str(config), "-pc", str(proxy), "-n", name_server]
                self._processes.start("broker-0", [*self._java, *HEAP, MASTER, *options])
                # A slave that comes before its master takes long to find it.
                self._wait_for(f"{HOST}:{own}", "#MasterAddr")
            else:
                command = [*self._java, *HEAP, SLAVE, "-c", str(config)]
                self._processes.start(f"broker-{number}", command)
        self._wait_for(f"{HOST}:{ports[0]}", rf"#SlaveNum\s+{BROKERS - 1}\b")

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        return path

    def _wait_for(self, master: str, pattern: str) -> None:
        """Until that is said of a master's replicas."""
        end_s = time.monotonic() + START_S
        while not re.search(pattern, self._admin("haStatus", "-b", master)):
            if self._processes.have_ended() or time.monotonic() > end_s:
                raise Missing(f"RocketMQ did not start: {self._processes.complaint()}")
            time.sleep(PAUSE_S)

    def _admin(self, *arguments: str) -> str:
        name_server = ("-n", f"{HOST}:{self._ports[2]}")
        done = subprocess.run(
            [*self._java, ADMIN, *arguments, *name_server],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        return done.stdout + done.stderr
