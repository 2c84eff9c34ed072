"""Loading: what a good file means, and that a bad one is described so that its author can mend it at once."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from config.load import load_bytes, warnings_of
from config.model import Config, json_schema
from config.parts import fingerprint
from config.problems import MAX_FILE_BYTES, ConfigError, Problem
from config.sections import Limits
from config.settings import new_ledger, proxy_settings
from config.table import entries, to_table
from proxy.core.auth.identity import IdentityPolicy
from proxy.net.settings import ProxySettings
from quota.connections import ConnectionEntry, EntityType
from quota.entity import DEFAULT
from quota.table import Entry

MINIMAL = 'upstream: {bootstrap: ["kafka:9092"]}\n'


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load_bytes("q.yaml", text.encode())
    return caught.value.problems


def configured(text: str) -> Config:
    return load_bytes("q.yaml", (MINIMAL + text).encode())


def only_problem(text: str) -> str:
    (problem,) = problems_of(text)
    return str(problem)


def test_static_form_of_kip_13_means_client_id_entries() -> None:
    text = 'quota.producer.override: "clientA:4M,clientB:10M,a:b:1Ki"\nquota.consumer.override: clientA:1\n'
    assert entries(configured("quota.producer.default: 2M\n" + text)) == [
        Entry(None, DEFAULT, producer_byte_rate=2_000_000.0),
        Entry(None, "clientA", producer_byte_rate=4_000_000.0, consumer_byte_rate=1.0),
        Entry(None, "clientB", producer_byte_rate=10_000_000.0),
        Entry(None, "a:b", producer_byte_rate=1024.0),  # the last colon divides
    ]


def test_reports_every_problem_in_file_order() -> None:
    found = problems_of("""mode: transparently
listen: {port: 99999, broker_ports: 19092-1}
upstream: {bootstrap: [kafka-0.kafka], tls: {ca: x}}
quotas:
  - {user: alice, client_id: etl, producer_byte_rate: 10X, mode: shadwo}
  - {user: 1234, producer_byte_rate: -1}
  - {producer_byte_rate: 1}
  - 17
quota.windows.num: 11
max_mute: 30
""")
    assert [(problem.line, problem.column) for problem in found] == [
        *((1, 7), (2, 16), (2, 37), (3, 24), (3, 46), (5, 19), (5, 55)),
        *((5, 66), (6, 12), (6, 38), (7, 5), (8, 5), (9, 1), (10, 11)),
    ]
    assert str(found[6]) == (
        'q.yaml:5:55: quotas[0].producer_byte_rate: got "10X", '
        "expected bytes per second of at least 1, such as 4000000, 4M or 4MiB"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("listn: {}", "unknown key, did you mean listen?"),
        ("listen.port: 9092", "unknown key, did you mean the key port in the section listen?"),
        ("limits: {min_bytes_per_s: 9}", "no longer a setting, it is a constant now (512): remove the key"),
        ("controller_mutation_algorithm: leaky_bucket", "expected 'token_bucket' or 'windowed_burst'"),
        ("controller.quota.window.num: 1.5", "got 1.5, expected samples, a whole number from 1 to 10000"),
        ("listen: 9092", "got 9092, expected a mapping"),
        ("export: {directory: /x, kafka: [bootstrap.servers]}", "export.kafka: unknown key, did you mean kafka_topic?"),
        ("bootstrap: kafka:9092", "bootstrap: unknown key, did you mean upstream.bootstrap?"),
        ("listen: {advertised_host: a}", "no longer a key, it is listen.advertised.host now"),
        ("listen: {advertised: {port: 0}}", "got 0, expected a port, a whole number from 1 to 65535"),
        (
            "listen: {advertised: {first_broker_port: 65500}}",
            "a first_broker_port of at most 65436, not 65500, for the 100 broker_ports",
        ),
        ("listen: {broker_port_map: [1]}", "expected ports by broker id, such as {1001: 19092}"),
        ("listen: {broker_port_map: {a: 1}}", '"a" is not a broker id'),
        ('listen: {advertised: {host: "x:9092"}}', "a host name or address without scheme and port"),
        ("listen: {advertised: {host: 0.0.0.0}}", "not 0.0.0.0 or ::"),
        ("listen: {host: '0'}", "a host name or address without scheme and port"),
        ('listen: {host: "[::1]"}', "a host name or address without scheme and port"),
        ("quotas: [{client-id: a, producer_byte_rate: 9999999999999999999999}]", "at most 9223372036854775807"),
        ("quotas: [{client-id: a, producer_byte_rate: 1.0000001M}]", "did you mean 1000000 (whole bytes)?"),
        ("listen: {broker_port_map: {1: 70000}}", "broker 1: 70000 is not a port"),
        ("listen: {broker_port_map: {1: 19092, 2: 19092}}", '"2": 19092 repeats an id or a port'),
        ("listen: {broker_port_map: {1: 80}}", "expected ports in broker_ports (19092-19191); broker 1 has port 80"),
        ("quotas: [{topic: a, producer_byte_rate: 1}]", "did you mean client-id or user (Kafka has no topic quotas)?"),
        ("admin: {allowed_hosts: kquota}", 'got "kquota", expected a list, such as ["kquota"]'),
        ("quotas: {user: a}", "got a mapping with user, expected a list"),
        ("quotas: 5", "got 5, expected a list of quota entries, or a mapping with source"),
        ("quotas: {source: file, alter: yes}", "quotas.alter: got \"yes\", expected 'deny', 'forward' or 'apply'"),
        ("quotas: {alter_principals: ['User:a']}", "expected user names as in quota entries, a instead of User:a"),
        ("quotas: {alter: apply, alter_principals: [a]}", "quotas.overlay: expected the path of a file: with alter:"),
        ("quotas: {alter: apply, overlay: /o.yaml}", "quotas.alter_principals: got [], expected at least one user"),
        ("quotas: {source: cluster, alter: apply, alter_principals: [a]}", 'got "apply", expected deny or forward'),
        ("quotas: {source: cluster, overlay: /o.yaml}", 'quotas.overlay: got "/o.yaml", expected no overlay'),
        ("quotas: {source: cluster, entries: [{user: a, producer_byte_rate: 1}]}", "quotas.entries[0].producer_byte_"),
        ("quotas: {source: cluster}\nquota.consumer.default: 1", "quota.consumer.default: expected no limits here"),
        ("drain_timeout_s: fast", 'got "fast", expected a duration'),
        ("identity: {sources: [static, static]}", "expected each source once"),
        ("identity: {static: 7}", "expected a user name as text: write it in quotes"),
        ("quota.producer.override: 'a:1,a:2'", '"a" occurs twice'),
        ("quota.producer.override: a=4M", '"a=4M" is not one'),
        (
            "quotas: [{client-id: '', producer_byte_rate: 1}]",
            'got "", expected a client-id or <default>: text of 1 to 32767 bytes',
        ),
        ("quotas: [{user: u, producer_byte_rate: 10000.5}]", "got 10000.5, expected bytes per second"),
        ("listen: {tls: {certificate_file: /c}}", "listen.tls.key_file: expected a value"),
        ("quotas: [{user: u, request_percentage: 0}]", "expected percent of one thread, a number above 0"),
        ("quotas: [{user: u, connection_creation_rate: 0.5}]", "got 0.5, expected connections per second, a whole"),
        ("quotas: [{ip: 10.0.0.1, connection_creation_rate: 0}]", "a whole number from 1 to 2147483647"),
        ("quotas: [{ip: kafka-0, max_connections: 1}]", "expected an IP address or a network, such as 10.0.0.1,"),
        ("quotas: [{ip: 10.0.0.1/8, max_connections: 1}]", "10.0.0.1/8 has host bits set, the network is 10.0.0.0/8"),
        ("listen: {proxy_protocol_from: [10.0.0.1/8]}", 'such as "10.0.0.0/8", "10.1.2.3" or'),
        ("mode: transparent\nlisten: {proxy_protocol_from: [10.0.0.0/8]}", "expected none with mode: transparent"),
        ("quotas: [{ip: 10.0.0.1, user: u, max_connections: 1}]", "expected ip alone, without user and client-id"),
        ("quotas: [{ip: 10.0.0.1, producer_byte_rate: 1}]", "to set connection_creation_rate or max_connections, and"),
        ("quotas: [{user: u, client-id: c, max_connections: 1}]", "expected max_connections only for a user or an ip:"),
        ("quotas: [{client-id: c, connection_creation_rate: 1}]", "the client-id is unknown when"),
        ("max.connections.per.ip.overrides: 'host:5'", '"host:5" is not one'),
        ("max.connections.per.ip.overrides: 5", "expected addresses with whole numbers"),
        ("max.connections.per.ip.overrides: '::1:5,0::1:6'", '"0::1" occurs twice'),
        ("quotas: [{user: u, producer_byte_rate: 1, candidate: {producer_byte_rat: 1}}]", "quotas[0].candidate.produ"),
        ("quotas: [{user: u, producer_byte_rate: 1, candidate: {consumer_byte_rate: 1}}]", "quotas[0].candidate: got"),
        ("quotas: [{user: u, producer_byte_rate: 1, candidate: {}}]", "expected at least one limit: producer_"),
        ("? [a]\n: 1", "expected text as keys"),
        ("---\na: 1", "expected YAML: one document, found another here"),
        ("admin: &x {port: 1}\nlog: &x {}", "found duplicate anchor 'x'"),
        ("admin: {port: 1}\nadmin: {port: 2}", "expected each key once; it is already at line 2"),
        ("quotas: [", "expected YAML: a list in [ ] or a mapping in { } is not closed"),
        ("log:\n  level: info\n format: json", "wrong indentation: this line does not belong to any block above it"),
        ("log: level: info", "a colon where none is expected: wrong indentation, or text that needs quotes"),
        ("quotas:\n\t- x", "q.yaml:3:1: expected YAML: this line is indented with a tab"),
        ("quotas: [{user: u, producer_byte_rate: 2m}]", "did you mean 2M (megabytes) or 2Mi?"),
        ("listen: {tls: {certificate_file: /c, key_file: /k, ssl.client.auth: required}}", "expected client_ca_file"),
        ("listen: {tls: {certificate_file: /c, key_file: /k, client_ca_file: /a}}", "expected ssl.client.auth to be "),
        ("listen: {tls: {certificate_file: /c, key_file: /k, ssl.client.auth: maybe}}", "'requested' or 'required'"),
        ("listen: {tls: {certificate_file: /c, key_file: /k, ssl.principal.mapping.rules: RULE:x}}", "not 'RULE:x'"),
        ('identity: {static: {template: "{namespace}"}}', "expected template and directory, both or neither"),
        ('identity: {static: {template: "{namespace}{pod}", directory: /d}}', "expected a separator between two"),
        ('identity: {static: {template: "{node}", directory: /d}}', "not {node}"),
        ('identity: {static: {template: "web", directory: /d}}', "expected text with {namespace}"),
        ('identity: {static: {template: "{pod}}", directory: /d}}', "unbalanced braces"),
        ("identity: {static: {}}", "expected exactly one of user, file and template"),
        ("identity: {static: [a]}", "expected a user name"),
        ("quotas:\n  - {user: a, producer_byte_rate: 1M, scope: fleet}\n", "q.yaml:3:46: quotas[0].scope: got"),
        ("fleet: {id: x}\nquotas:\n  - {user: a, max_connections: 5, scope: fleet}\n", "expected a limit that a"),
        ("fleet: {id: x}", "q.yaml:2:1: fleet: expected key_file: the file with the fleet's secret"),
        ("fleet: {key_file: hidden}", "fleet.key_file: expected the absolute path of a file"),
        ("listen: {tls: {certificate_file: /c, key_file: '-----BEGIN'}}", "listen.tls.key_file: expected the absolute"),
        ("export: {kafka_topic: a/b}", 'export.kafka_topic: got "a/b", expected a topic name: letters, digits, . _ -'),
        ("quotas: [{user: u, producer_byte_rate: 1, candidate: {producer_byte_rate: 0}}]", "quotas[0].candidate.produ"),
        ("fleet: {topic: a b}", 'fleet.topic: got "a b", expected a topic name: letters, digits, . _ -'),
        ("upstream: {}", "upstream.bootstrap: expected a value: host:port of some brokers"),
        ("upstream: {bootstrap: []}", "expected at least one item"),
        ("upstream: {bootstrap: ['kafka:99999']}", "a port from 1 to 65535 after"),
        ("upstream: {bootstrap: ['k:1'], sasl: {mechanism: PLAIN, username: u}}", "password_file with PLAIN"),
        ("upstream: {bootstrap: ['k:1'], sasl: {mechanism: OAUTHBEARER, username: u}}", "token_file with OAUTHBEAR"),
        ("upstream: {bootstrap: ['k:1'], sasl: {mechanism: PLAIN, password_file: hidden}}", "password_file: expected"),
        ("upstream: {bootstrap: ['k:1'], sasl: {mechanism: OAUTHBEARER, token_file: 1}}", "token_file: expected"),
    ],
)
def test_problem_states_the_expectation(line: str, expected: str) -> None:
    assert expected in only_problem(line if line.startswith("upstream") else MINIMAL + line)


def test_an_entity_may_be_configured_once() -> None:
    text = """max.connections.per.ip.overrides: "10.0.0.1:5"
quotas:
  - {user: a, client-id: c, producer_byte_rate: 1}
  - {user: a, client-id: c, consumer_byte_rate: 1}
  - {client-id: c, producer_byte_rate: 1}
  - {ip: 10.0.0.1, connection_creation_rate: 1}
  - {ip: "::ffff:a00:1", max_connections: 1}
quota.consumer.override: "c:5"
"""
    problems = problems_of(MINIMAL + text)
    found = [str(problem).removeprefix("q.yaml:").split(" already has an entry, ") for problem in problems]
    assert found == [
        ["2:1: max.connections.per.ip.overrides: expected each ip once; ip 10.0.0.1", "quotas[3] at line 7"],
        ["5:5: quotas[1]: expected each user and client-id once; user a, client-id c", "quotas[0] at line 4"],
        ["8:5: quotas[4]: expected each ip once; ip 10.0.0.1", "quotas[3] at line 7"],
        ["9:1: quota.consumer.override: expected each user and client-id once; client-id c", "quotas[2] at line 6"],
    ]


def test_limits_of_connections() -> None:
    config = configured("""max.connections.per.ip.overrides: "10.0.0.9:5, 2001:db8::1:0"
max.connections.per.ip: 100
quotas:
  - {ip: "::FFFF:10.0.0.1", connection_creation_rate: 2147483647, max_connections: 0}
  - {user: <default>, max_connections: 5, mode: shadow}
  - {user: alice, producer_byte_rate: 1M, connection_creation_rate: 3}
""")
    table = to_table(config)
    assert table.entries == (Entry("alice", None, producer_byte_rate=1e6),)
    assert set(table.connections.entries) == {
        ConnectionEntry(EntityType.IP, "10.0.0.1", 2147483647.0, 0),
        ConnectionEntry(EntityType.USER, DEFAULT, None, 5, "shadow"),
        ConnectionEntry(EntityType.USER, "alice", 3.0),
        ConnectionEntry(EntityType.IP, DEFAULT, None, 100),
        ConnectionEntry(EntityType.IP, "10.0.0.9", None, 5),
        ConnectionEntry(EntityType.IP, "2001:db8::1", None, 0),
    }


@pytest.mark.parametrize("default", ["instance", "fleet"])
def test_entry_scope_is_instance_or_fleet(default: str) -> None:
    text = """quotas:
  - {user: a, producer_byte_rate: 1M, scope: fleet}
  - {user: b, producer_byte_rate: 1M, scope: instance}
  - {user: c, producer_byte_rate: 1M}
  - {ip: <default>, connection_creation_rate: 5}
"""
    table = to_table(configured(f"fleet: {{default_scope: {default}, key_file: /k}}\n{text}"))
    shared = [table.of_fleet(entry) for entry in (*table.entries, *table.connections.entries)]
    assert shared == [True, False, default == "fleet", default == "fleet"]


@pytest.mark.parametrize(
    ("listen", "own", "others"),
    [
        ("127.0.0.1", ["127.0.0.1", "localhost", "LOCALHOST", "0.0.0.0", "[::ffff:127.0.0.1]"], ["[::1]", "127.0.0.2"]),
        ("localhost", ["127.0.0.1", "localhost", "0.0.0.0"], ["[::1]", "[::]"]),
        ("::1", ["[::1]", "[0:0::1]", "localhost", "[::]"], ["127.0.0.1", "0.0.0.0", "127.0.0.2"]),
        ("0.0.0.0", ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2"], ["[::1]", "[::]", "10.0.0.1"]),
        ("::", ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", "[::1]", "[::]"], ["10.0.0.1", "[2001:db8::1]"]),
        ("10.0.0.1", ["10.0.0.1"], ["localhost", "127.0.0.1", "0.0.0.0", "10.0.0.2"]),
        ("kafka", ["kafka", "Kafka"], ["localhost"]),
    ],
)
def test_which_brokers_are_the_sidecars_own_listener(listen: str, own: list[str], others: list[str]) -> None:
    named = ", ".join(f'"{host}:9092", "{host}:9093"' for host in [*own, *others])
    text = f'upstream: {{bootstrap: [{named}]}}\nlisten: {{host: "{listen}", port: 9092}}'
    assert [problem.value for problem in problems_of(text)] == [f'"{host}:9092"' for host in own]


@pytest.mark.parametrize(
    ("listen", "admin", "clash"),
    [
        ("host: 127.0.0.1, port: 9404", "host: localhost", "expected a port other than listen.port"),
        ("host: 0.0.0.0, port: 9404", "host: 10.0.0.1", "expected a port other than listen.port"),
        ("host: '::', port: 9404", "host: 10.0.0.1", "expected a port other than listen.port"),
        ("host: '::1', port: 9404", "host: '::'", "expected a port other than listen.port"),
        ("host: 0.0.0.0, port: 9404", "host: '::1'", None),
        ("host: 127.0.0.1, port: 9404", "host: '::1'", None),
        ("host: 10.0.0.1, port: 9404", "host: 127.0.0.1", None),
        ("port: 9092, broker_ports: 9090-9099", "host: 127.0.0.1", "9090-9099"),
        ("port: 9092, broker_ports: 9400-9409", "host: 127.0.0.1", "admin.port"),
        ("port: 9092, broker_ports: 9400-9409", "host: 10.0.0.1", None),
    ],
)
def test_which_listeners_cannot_share_a_port(listen: str, admin: str, clash: str | None) -> None:
    text = f"{MINIMAL}listen: {{{listen}}}\nadmin: {{{admin}, port: 9404}}\n"
    if clash is None:
        load_bytes("q.yaml", text.encode())
    else:
        assert clash in only_problem(text)


def test_anchors_and_merge_keys_work() -> None:
    text = "quotas:\n- &base {user: a, producer_byte_rate: 1M}\n- {<<: *base, user: b}\n"
    assert entries(configured(text)) == [Entry("a", None, 1e6), Entry("b", None, 1e6)]
    places = [problem.place for problem in problems_of(MINIMAL + text.replace("1M", "1X"))]
    assert places == ["quotas[0].producer_byte_rate", "quotas[1].producer_byte_rate"]


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("producer_byte_rate: 9223372036854775807", 2.0**63),  # a long in Kafka
        ("request_percentage: 50%", 50.0),
        ("request_percentage: 5.0e-324", 5e-324),
        ("request_percentage: 1.7e+308", 1.7e308),
        ("controller_mutation_rate: 0.5", 0.5),
    ],
)
def test_kafkas_largest_and_smallest_limits(limit: str, value: float) -> None:
    (entry,) = entries(configured(f"quotas: [{{user: u, {limit}}}]"))
    assert getattr(entry, limit.split(":")[0]) == value


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"---\n", b"\xff"])
def test_files_without_text_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="expected UTF-8 text" if data == b"\xff" else "the file is empty"):
        load_bytes("q.yaml", data)


def test_missing_upstream() -> None:
    assert only_problem("quotas: []") == (
        "q.yaml:1:1: upstream: expected a section with bootstrap: host:port of some brokers, tried in turn. "
        "Required unless mode is transparent."
    )
    twice = problems_of("quotas: [{user: a, producer_byte_rate: 1}, {user: a, producer_byte_rate: 2}]")
    assert [problem.place for problem in twice] == ["upstream", "quotas[1]"]
    shared = problems_of("mode: transparent\nfleet: {default_scope: fleet}")
    assert "fleet: expected upstream.bootstrap" in str(shared[0])


def test_data_path_settings_have_names_and_defaults() -> None:
    def settings(text: str) -> ProxySettings:
        return proxy_settings(configured(text), identity=identity)

    identity = IdentityPolicy()
    least = ProxySettings("127.0.0.1", 9092, range(19_092, 19_192), (("kafka", 9092),), identity=identity)
    assert settings("") == least
    changed = {"pre_auth_timeout_ms": 5500, "stall_timeout_ms": 5500}
    for name in set(Limits.model_fields) - {"max_clients"}:  # which is the ledger's
        assert settings(f"limits: {{{name}: {changed.get(name, 2000)}}}") != least, name
    assert settings("limits: {stall_timeout_ms: 5500}").stalls.stall_timeout_s == 5.5
    assert settings("drain_timeout_s: 500ms").bounds.drain_timeout_s == 0.5
    assert settings("connections_max_idle_ms: 1m").bounds.connections_max_idle_s == 60
    assert settings("connections_max_age_ms: 10m").bounds.connections_max_age_s == 600


def test_partition_mutations_have_windows_of_their_own() -> None:
    text = "controller.quota.window.num: 100\ncontroller.quota.window.size.seconds: 2\nquota.window.num: 3\n"
    config = configured(text + "controller_mutation_algorithm: windowed_burst")
    settings = new_ledger(config, to_table(config)).settings
    assert (settings.num_samples, settings.window_ms) == (3, 1000)
    assert (settings.mutation_num_samples, settings.mutation_window_ms) == (100, 2000)
    assert settings.mutation_algorithm == "windowed_burst"


def test_all_addresses_have_one_spelling() -> None:
    """By which clients get the address that they connected to."""
    assert configured("listen: {host: '0:0:0:0:0:0:0:0'}").listen.host == "::"


QUOTAS = "quotas: [{user: alice, producer_byte_rate: 1M}, {client-id: <default>, request_percentage: 1}]\n"
CLIENT_TLS = "listen: {tls: {certificate_file: /c, key_file: /k, ssl.client.auth: required, client_ca_file: /a}}\n"
NO_LOGIN = "identity: {sources: [tls, static], static: web}"
LOGIN = "sasl: {mechanism: PLAIN, username: u, password_file: /p}"
UNCHECKED = f'upstream: {{bootstrap: ["kafka:9092"], tls: {{verify_hostname: false}}, {LOGIN}}}\n'


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        (QUOTAS, []),
        (QUOTAS + CLIENT_TLS + NO_LOGIN, []),
        (QUOTAS + "identity: {sources: [static], static: {file: /etc/kquota/user}}", []),
        ("quotas: [{user: <default>, controller_mutation_rate: 1}]", []),
        ("", ["1:1: quotas: no quotas at all"]),
        ("mode: transparent\nlisten: {host: 10.0.0.1}\n" + QUOTAS, ['3:16: listen.host: got "10.0.0.1", redirected']),
        (QUOTAS + NO_LOGIN, ["2:17: quotas[0].user: got", '3:22: identity.sources[0]: got "tls", is not used']),
        (QUOTAS + CLIENT_TLS + "identity: {sources: [static]}", ["2:17: quotas[0].user: got"]),
        (QUOTAS + "identity: {sources: [sasl], static: web}", ['3:37: identity.static: got "web", is not used']),
        (QUOTAS + "fleet: {key_file: /etc/kquota-fleet/key}", ["3:1: fleet: is not used: no limit has"]),
        (
            "listen: {proxy_protocol_from: [10.0.0.0/8, '::/0']}\n" + QUOTAS,
            ['2:44: listen.proxy_protocol_from[1]: got "::/0", every client can claim any address'],
        ),
        (UNCHECKED + QUOTAS, ["1:62: upstream.tls.verify_hostname: got false, any holder of a certificate of a trust"]),
    ],
)
def test_settings_that_are_unlikely_to_be_meant_warn_with_place(text: str, warnings: list[str]) -> None:
    config = configured(text) if text[:8] != "upstream" else load_bytes("q.yaml", text.encode())
    found = sorted(str(problem).removeprefix("q.yaml:") for problem in warnings_of(config))
    assert [said[: len(warning)] for said, warning in zip(found, warnings, strict=True)] == warnings


def test_schema_names_every_setting_and_forbids_others() -> None:
    schema = json_schema()
    sections = (schema, *schema["$defs"].values())
    names = {name for section in sections for name in section["properties"]}
    assert {"quota.window.num", "quota.producer.override", "client-id", "producer_byte_rate", "broker_ports"} <= names
    assert not {"client_id", "window_num"} & names
    assert all(section["additionalProperties"] is False for section in sections)
    assert schema["else"]["required"] == ["upstream"], "unless mode is transparent"
    assert json.loads(json.dumps(schema)) == schema


WHOLE = b"a: 1\nb: 2\n"
FIRST = f"# kquota.io/parts: 2 sha256:{hashlib.sha256(WHOLE).hexdigest()}\na: 1\n".encode()
LARGE = gzip.compress(bytes(MAX_FILE_BYTES + 1))


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        pytest.param(FIRST, b"b: 2\n", None, id="parts"),
        pytest.param(FIRST, b"b: 3\n", "its 2 parts are not of one version: expected SHA-256", id="two versions"),
        pytest.param(FIRST, None, "part 2 of 2, kquota.yaml.2: No such file or directory", id="part missing"),
        pytest.param(gzip.compress(WHOLE), None, None, id="gzip"),
        pytest.param(gzip.compress(WHOLE)[:-3], None, "it is a truncated gzip file", id="gzip cut"),
        pytest.param(b"\x1f\x8b not gzip", None, "not a valid gzip file", id="not gzip"),
        pytest.param(LARGE, None, f"it expands to more than {MAX_FILE_BYTES} bytes", id="gzip too large"),
    ],
)
def test_file_is_whole_or_its_error_says_why(
    first: bytes, second: bytes | None, error: str | None, tmp_path: Path
) -> None:
    (path := tmp_path / "kquota.yaml").write_bytes(first)
    if second is not None:
        (tmp_path / "kquota.yaml.2").write_bytes(second)
    found = fingerprint(path)
    assert (found.data, found.digest is None) == ((WHOLE, False) if error is None else (None, True))
    assert found.error is None if error is None else str(found.error).startswith(error)
