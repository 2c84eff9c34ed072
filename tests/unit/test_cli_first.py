"""What a newcomer meets: a first file, quotas from elsewhere, warnings before anything runs, help in plain words."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from config.load import load_bytes, warnings_of
from config.problems import Problem
from config.table import to_table
from proxy.app.cli.check import all_warnings
from proxy.app.cli.main import app
from quota.entity import DEFAULT, Kind
from tests.support.certificates import Authority
from tests.support.command import in_process as kquota
from tests.support.strimzi import KAFKA_USERS

BOOTSTRAP = 'upstream: {bootstrap: ["kafka-0.kafka:9092", "kafka-1.kafka:9092", "kafka-2.kafka:9092"]}\n'
QUOTAS = "quotas: [{client-id: <default>, producer_byte_rate: 2M}]\n"


def test_the_first_file_is_a_good_one_with_the_values_given(tmp_path: Path) -> None:
    path = tmp_path / "kquota.yaml"
    flags = ("--bootstrap", "a:9092", "--bootstrap", "[::1]:9091", "--produce", "3M", "--user", 'o"x', "--port", "9192")
    done = kquota("init", *flags, "--output", str(path))
    assert (done.exit_code, done.stderr) == (0, "")
    config = load_bytes("kquota.yaml", path.read_bytes())
    assert list(warnings_of(config)) == []
    assert [str(address) for address in config.upstream.bootstrap] == ["a:9092", "[::1]:9091"]
    assert (config.listen.port, config.identity.static_user) == (9192, 'o"x')
    (entry,) = to_table(config).entries
    assert (entry.client_id, entry.producer_byte_rate, entry.consumer_byte_rate) == (DEFAULT, 3_000_000, None)
    assert path.read_text().count("#") >= 5
    done = kquota("init", "--bootstrap", "a:9092", "--shadow")  # to stdout, with limits
    (entry,) = to_table(load_bytes("-", done.stdout.encode())).entries
    assert (entry.limit(Kind.PRODUCE), entry.limit(Kind.FETCH), entry.mode) == (2_000_000, 4_000_000, "shadow")


def test_init_refuses_wrong_flags_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kquota.yaml"
    done = kquota("init", "--bootstrap", "a:9092", "--produce", "2m", "--output", str(path))
    assert (done.exit_code, path.exists()) == (2, False)
    assert "did you mean 2M (megabytes) or 2Mi?" in done.stderr
    path.write_text("mine")
    done = kquota("init", "--bootstrap", "a:9092", "--output", str(path))
    assert (done.exit_code, path.read_text()) == (1, "mine")
    assert "already exists" in done.stderr


def test_quotas_of_kafka_users_become_entries(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text(KAFKA_USERS)
    done = kquota("import", "strimzi", str(path))
    assert (done.exit_code, done.stderr) == (0, "")
    config = load_bytes("q.yaml", done.stdout.encode(), on_paper=True)
    first, second = to_table(config).entries
    assert first.user == "reporting"
    assert [first.limit(kind) for kind in Kind] == [1_048_576, 2_097_152, 55, 0.5]
    assert (second.user, second.producer_byte_rate) == ("CN=orders", 5_000_000)  # by certificate: its subject
    assert json.loads(kquota("import", "strimzi", "--json", str(path)).stdout) == yaml.safe_load(done.stdout)
    table = kquota("import", "strimzi", "-o", "table", str(path)).stdout.splitlines()
    assert [row.split()[:2] for row in table[1:]] == [["reporting", "1048576"], ["CN=orders", "5000000"]]


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("kind: KafkaUser\nspec: {}\n", 1, "no KafkaUser with spec.quotas"),
        ("a: [", 2, "expected YAML"),
        (KAFKA_USERS.replace("5000000", "-1"), 2, "items[0].spec.quotas.producerByteRate: got -1, expected a number"),
    ],
)
def test_import_names_unusable_input(text: str, code: int, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text(text)
    done = kquota("import", "strimzi", str(path))
    assert (done.exit_code, done.stdout) == (code, "")
    assert expected in done.stderr
    path.unlink()
    done = kquota("import", "strimzi", str(path))
    assert (done.exit_code, done.stderr) == (2, f"error: {path}: No such file or directory\n")


def warnings(text: str) -> list[Problem]:
    return all_warnings(load_bytes("q.yaml", text.encode()))


APPLY = "quotas: {alter: apply, overlay: /tmp/o, entries: [{user: a, request_percentage: 1}], alter_principals: "
NO_TLS = "listen: {tls: {certificate_file: /no/c, key_file: /dev/null}}"


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("listen: {broker_ports: 19092-19093}", "listen.broker_ports", "fewer ports (2) than upstream.bootstrap has"),
        ("max_mute: 3m", "max_mute", "3 min exceeds clients' timeouts: Java producers drop records after 2 min"),
        ("max_mute: 0", "max_mute", "0 (no cap) exceeds clients' timeouts"),
        ("export: {directory: usage}", "export.directory", "is relative to the sidecar's working directory"),
        ("identity: {static: {file: /no/user}}", "identity.static.file", "no such file on this machine"),
        (NO_TLS, "listen.tls.certificate_file", "no such file on this machine"),
        ('quotas: [{client-id: "etl-*", producer_byte_rate: 1M}]', "quotas[0].client-id", "Kafka has no prefixes"),
        ("quotas: [{client-id: default, producer_byte_rate: 1M}]", "quotas[0].client-id", "did you mean <default>?"),
        ("quotas: [{user: <Default>, producer_byte_rate: 1M}]", "quotas[0].user", "did you mean <default>?"),
        ('quotas: [{user: "User:alice", producer_byte_rate: 1M}]', "quotas[0].user", "did you mean alice?"),
        (APPLY + '[bob, "*"]}', "quotas.alter_principals[1]", "is taken literally: name each user"),
        (APPLY + "[<default>]}", "quotas.alter_principals[0]", "is taken literally: name each user"),
        ("quotas: [{user: a, producer_byte_rate: 10}]", "quotas[0].producer_byte_rate", "did you mean 10k or 10M?"),
    ],
)
def test_check_warns_of_what_is_unlikely_to_be_meant(text: str, place: str, expected: str) -> None:
    config = BOOTSTRAP + (text if "quotas" in text else QUOTAS + text)
    (warning,) = warnings(config)
    assert (warning.place, warning.line) == (place, config.count("\n") + 1)
    assert expected in warning.expected


def test_check_warns_of_expired_certificate(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("old", "localhost", expired=True)
    text = f"{BOOTSTRAP}listen: {{tls: {{certificate_file: {issued.chain}, key_file: {issued.key}}}}}\n{QUOTAS}"
    (warning,) = warnings(text)
    assert (warning.place, warning.expected[:10]) == ("listen.tls.certificate_file", "expired at")


def test_check_warns_of_files_that_run_refuses(tmp_path: Path) -> None:
    """Of those on this machine: it says what the start says."""
    empty, garbage, lines, short = (tmp_path / name for name in ("empty", "garbage", "lines", "short"))
    for path, content in ((empty, b""), (garbage, b"\xff"), (lines, b"alice\nbob\n"), (short, b"key")):
        path.write_bytes(content)
    text = f"""listen: {{tls: {{certificate_file: {empty}, key_file: {garbage}}}, state_file: {tmp_path}/no/ports.json}}
upstream:
  bootstrap: ["kafka:9092"]
  tls: {{ca_file: {garbage}}}
  sasl: {{mechanism: PLAIN, username: u, password_file: {empty}}}
identity: {{static: {{file: {lines}}}}}
fleet: {{key_file: {short}}}
quotas:
  {{alter: apply, alter_principals: [b], overlay: {tmp_path}/no/o.yaml, entries: [{{user: a, request_percentage: 1}}]}}
export: {{directory: {empty}/usage}}
"""
    found = {warning.place: warning.expected for warning in warnings(text)}
    refused = ("listen.tls", "upstream.tls", "upstream.sasl", "identity.static", "fleet.key_file")
    assert set(found) >= {*refused, "listen.state_file", "quotas.overlay", "export.directory"}
    assert all(found[place].startswith("kquota run would refuse this: ") for place in refused)
    assert "no PEM" in found["listen.tls"] or str(empty) in found["listen.tls"]


@pytest.mark.parametrize(
    ("broker", "warned"),
    [
        ("kafka:9092", False),
        ("kafka:9093", True),
        ("kafka:9099", False),
        ("pkc-1.eu-central-1.aws.Confluent.Cloud:9092", True),
        ("k.aivencloud.com:12345", True),
        ("b-1.c2.kafka.eu-central-1.amazonaws.com:9092", False),  # MSK's plain port
    ],
)
def test_check_warns_of_brokers_that_expect_tls(broker: str, warned: bool) -> None:
    text = f'upstream: {{bootstrap: ["other:9092", "{broker}"]}}\n{QUOTAS}'
    said = f'upstream.bootstrap[1]: got "{broker}", brokers there usually expect TLS'
    assert [said in str(warning) for warning in warnings(text)] == [True] * warned
    assert not warnings(text.replace("]}", "], tls: {}}", 1))


def test_forms_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KQUOTA_CONFIG", raising=False)
    assert "expected a file: kquota check FILE" in kquota("check").output
    path = tmp_path / "q.yaml"
    path.write_text(BOOTSTRAP + "quotas: [{client-id: etl, producer_byte_rate: 1M}]\n")
    for command in (("check", str(path)), ("explain", "--config", str(path)), ("version",), ("schema",)):
        shown = kquota(*command, "-o", "json").stdout
        assert json.loads(shown) == yaml.safe_load(kquota(*command, "-o", "yaml").stdout)
    assert kquota("check", "--config", str(path), "--json").stdout == kquota("check", str(path), "-o", "json").stdout


def test_wrong_order_of_top_names_the_orders() -> None:
    done = kquota("top", "--sort", "WRONG")
    assert done.exit_code == 2
    assert "'--sort'" in done.stderr
    assert "'WRONG' is not one of 'use', 'throttled', 'rate', 'name'" in done.stderr


def test_version_and_completion() -> None:
    assert kquota("version").stdout == kquota("--version").stdout != ""
    asked = {"COMP_WORDS": "kquota ch", "COMP_CWORD": "1", "_KQUOTA_COMPLETE": "complete_bash"}
    found = CliRunner().invoke(app, [], env=asked, prog_name="kquota")
    assert found.stdout.split() == ["check"]


@pytest.mark.parametrize("command", ["top", "explain"])
def test_finds_the_sidecar_to_ask(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(admin: str, *_: object) -> None:
        asked.append(admin)
        raise OSError("no server there")

    monkeypatch.setattr("proxy.app.cli.top.get_json", refuse)  # first: to import it binds the other one
    monkeypatch.setattr("proxy.app.cli.admin_client.get_json", refuse)
    monkeypatch.delenv("KQUOTA_CONFIG", raising=False)
    assert kquota(command).exit_code == 1
    monkeypatch.setenv("KQUOTA_ADMIN", "http://10.0.0.7:9404")
    assert kquota(command).exit_code == 1
    assert kquota(command, "--admin", "http://elsewhere:1").exit_code == 1
    assert asked == ["http://127.0.0.1:9404", "http://10.0.0.7:9404", "http://elsewhere:1"]
