"""What runs in the node's pods: a broker, applications, and what reads topics afterwards."""

import fcntl
import json
from typing import Any, Final

from tests.kubernetes.image_store import name_of
from tests.kubernetes.node import Node
from tests.support.certificates import Authority
from tests.support.chart_tools import manifest
from tests.support.history import Event, assert_clean
from tests.support.waiting import until

BROKER: Final = "kafka-0.kafka.kafka:9092"
POD_LIMIT_S: Final = 180.0
SMALL_QUEUE: Final = "--set=queue.buffering.max.messages=20"
"""An idempotent producer of librdkafka's that is throttled and has a request's worth of records waiting keeps a core
busy, at a broker with quotas of its own as well; the node has two for everything."""
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
IMAGES: Final[dict[str, Any]] = {
    "image": {"repository": "localhost/kquota", "tag": "test", "pullPolicy": "Never"},
    "redirect": {"image": {"repository": "localhost/kquota-redirect", "tag": "test"}},
}
"""Values of the chart: images that were made here."""


def namespace(node: Node, name: str, **labels: str) -> None:
    """A namespace that enforces the Pod Security Standard "restricted", unless a label says otherwise."""
    node.apply(manifest("Namespace", name, labels={"pod-security.kubernetes.io/enforce": "restricted"} | labels))


def container(image: str, command: list[str], name: str = "app", **more: Any) -> dict[str, Any]:
    """A container that "restricted" lets pass."""
    return {
        "name": name, "image": name_of(image), "imagePullPolicy": "Never", "command": command,
        "securityContext": RESTRICTED, **more,
    }  # fmt: skip


def producer(topic: str, *arguments: str, bootstrap: str = "127.0.0.1:9092", **more: Any) -> dict[str, Any]:
    """An application that produces (images/clients/produce.py), with few records waiting: SMALL_QUEUE."""
    command = ["python3", "produce.py", f"--bootstrap={bootstrap}", f"--topic={topic}", SMALL_QUEUE, *arguments]
    return container("client", command, **more)


def deployment(name: str, *containers: dict[str, Any], **pod: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": list(containers), **pod}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return manifest("Deployment", name, "apps/v1", spec=spec)


def authority(node: Node) -> Authority:
    folder = node.folder / "authority"
    folder.mkdir(exist_ok=True)
    return Authority(folder)


def broker(node: Node) -> None:
    """Kafka in a pod of a StatefulSet, and a pod that reads topics without any quota; made once on each node."""
    with (node.folder / "broker").open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)
        made.seek(0)
        if not made.read():
            _make_broker(node)
            made.write("made")


def _make_broker(node: Node) -> None:
    namespace(node, "kafka")
    issued = authority(node).issue("broker", "kafka-0.kafka.kafka")
    node.kubectl(
        "create", "secret", "generic", "kafka-tls", "--namespace=kafka",
        f"--from-file=keystore.pem={issued.both}", f"--from-file=ca.crt={authority(node).certificate}",
    )  # fmt: skip
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093,TLS://0.0.0.0:9094",
        "advertised.listeners": "PLAINTEXT://kafka-0.kafka.kafka:9092,TLS://kafka-0.kafka.kafka:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": "/tls/keystore.pem",
        "listener.name.tls.ssl.truststore.type": "PEM",
        "listener.name.tls.ssl.truststore.location": "/tls/ca.crt",
        "listener.name.tls.ssl.client.auth": "required",
        "log.dirs": "/data/log",
        "num.partitions": "2",
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    labels = {"app": "kafka"}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    mounts = [("config", "/config"), ("data", "/data"), ("tls", "/tls"), ("tmp", "/tmp")]
    server = container(
        "kafka", ["/opt/kafka/bin/kafka-server-start.sh"], "kafka",
        env=[address, {"name": "HEAP", "value": "400m"}, {"name": "LOG_DIR", "value": "/tmp"}],
        resources={"requests": {"cpu": "500m", "memory": "600Mi"}},
        readinessProbe={"tcpSocket": {"port": 9092}, "periodSeconds": 1, "timeoutSeconds": 5},
        volumeMounts=[{"name": name, "mountPath": path} for name, path in mounts],
    )  # fmt: skip
    # What others' applications leave over is too little to read what they have written.
    reader = container("client", ["sleep", "infinity"], "reader", resources={"requests": {"cpu": "200m"}})
    spec = {
        "containers": [server],
        "securityContext": {"fsGroup": 1000},
        "terminationGracePeriodSeconds": 5,
        "volumes": [
            {"name": "config", "configMap": {"name": "kafka"}},
            {"name": "tls", "secret": {"secretName": "kafka-tls"}},
            {"name": "data", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    service = {
        "clusterIP": "None",
        "selector": labels,
        "publishNotReadyAddresses": True,
        "ports": [{"name": "plain", "port": 9092}, {"name": "tls", "port": 9094}],
    }
    pods = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}
    node.apply(
        manifest("ConfigMap", "kafka", data={"server.properties": text}),
        manifest("Service", "kafka", spec=service),
        manifest("StatefulSet", "kafka", "apps/v1", spec={"serviceName": "kafka"} | pods),
        deployment("reader", reader, terminationGracePeriodSeconds=1),
        namespace="kafka",
    )
    for one in ("statefulset/kafka", "deployment/reader"):
        node.kubectl("rollout", "status", "--namespace=kafka", one, "--timeout=180s")


def assert_records(node: Node, topic: str, count: int, pod: str) -> None:
    """A topic has so many records of the pod that produced them, each once and in order; read by a pod that no quota
    slows down."""
    said = node.kubectl(
        "exec", "--namespace=kafka", "deployment/reader", "--", "python3", "read.py", f"--bootstrap={BROKER}",
        f"--topic={topic}",
    )  # fmt: skip
    history = [Event(what, pod, number) for what in ("sent", "acknowledged") for number in range(count)]
    history += [Event("polled", "reader", number, place, offset) for place, offset, number in json.loads(said)[pod]]
    assert_clean(history)


def assert_exactly(node: Node, topic: str, done: dict[str, Any], pod: str) -> None:
    assert (done["what"], done["unanswered"], done["failed"]) == ("done", 0, 0), done
    assert_records(node, topic, done["acknowledged"], pod)


def statuses(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    parts = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    return {one["name"]: one for one in parts}


def container_id(pod: dict[str, Any], name: str) -> str:
    return str(statuses(pod)[name]["containerID"]).rpartition("/")[2]


def is_ready(pod: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def ready_pod(node: Node, namespace: str, selector: str = "", limit_s: float = POD_LIMIT_S) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = [one for one in node.pods(namespace, selector) if "deletionTimestamp" not in one["metadata"]]
        return found[0] if len(found) == 1 and is_ready(found[0]) else None

    pod: dict[str, Any] = until(look, lambda: describe(node, namespace, selector), limit_s)
    return pod


def describe(node: Node, namespace: str, selector: str = "") -> str:
    chosen = ["--selector", selector] if selector else []
    answer = node.try_kubectl("describe", "pods", "--namespace", namespace, *chosen).stdout
    logs = node.try_kubectl(
        "logs", "--namespace", namespace, "--all-containers", "--prefix", "--tail=20",
        *(chosen or ["--selector", "app"]),
    )  # fmt: skip
    return f"{answer[-5000:]}\n{logs.stdout[-3000:]}{logs.stderr[-500:]}"


def name_of_pod(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def log_lines(node: Node, namespace: str, pod: str, container: str = "app", *more: str) -> list[dict[str, Any]]:
    text = node.kubectl("logs", f"--namespace={namespace}", pod, f"--container={container}", *more)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def rate_per_s(lines: list[dict[str, Any]], seconds: float) -> float:
    last = lines[-1]
    first = next(line for line in lines if line["at"] >= last["at"] - seconds)
    return float((last["acknowledged"] - first["acknowledged"]) / (last["at"] - first["at"]))


def metrics(node: Node, pod: dict[str, Any]) -> dict[str, float]:
    text = node.http(f"http://{pod['status']['podIP']}:9404/metrics").raise_for_status().text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def throttled_s(node: Node, pod: dict[str, Any]) -> float:
    found = metrics(node, pod)
    return sum(value for name, value in found.items() if name.startswith("kquota_throttle_seconds_total"))
