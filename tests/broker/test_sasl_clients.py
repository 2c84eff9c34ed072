"""Real clients log in by SASL through the sidecar to a real broker: the right user is charged, failures are the same as
without it, logging in again works under throttle, and no secret is left anywhere."""

import re
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import pytest
import yaml

from proxy.app.cli import smoke
from tests.lab.kafka import KafkaCluster, run_tool
from tests.lab.kafka.security import MECHANISMS
from tests.support.certificates import Authority
from tests.support.clients import LIBRARIES, PRODUCERS, Load, Timeline
from tests.support.precedence import precedence
from tests.support.raw_client import ClosedByPeerError, RawClient
from tests.support.sasl_tools import authenticate, bearer, handshake, raw
from tests.support.secure_tools import CLOSED, PASSWORDS, login, token
from tests.support.session_tools import request
from tests.support.sidecars import Sidecar, get, sidecar
from tests.support.waiting import until

PLAIN, TLS = "SASL_PLAINTEXT", "SASL_SSL"
LONG = [(TLS, client) for client in ("kafka-python", "aiokafka", "java-console")]
"""test_tls_brokers has their TLS."""
every_client = pytest.mark.parametrize(
    ("listener", "client"),
    [
        pytest.param(listener, client, marks=[pytest.mark.long] if (listener, client) in LONG else [])
        for listener in (PLAIN, TLS)
        for client in LIBRARIES
    ],
)
RECORDS, RECORD_BYTES = 3, 100
TOKENS = {user: token(user) for user in ("carol", "refused")}
"""Of OAUTHBEARER; brokers take them from any client."""


class Way(NamedTuple):
    """To one listener of the broker."""

    listener: str
    sidecar: Sidecar
    """With usage records, without a login of its own. Before SASL_SSL it ends TLS, and dials the broker by TLS."""
    direct: list[str]
    authority: Path | None
    """Whom clients trust: of the sidecar and of the broker."""

    def login(self, client: str, mechanism: str, user: str, secret: str) -> dict[str, Any]:
        return login(client, mechanism, user, secret, self.listener, self.authority)


Ways = Callable[[str], Way]


@pytest.fixture(scope="module")
def ways(kafka_secure: KafkaCluster, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """One sidecar before each listener, started when the first test asks."""
    own = authority.issue("kquota-sasl", "127.0.0.1", common_name="kquota")
    tls = {
        "listen_tls": {"certificate_file": str(own.chain), "key_file": str(own.key)},
        "upstream_tls": {"ca_file": str(authority.certificate)},
    }
    quotas = [{"user": "<default>", "producer_byte_rate": 50_000_000, "request_percentage": 5000}]
    with ExitStack() as stack:

        @cache
        def way(listener: str) -> Way:
            export = {"directory": str(tmp_path_factory.mktemp("usage")), "interval_s": 1, "rotate_s": 1}
            direct = kafka_secure.bootstrap_of(listener)
            more: dict[str, Any] = tls if listener == TLS else {}
            running = stack.enter_context(sidecar(direct, quotas, export=export, **more))
            return Way(listener, running, direct, authority.certificate if listener == TLS else None)

        yield way


def produce(client: str, mechanism: str, way: Way, direct: list[str], topic: str) -> Timeline:
    """A few records; who the user is follows from the mechanism, so that none is mistaken for another."""
    user = "carol" if mechanism == "OAUTHBEARER" else "alice"
    secret = TOKENS["carol"] if mechanism == "OAUTHBEARER" else PASSWORDS["alice"]
    settings = way.login(client, mechanism, user, secret)
    client_id = f"{client}-{mechanism}"
    load = Load([way.sidecar.bootstrap], topic, client_id, RECORDS, RECORD_BYTES, 60.0, settings, direct)
    return PRODUCERS[client](load)


@pytest.mark.parametrize(
    ("listener", "arguments", "said"), [(PLAIN, [], "requires a login"), (TLS, ["--tls"], "answers with TLS")]
)
def test_helm_test_needs_no_secret(
    listener: str, arguments: list[str], said: str, ways: Ways, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = ways(listener).sidecar.bootstrap
    assert smoke.main([*arguments, f"--bootstrap={bootstrap}", "--broker-ports=1-2", "--limit-s=0"]) == 0
    assert said in capsys.readouterr().out


@every_client
def test_each_client_is_charged_as_who_it_logged_in_as(
    listener: str, client: str, ways: Ways, kafka_secure: KafkaCluster, topic: str
) -> None:
    way = ways(listener)
    secured = way.sidecar

    def one(mechanism: str) -> Timeline:
        return produce(client, mechanism, way, kafka_secure.bootstrap, topic)

    # JVMs take their time to start: side by side. Python's own clients share one interpreter: one after the other.
    with ThreadPoolExecutor(4 if client == "java-console" else 1) as pool:
        done = dict(zip(MECHANISMS, pool.map(one, MECHANISMS), strict=True))

    def charged(mechanism: str, **user: str) -> float:
        return secured.metric("kquota_bytes_total", kind="produce", client_id=f"{client}-{mechanism}", **user)

    for mechanism, timeline in done.items():
        assert timeline.errors == [], mechanism
        who = {"user": "carol" if mechanism == "OAUTHBEARER" else "alice"}
        until(lambda of=mechanism, who=who: charged(of, **who) > RECORDS * RECORD_BYTES, mechanism)
        assert charged(mechanism, **who) == charged(mechanism), "charged to others"


def conversation(address: str, frames: list[bytes]) -> list[bytes]:
    """What a broker answers to these frames, and at last how it ends."""
    answers = []
    with RawClient(address) as client:
        try:
            for frame in frames:
                client.send(frame)
                answers.append(client.read_frame().payload)
        except (ClosedByPeerError, ConnectionError) as end:  # a reset: it was closed with the next frame unread
            answers.append(b"closed after " + getattr(end, "received", b""))
    return answers


def test_refusals_are_the_brokers_own_to_the_byte(ways: Ways) -> None:
    """Wrong passwords, unknown users, mechanisms, tokens; by requests of each version, and raw."""
    secured, (direct,) = ways(PLAIN).sidecar, ways(PLAIN).direct
    expired = bearer(token("carol", exp=1))
    wrong = {"PLAIN": [b"\0alice\0wrong"], "SCRAM-SHA-256": [b"n,,n=nobody,r=abc"], "OWN": [b"x"]}
    wrong["OAUTHBEARER"] = [expired, b"\1"]
    metadata = request(3, 1, 9, struct.pack(">i", 0))
    for mechanism, tokens in wrong.items():
        for version in (-1, 0, 1, 2):
            first = handshake(mechanism, 0 if version < 0 else 1)
            frames = [first, *(raw(one) if version < 0 else authenticate(one, version) for one in tokens), metadata]
            answers = conversation(secured.bootstrap, frames)
            assert answers == conversation(direct, frames), (mechanism, version)
            assert answers[-1].startswith(b"closed")
    # Without any login the connection is closed, and ApiVersions is answered before that.
    frames = [request(18, 0, 1, b""), metadata]
    (_, here), (_, there) = conversation(secured.bootstrap, frames), conversation(direct, frames)
    assert here == there == b"closed after "
    assert not [one for one in secured.get("/connections")["connections"] if one["user"] != "ANONYMOUS"]


TROUBLES = r"\w*(?:Authentication|Authorization)\w*|Topic authorization failed|_[A-Z_]+|Unable to bootstrap"


def trouble(client: str, way: Way, bootstrap: list[str], topic: str, secret: str) -> set[str]:
    """What the client calls its troubles."""
    limit_ms = 3000 if secret == "wrong" else 30_000  # some try a wrong password again until then
    few: dict[str, dict[str, Any]] = {
        "kafka-python": {"bootstrap_timeout_ms": limit_ms, "max_block_ms": limit_ms},
        "aiokafka": {"request_timeout_ms": limit_ms},
        "confluent-kafka": {"message.timeout.ms": limit_ms},
        "java-console": {},
    }
    settings = way.login(client, "SCRAM-SHA-512", "alice", secret) | few[client]
    if client == "java-console":  # its producers go on trying for long; its administrator's tool says it at once
        with NamedTemporaryFile("w", suffix=".properties") as file:
            file.write("".join(f"{name}={value}\n" for name, value in settings.items()))
            file.flush()
            where = ["--bootstrap-server", ",".join(bootstrap), "--command-config", file.name]
            done = run_tool("org.apache.kafka.tools.TopicCommand", [*where, "--create", "--topic", topic], check=False)
        return set(re.findall(TROUBLES, done.stdout + done.stderr))
    load = Load(bootstrap, topic, f"refused-{client}", 1, RECORD_BYTES, 30.0, settings)
    return set(re.findall(TROUBLES, "\n".join(PRODUCERS[client](load).errors)))


@every_client
def test_clients_see_the_same_refusals_as_without_the_sidecar(
    listener: str, client: str, ways: Ways, topic: str
) -> None:
    way = ways(listener)
    refused = ((topic, "wrong"), (CLOSED + topic, PASSWORDS["alice"]))
    cases = [(to, *one) for one in refused for to in ([way.sidecar.bootstrap], way.direct)]
    with ThreadPoolExecutor(4 if client == "java-console" else 2) as pool:
        wrong, wrong_direct, closed, closed_direct = pool.map(lambda case: trouble(client, way, *case), cases)
    assert wrong == wrong_direct != set()
    assert closed == closed_direct != set()


@pytest.mark.parametrize("listener", [PLAIN, TLS])
def test_no_secret_is_logged_shown_or_exported(listener: str, ways: Ways) -> None:
    """After all of the above, at log level debug."""
    secured = ways(listener).sidecar
    usage = Path(str(secured.config)).parent  # its log and configuration
    planted = [PASSWORDS["alice"], "wrong", TOKENS["carol"], TOKENS["carol"].split(".")[1]]
    exported = Path(yaml.safe_load(secured.config.read_text())["export"]["directory"])

    def complete() -> bool:
        written = any("alice" in file.read_text() for file in exported.rglob("*.jsonl"))
        return written and not any(exported.rglob("*.open"))

    until(complete, "alice's records")
    files = [*usage.rglob("*"), *exported.rglob("*.jsonl")]  # an open one may be renamed at any time
    said = {str(file): file.read_text() for file in files if file.is_file()}
    explain = "/explain?user=alice&client-id=kafka-python-PLAIN"
    for path in ("/metrics", "/connections", "/quotas", "/throttled", explain):
        said[path] = get(secured.admin + path).text
    assert "alice" in said["/metrics"]
    for place, text in said.items():
        for secret in planted:
            assert f'"{secret}"' not in text, place
            assert len(secret) < 6 or secret not in text, place


AGAIN: dict[str, tuple[str, int, dict[str, Any]]] = {
    "java-console": ("alice", 300, {"batch.size": "400000", "linger.ms": "0"}),
    "confluent-kafka": ("bob", 450, {"linger.ms": 0}),
}
"""Client: its user, records, settings."""


@pytest.mark.long
def test_logging_in_again_works_under_throttle(kafka_secure: KafkaCluster, topic: str) -> None:
    """Sessions of 8 s (connections.max.reauth.ms), and producers that have to wait for most of the time."""
    rate, record_bytes = 1_000_000, 100_000
    quotas = [{"user": user, "producer_byte_rate": rate} for user, _, _ in AGAIN.values()]
    with (
        precedence(*(node.pid for node in kafka_secure.nodes)),
        sidecar(kafka_secure.bootstrap_of("SASL_REAUTH"), quotas, pacing="kafka") as running,
    ):

        def produce_much(client: str) -> Timeline:
            user, records, small = AGAIN[client]
            settings = login(client, "SCRAM-SHA-256", user, PASSWORDS[user]) | small
            where = f"{topic}-{user}"
            load = Load(
                [running.bootstrap], where, client, records, record_bytes, 90.0, settings, kafka_secure.bootstrap
            )
            return PRODUCERS[client](load)

        with ThreadPoolExecutor(len(AGAIN)) as pool:
            done = list(pool.map(produce_much, AGAIN))
        assert [timeline.errors for timeline in done] == [[], []]
        assert [timeline.total_bytes for timeline in done] == [one[1] * record_bytes for one in AGAIN.values()]
        for reason in ("broker_closed", "broker_reset"):
            assert running.metric("kquota_connections_closed_total", reason=reason) == 0
        for user, _, _ in AGAIN.values():
            assert running.metric("kquota_throttle_seconds_total", user=user) >= 3, user

        def renewals() -> float:  # SCRAM takes two messages
            logins = running.metric("kquota_requests_total", api="SaslAuthenticate") / 2
            return logins - running.metric("kquota_connections_opened_total")

        until(lambda: renewals() >= len(AGAIN), "a renewal of each client")
        assert {one["user"] for one in running.get("/connections")["connections"]} <= {"alice", "bob"}
