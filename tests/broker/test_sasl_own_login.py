"""The sidecar's own login at a real broker: brokers, quotas, records and the fleet; what it does without a login."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from typer.testing import CliRunner

from proxy.app.cli.main import app
from proxy.net.upstream.cluster import Access, Node, OtherNodeError, check_node
from proxy.net.upstream.credentials import Credentials
from tests.corpus.job import Job
from tests.corpus.tools import create_topic_on
from tests.lab.kafka import KafkaCluster, run_tool
from tests.lab.kafka.ports import free_ports
from tests.lab.kafka.security import MECHANISMS
from tests.support.certificates import Authority
from tests.support.fault_tools import Producing
from tests.support.raw_client import RawClient
from tests.support.records import subscribed
from tests.support.secure_tools import PASSWORDS, login, own_login
from tests.support.sidecars import sidecar
from tests.support.waiting import until

LISTENER = "SASL_PLAINTEXT"
TOOLS = "org.apache.kafka.tools"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_brokers_and_quotas_are_known_before_any_client_comes(
    mechanism: str, kafka_secure: KafkaCluster, tmp_path: Path
) -> None:
    upstream = {"bootstrap": kafka_secure.bootstrap_of(LISTENER), "sasl": own_login(tmp_path, mechanism)}
    with sidecar([], {"source": "cluster", "poll_interval_s": 1}, upstream=upstream) as running:
        text = running.log.read_text()
        assert '"message": "cluster reached", "brokers": [1]' in text
        assert '"message": "quotas read from the cluster"' in text
        assert running.metric("kquota_connections_opened_total") == 0
        assert (tmp_path / "secret").read_text().strip() not in text


def test_reports_wrong_password_and_takes_the_right_one(kafka_secure: KafkaCluster, tmp_path: Path) -> None:
    upstream = {"bootstrap": kafka_secure.bootstrap_of(LISTENER), "sasl": own_login(tmp_path, "SCRAM-SHA-512")}
    (secret := tmp_path / "secret").write_text("not-the-password")
    refused, reached = "refuses the login (error 58)", '"cluster reached"'
    with sidecar([], upstream=upstream, not_ready=refused) as running:
        for password, said, times in ((None, reached, 1), ("not-the-password", refused, 2), (None, reached, 2)):
            secret.write_text(password or PASSWORDS["kquota"])
            until(lambda said=said, times=times: running.log.read_text().count(said) >= times, said)
        assert "password" not in running.log.read_text().replace(str(secret), "")


@pytest.mark.parametrize(
    ("listener", "settings", "code", "answer"),
    [
        ("PLAINTEXT", {}, 0, "1 broker"),
        ("SASL_PLAINTEXT", {"sasl": "kquota"}, 0, "1 broker"),
        ("SASL_PLAINTEXT", {"sasl": "alice"}, 1, "refuses the login"),
        ("SASL_PLAINTEXT", {}, 0, "requires a SASL login"),  # clients log in themselves
        ("SASL_SSL", {"sasl": "kquota", "tls": True}, 0, "1 broker"),
        ("SASL_SSL", {"sasl": "kquota"}, 1, "the broker speaks TLS here, but upstream.tls is not set"),
        (None, {}, 1, "Connection refused"),  # the kernel's reason
    ],
)
def test_check_connects(
    listener: str | None,
    settings: dict[str, Any],
    code: int,
    answer: str,
    kafka_secure: KafkaCluster,
    authority: Authority,
    tmp_path: Path,
) -> None:
    asked = [f"127.0.0.1:{free_ports(1)[0]}"]
    if listener is not None:
        asked = kafka_secure.bootstrap if listener == "PLAINTEXT" else kafka_secure.bootstrap_of(listener)
    made: dict[str, Any] = {"bootstrap": asked}
    if "sasl" in settings:
        made["sasl"] = own_login(tmp_path, "SCRAM-SHA-512") | {"username": settings["sasl"]}
    if "tls" in settings:
        made["tls"] = {"ca_file": str(authority.certificate)}
    path = tmp_path / "kquota.yaml"
    path.write_text(yaml.safe_dump({"upstream": made, "quotas": [{"client-id": "a", "producer_byte_rate": 1}]}))
    done = CliRunner().invoke(app, ["check", "--connect", "--config", str(path)])
    assert (done.exit_code, answer in done.stdout) == (code, True), done.output
    found = json.loads(CliRunner().invoke(app, ["check", "--connect", "--json", "--config", str(path)]).stdout)
    assert found["cluster"]["ok"] is (code == 0)
    if answer == "1 broker":
        (broker,) = found["cluster"]["brokers"]
        assert (broker["address"], broker["clients_get"], broker["error"]) == (asked[0], "127.0.0.1:19093", None)
        assert broker["fetch"][1] >= 13


def test_a_broker_says_after_a_login_only_which_one_it_is(kafka_secure: KafkaCluster, tmp_path: Path) -> None:
    (address,) = kafka_secure.bootstrap_of(LISTENER)
    host, _, port = address.rpartition(":")
    own_login(tmp_path, "PLAIN")
    access = Access(5.0, None, Credentials("PLAIN", "kquota", tmp_path / "secret"))
    with pytest.raises(OtherNodeError):
        trio.run(check_node, host, int(port), access, Node("another cluster", 1))


def records(kafka: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    """What is on the topic, read by the operator's listener."""
    with subscribed(kafka.bootstrap, topic, consumer_timeout_ms=3000) as consumer:
        return [json.loads(message.value) for message in consumer]


def test_delegation_tokens_are_charged_to_their_owner(kafka_secure: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """KIP-48: the client logs in by the token's id and secret; its owner is asked of the cluster, or configured."""
    token_id, hmac = new_delegation_token(kafka_secure, tmp_path)
    where = {"bootstrap": kafka_secure.bootstrap_of(LISTENER)}
    (other := tmp_path / "bob").mkdir()
    ways: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (where | {"sasl": own_login(tmp_path, "SCRAM-SHA-256")}, {}, "alice"),
        (where | {"sasl": own_login(other, "SCRAM-SHA-256", "bob")}, {"sasl": {"unknown_user": "tokens"}}, "tokens"),
        (where, {"sasl": {"token_owners": {token_id: "configured"}}}, "configured"),
        (where, {"sasl": {"unknown_user": "tokens"}}, "tokens"),
    ]
    for settings, identity, user in ways:
        own = user == "alice"
        export = {"export": {"kafka_topic": "usage-of-tokens", "interval_s": 1}} if own else {}
        with sidecar([], upstream=settings, identity=identity, **export) as running:
            known = java_login(tmp_path, token_id, hmac, ' tokenauth="true"')
            run_tool(f"{TOOLS}.TopicCommand", ["--bootstrap-server", running.bootstrap, *known, "--list"])
            assert user in {sample.labels.get("user") for sample in running.samples()}
            if own:  # usage records go to the topic with the sidecar's own login
                until(lambda: records(kafka_secure, "usage-of-tokens"))
            assert hmac not in running.log.read_text() + running.metrics()
            if "sasl" in settings and not own:  # a user without Describe on alice's tokens
                first, *_ = running.logged("owner of a delegation token unknown")
                assert "Describe" in first["error"]


def java_login(folder: Path, username: str, password: str, more: str = "") -> list[str]:
    """Options of a Java tool that logs in by SCRAM."""
    properties = folder / f"{username}.properties"
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{username}" '
    jaas += f'password="{password}"{more};'
    properties.write_text(f"security.protocol={LISTENER}\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={jaas}\n")
    return ["--command-config", str(properties)]


def new_delegation_token(kafka: KafkaCluster, folder: Path) -> tuple[str, str]:
    """(id, secret) of a new token of alice's."""
    (bootstrap,) = kafka.bootstrap_of(LISTENER)
    arguments = ["--bootstrap-server", bootstrap, *java_login(folder, "alice", PASSWORDS["alice"]), "--create"]
    done = run_tool(f"{TOOLS}.DelegationTokenCommand", [*arguments, "--max-life-time-period", "-1"])
    rows = [line.split() for line in done.stdout.splitlines() if "User:alice" in line]
    assert rows, done.stdout + done.stderr
    return rows[0][0], rows[0][1]


@pytest.mark.parametrize("keeps", [True, False])
def test_clients_that_know_only_a_broker_port_come_back(
    keeps: bool, kafka_secure: KafkaCluster, tmp_path: Path
) -> None:
    """kill -9 before brokers that want a login, which the sidecar itself does not have: by the file of its ports."""
    path = tmp_path / "ports.json"
    job = Job(kafka_secure.bootstrap[0], uuid.uuid4().hex[:6], kafka_secure.version, 1)
    topic = create_topic_on(job, "t", {0: [1]})
    credentials = login("confluent-kafka", "PLAIN", "alice", PASSWORDS["alice"])
    listen = {"state_file": str(path)} if keeps else {}
    with sidecar(kafka_secure.bootstrap_of(LISTENER), listen=listen) as running:
        assert running.get("/brokers")["brokers"] == []
        with Producing(running.bootstrap, topic, **credentials) as first:
            first.wait_for_progress()
            first.finish()
        (port,) = (each["local_port"] for each in running.get("/brokers")["brokers"])
        with Producing(f"127.0.0.1:{port}", topic, **credentials) as producing:
            producing.wait_for_progress()
            until(lambda: path.exists() or not keeps)
            running.kill()
            running.start_again()  # ready
            if keeps:
                producing.wait_for_progress()
                producing.finish()
                assert producing.refused == {}
            else:
                with pytest.raises(ConnectionRefusedError):
                    RawClient(f"127.0.0.1:{port}")
                running.kill()


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_fleet_topic_is_reached_by_tls_with_the_own_login(
    mechanism: str, kafka_secure: KafkaCluster, authority: Authority, tmp_path: Path
) -> None:
    upstream = {
        "bootstrap": kafka_secure.bootstrap_of("SASL_SSL"),
        "sasl": own_login(tmp_path, mechanism),
        "tls": {"ca_file": str(authority.certificate)},
    }
    fleet = {"id": uuid.uuid4().hex, "default_scope": "fleet"}
    with sidecar([], upstream=upstream, fleet=fleet) as one, sidecar([], upstream=upstream, fleet=fleet) as other:
        until(lambda: one.metric("kquota_fleet_instances") == other.metric("kquota_fleet_instances") == 2)
        assert one.metric("kquota_fleet_lost") == 0


def test_forbidden_topic_creation_names_the_command(kafka_secure: KafkaCluster, tmp_path: Path) -> None:
    sasl = own_login(tmp_path, "SCRAM-SHA-512", "alice")
    upstream = {"bootstrap": kafka_secure.bootstrap_of(LISTENER), "sasl": sasl}
    with sidecar([], upstream=upstream, fleet={"topic": "closed-fleet"}) as one:
        until(lambda: one.metric("kquota_fleet_lost") == 1, limit_s=40.0)
        text = one.log.read_text()
        assert "closed-fleet is missing and cannot be created" in text
        assert "kafka-topics.sh" in text
