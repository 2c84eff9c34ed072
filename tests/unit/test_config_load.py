"""Loading: what a good file means, and that a bad one is described so that its author can mend it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config.limits import Limits
from config.load import load, load_bytes, load_limits, warnings_of
from config.problems import ConfigError, Problem
from config.schema import json_schema
from config.settings import new_ledger, proxy_settings
from config.table import entries, to_table
from config.types import HostPort, PortRange
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


def only_problem(text: str) -> str:
    (problem,) = problems_of(text)
    return str(problem)


def test_design_example_loads() -> None:
    config = load_bytes(
        "q.yaml",
        b"""
mode: rewrite
listen: {host: 127.0.0.1, port: 9092, broker_ports: 19092-19191}
upstream: {bootstrap: ["kafka-0.kafka:9092"], tls: null}
identity: {sources: [tls, sasl, static], static: null}
quotas:
  - {user: <default>, producer_byte_rate: 2M, consumer_byte_rate: 2M}
  - {user: alice, client-id: etl, producer_byte_rate: 10M, controller_mutation_rate: 5, mode: shadow}
admin: {host: 0.0.0.0, port: 9404}
export: {directory: /var/lib/kquota/usage, interval_s: 10, kafka_topic: null}
""",
    )
    assert config.listen.broker_ports == PortRange(19_092, 19_191)
    assert config.upstream.bootstrap == [HostPort("kafka-0.kafka", 9092)]
    assert entries(config) == [
        Entry(DEFAULT, None, 2_000_000.0, 2_000_000.0),
        Entry("alice", "etl", 10_000_000.0, None, None, 5.0, "shadow"),
    ]
    assert to_table(config) is not None
    assert config.export is not None
    assert config.export.interval_s == 10
    assert not any("usage records" in str(warning) for warning in warnings_of(config))


def test_defaults_are_kafkas() -> None:
    config = load_bytes("q.yaml", MINIMAL.encode())
    assert (config.window_num, config.window_size_seconds) == (11, 1)  # quota.window.num, quota.window.size.seconds
    assert config.limits.max_frame_bytes == 104_857_600  # socket.request.max.bytes
    assert config.connections_max_idle_ms == 600_000  # connections.max.idle.ms
    assert config.max_mute == 120_000
    assert (config.listen.host, config.listen.port, config.admin and config.admin.host) == (
        "127.0.0.1",
        9092,
        "127.0.0.1",
    )


def test_static_form_of_kip_13_means_client_id_entries() -> None:
    config = load_bytes(
        "q.yaml",
        (
            MINIMAL
            + "quota.producer.default: 2M\n"
            + 'quota.producer.override: "clientA:4M,clientB:10M,a:b:1Ki"\n'
            + "quota.consumer.override: clientA:1\n"
        ).encode(),
    )
    assert entries(config) == [
        Entry(None, DEFAULT, producer_byte_rate=2_000_000.0),
        Entry(None, "clientA", producer_byte_rate=4_000_000.0, consumer_byte_rate=1.0),
        Entry(None, "clientB", producer_byte_rate=10_000_000.0),
        Entry(None, "a:b", producer_byte_rate=1024.0),  # the last colon divides
    ]


def test_reports_every_problem_in_file_order() -> None:
    found = problems_of(
        """mode: transparently
listen: {port: 99999, broker_ports: 19092-1}
upstream: {bootstrap: [kafka-0.kafka], tls: {ca: x}}
quotas:
  - {user: <default>, producer_byte_rat: 2M}
  - {user: alice, client_id: etl, producer_byte_rate: 10X, mode: shadwo}
  - {user: 1234, producer_byte_rate: -1}
  - {producer_byte_rate: 1}
  - {user: bob}
  - 17
quota.windows.num: 11
max_mute: 30
export: {directory: 7}
"""
    )
    assert [(problem.line, problem.column, problem.place) for problem in found] == [
        (1, 7, "mode"),
        (2, 16, "listen.port"),
        (2, 37, "listen.broker_ports"),
        (3, 24, "upstream.bootstrap[0]"),
        (3, 46, "upstream.tls.ca"),
        (5, 23, "quotas[0].producer_byte_rat"),
        (6, 19, "quotas[1].client_id"),
        (6, 55, "quotas[1].producer_byte_rate"),
        (6, 66, "quotas[1].mode"),
        (7, 12, "quotas[2].user"),
        (7, 38, "quotas[2].producer_byte_rate"),
        (8, 5, "quotas[3]"),
        (9, 5, "quotas[4]"),
        (10, 5, "quotas[5]"),
        (11, 1, "quota.windows.num"),
        (12, 11, "max_mute"),
        (13, 21, "export.directory"),
    ]
    texts = [str(problem) for problem in found]
    assert texts[5] == "q.yaml:5:23: quotas[0].producer_byte_rat: unknown key, did you mean producer_byte_rate?"
    assert texts[6] == "q.yaml:6:19: quotas[1].client_id: unknown key, did you mean client-id?"
    assert texts[7] == (
        'q.yaml:6:55: quotas[1].producer_byte_rate: got "10X", '
        "expected bytes per second of at least 1, such as 4000000, 4M or 4MiB"
    )
    assert texts[0].endswith('got "transparently", expected a mode: one of rewrite, transparent')


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("listn: {}", "unknown key, did you mean listen?"),
        ("limits: {min_bytes_per_s: 9}", "no longer a setting, it is a constant now (512): remove the key"),
        ("empty_client_id: kafka", "a constant now (a client-id that is empty is a name like any other): remove"),
        ("zzz: 1", "unknown key, expected one of: mode, listen, upstream, "),
        ("controller_mutation_algorithm: leaky_bucket", "an algorithm: one of token_bucket, windowed_burst"),
        ("controller.quota.window.num: 0", "samples, a whole number from 1 to 10000"),
        ("controller.quota.window.size.seconds: 0.5", "got 0.5, expected seconds"),
        ("listen: 9092", "got 9092, expected a mapping"),
        ("export: {directory: /x, kafka: [bootstrap.servers]}", "export.kafka: unknown key, did you mean kafka_topic?"),
        ("bootstrap: kafka:9092", "bootstrap: unknown key, did you mean upstream.bootstrap?"),
        ("client.id: etl", "client.id: unknown key, did you mean client-id?"),
        ("advertised.listeners: x", "unknown key, did you mean listen.advertised?"),
        ("listen: {advertised_host: a}", "no longer a key, it is listen.advertised.host now"),
        ("listen: {advertised: {port: 0}}", "got 0, expected a port, a whole number from 1 to 65535"),
        ("listen: {advertised: {first_broker_port: 65500}}", "a first_broker_port of at most 65436, for the 100 ports"),
        ("listen: {broker_port_map: [1]}", "expected ports by broker id, such as {1001: 19092}"),
        ("listen: {broker_port_map: {a: 1}}", '"a" is no broker id'),
        ("listen: {broker_port_map: {-1: 19092}}", '"-1" is no broker id'),
        ("listen: {broker_port_map: {1: 70000}}", "70000 is no port from 1 to 65535"),
        ("listen: {broker_port_map: {1: 19092, '01': 19093}}", '"01": 19093 repeats one'),
        ("listen: {broker_port_map: {1: 19092, 2: 19092}}", '"2": 19092 repeats one'),
        (
            "listen: {broker_port_map: {1: 80}}",
            "expected ports of broker_ports, 19092-19191: 80 of broker 1 is not one",
        ),
        ("quotas: [{topic: a, producer_byte_rate: 1}]", "did you mean client-id or user (Kafka has no topic quotas)?"),
        ("admin: {allowed_hosts: kquota}", 'got "kquota", expected a list, such as ["kquota"]'),
        ("quotas: {user: a}", "got a mapping with user, expected a list"),
        ("quotas: 5", "got 5, expected a list of quota entries, or a mapping with source"),
        ("quotas: {sorce: file}", "quotas.sorce: unknown key, did you mean source?"),
        ("quotas: {entries: [{user: a}]}", "quotas.entries[0]: got a mapping with user, expected at least one limit"),
        ("quotas: {source: file, alter: yes}", 'quotas.alter: got "yes", expected a rule: one of deny, forward, apply'),
        ("quotas: {overlay: here.yaml}", 'quotas.overlay: got "here.yaml", expected the absolute path of a file'),
        ("quotas: {alter_principals: ['User:a']}", "expected user names alone, without User: before them"),
        (
            "quotas: {alter: apply, alter_principals: [a]}",
            "quotas.overlay: expected the path of a file: with alter: apply, altered quotas are stored",
        ),
        ("quotas: {alter: apply, overlay: /o.yaml}", "quotas.alter_principals: got [], expected at least one user"),
        ("quotas: {source: cluster, alter: apply, alter_principals: [a]}", 'got "apply", expected deny or forward'),
        ("quotas: {source: cluster, overlay: /o.yaml}", 'quotas.overlay: got "/o.yaml", expected no overlay'),
        (
            "quotas: {source: cluster, entries: [{user: a, producer_byte_rate: 1}]}",
            "quotas.entries[0].producer_byte_rate: expected limits of connections only",
        ),
        ("quotas: {source: cluster}\nquota.consumer.default: 1", "quota.consumer.default: expected no limits here"),
        ("listen: {port: true}", "got true, expected a port"),
        ('listen: {port: "9092"}', 'got "9092", expected a port'),
        ("quota.window.num: 0", "got 0, expected samples, a whole number from 1"),
        ("quota.window.num: 1.5", "got 1.5, expected samples, a whole number from 1"),
        ("drain_timeout_s: fast", 'got "fast", expected a duration'),
        ("identity: {sources: [static, static]}", "expected each source once"),
        ("identity: {static: 7}", "expected a user name as text: write it in quotas".replace("quotas", "quotes")),
        ("quota.producer.override: a=4M", '"a=4M" is not one'),
        ("quota.producer.override: 'a:1,a:2'", '"a" is there twice'),
        (
            "quotas: [{client-id: '', producer_byte_rate: 1}]",
            'got "", expected a client-id or <default>: text that is not empty',
        ),
        ("quotas: [{user: u, producer_byte_rate: 0}]", "got 0, expected bytes per second of at least 1"),
        ("quotas: [{user: u, producer_byte_rate: 10000.5}]", "got 10000.5, expected bytes per second"),
        ("quotas: [{user: u, producer_byte_rate: 9223372036854775808}]", "expected bytes per second"),
        ("listen: {tls: {certificate_file: /c}}", "listen.tls.key_file: expected a value"),
        ("quotas: [{user: u, request_percentage: 0}]", "expected percent of one thread, a number above 0"),
        ("quotas: [{user: u, request_percentage: .nan}]", "expected percent of one thread, a number above 0"),
        (
            "quotas: [{user: u, connection_creation_rate: 0.5}]",
            "got 0.5, expected connections per second, a whole number",
        ),
        ("quotas: [{ip: 10.0.0.1, connection_creation_rate: 0}]", "a whole number from 1 to 2147483647"),
        ("quotas: [{ip: 10.0.0.1, connection_creation_rate: 2147483648}]", "a whole number from 1 to 2147483647"),
        ("quotas: [{ip: 10.0.0.1, max_connections: -1}]", "expected connections, a whole number from 0"),
        (
            "quotas: [{ip: kafka-0, max_connections: 1}]",
            "expected an IP address or a network, such as 10.0.0.1, 2001:db8::1 or",
        ),
        ("quotas: [{ip: 10.0.0.1/8, max_connections: 1}]", "10.0.0.1/8 has host bits set, the network is 10.0.0.0/8"),
        ("listen: {proxy_protocol_from: [10.0.0.1/8]}", 'such as "10.0.0.0/8", "10.1.2.3" or'),
        ("mode: transparent\nlisten: {proxy_protocol_from: [10.0.0.0/8]}", "expected none with mode: transparent"),
        ("max.connections.per.ip.overrides: '10.0.0.0/8:5'", '"10.0.0.0/8:5" is not one'),
        ("quotas: [{ip: '', max_connections: 1}]", "expected an IP address"),
        ("quotas: [{ip: 10, max_connections: 1}]", "got 10, expected an IP address"),
        ("quotas: [{ip: 10.0.0.1, user: u, max_connections: 1}]", "expected ip alone, without user and client-id"),
        ("quotas: [{ip: 10.0.0.1, producer_byte_rate: 1}]", "to set connection_creation_rate or max_connections, and"),
        ("quotas: [{ip: 10.0.0.1}]", "to set connection_creation_rate or max_connections, and nothing else"),
        (
            "quotas: [{user: u, client-id: c, max_connections: 1}]",
            "expected max_connections for a user or an ip, not for",
        ),
        ("quotas: [{client-id: c, connection_creation_rate: 1}]", "not for a client-id: it is not known yet"),
        ("quotas: [{max_connections: 1}]", "expected user, client-id or both, each a name or <default>; or ip"),
        ("max.connections.per.ip: 1.5", "expected connections, a whole number from 0"),
        ("max.connections.per.ip.overrides: 5", "expected addresses with whole numbers"),
        ("max.connections.per.ip.overrides: 'host:5'", '"host:5" is not one'),
        ("max.connections.per.ip.overrides: '10.0.0.1:5k'", '"10.0.0.1:5k" is not one'),
        ("max.connections.per.ip.overrides: '::1:5,0::1:6'", '"0::1" is there twice'),
        (
            "quotas: [{user: u, producer_byte_rate: 1, candidate: {}}]",
            "expected at least one limit: producer_byte_rate",
        ),
        (
            "quotas: [{user: u, producer_byte_rate: 1, candidate: 5M}]",
            'quotas[0].candidate: got "5M", expected a mapping',
        ),
        (
            "quotas: [{user: u, producer_byte_rate: 1, candidate: {producer_byte_rat: 1}}]",
            "quotas[0].candidate.producer_byte_rat: unknown key, did you mean producer_byte_rate?",
        ),
        (
            "quotas: [{user: u, producer_byte_rate: 1, candidate: {producer_byte_rate: 0}}]",
            "quotas[0].candidate.producer_byte_rate: got 0, expected bytes per second of at least 1",
        ),
        (
            "quotas: [{user: u, producer_byte_rate: 1, candidate: {consumer_byte_rate: 1}}]",
            "quotas[0].candidate: got a mapping with consumer_byte_rate, expected consumer_byte_rate in the entry",
        ),
        (
            "quotas: [{user: u, producer_byte_rate: 0, candidate: {producer_byte_rate: 1}}]",
            "quotas[0].producer_byte_rate: got 0, expected bytes per second",
        ),
        ("? [a]\n: 1", "expected plain names as keys"),
        ("admin: {port: 1}\nadmin: {port: 2}", "expected each key once; it is already there at line 2"),
        ("quotas: [", "expected YAML: a list in [ ] or a mapping in { } is not closed"),
        ("admin: {port: 1\nlog: {}", "a mapping in { } lacks its closing brace or a comma"),
        ("log:\n  level: info\n format: json", "wrong indentation: this line does not belong to any block above it"),
        ("log: level: info", "a colon where none is expected: wrong indentation, or text that needs quotes"),
        ("a: &a [*a]", "aliases"),
        ("quotas:\n\t- x", "q.yaml:3:1: (the whole file): expected YAML: this line is indented with a tab"),
        ("quotas: [{user: u, producer_byte_rate: 2m}]", "did you mean 2M (megabytes) or 2Mi?"),
        (
            "quotas: [{user: u, producer_byte_rate: 010}]",
            'got "010", expected bytes per second of at least 1, such as 4000000, 4M or 4MiB; did you mean 10?',
        ),
        ("quota.producer.default: 10Mb", "did you mean 10M (megabytes) or 10Mi?"),
        ("quota.producer.override: 'a:2m'", "did you mean 2M (megabytes) or 2Mi?"),
        ("listen: {port: 70000}", "a whole number from 0 to 65535"),
        ("mode: ~", 'mode: got "~", expected a value, or quotes around it: YAML reads ~ as null'),
        ("listen: {tls: {certificate_file: c, key_file: /k}}", "expected the absolute path of a file"),
        (
            "listen: {tls: {certificate_file: /c, key_file: /k, ssl.client.auth: required}}",
            "expected client_ca_file too",
        ),
        (
            "listen: {tls: {certificate_file: /c, key_file: /k, client_ca_file: /a}}",
            "expected ssl.client.auth: requested or required",
        ),
        (
            "listen: {tls: {certificate_file: /c, key_file: /k, ssl.client.auth: maybe}}",
            "one of none, requested, required",
        ),
        ("listen: {tls: {certificate_file: /c, key_file: /k, ssl.principal.mapping.rules: RULE:x}}", "not 'RULE:x'"),
        ("identity: {static: {}}", "expected exactly one of user, file and template"),
        ("identity: {static: {user: a, file: /f}}", "expected exactly one of user, file and template"),
        ('identity: {static: {template: "{namespace}"}}', "expected template and directory, both or neither"),
        ('identity: {static: {template: "{namespace}{pod}", directory: /d}}', "expected something between two braces"),
        ('identity: {static: {template: "{node}", directory: /d}}', "not {node}"),
        ('identity: {static: {template: "web", directory: /d}}', "expected text with {namespace}"),
        ('identity: {static: {template: "{pod}}", directory: /d}}', "unbalanced braces"),
        ("identity: {static: [a]}", "expected a user name"),
        (
            "quotas:\n  - {user: a, producer_byte_rate: 1M, scope: fleet}\n",
            'q.yaml:3:46: quotas[0].scope: got "fleet", expected a section fleet',
        ),
        (
            "fleet: {id: x}\nquotas:\n  - {user: a, max_connections: 5, scope: fleet}\n",
            "expected a limit that a fleet can share: max_connections applies to each instance",
        ),
        ("fleet: {id: x}", "q.yaml:2:1: fleet: expected key_file: the file with the fleet's secret"),
        ("fleet: {key_file: key}", 'fleet.key_file: got "key", expected the absolute path of a file'),
        ("fleet: {topic: a b}", 'fleet.topic: got "a b", expected a topic name: letters, digits, . _ -'),
        ("fleet: {interval_s: 100ms}", "fleet.interval_s"),
        ("fleet: {default_scope: all}", "fleet.default_scope"),
    ],
)
def test_problem_states_the_expectation(line: str, expected: str) -> None:
    assert expected in only_problem(MINIMAL + line)


def limits(value: dict[str, Any]) -> Entry:
    entry, connections = load_limits(value, "-")
    assert entry is not None
    assert connections is None
    return entry


def test_an_entity_may_be_configured_once() -> None:
    text = """upstream: {bootstrap: ["kafka:9092"]}
quotas:
  - {user: a, client-id: c, producer_byte_rate: 1}
  - {client-id: c, producer_byte_rate: 1}
  - {user: a, client-id: c, consumer_byte_rate: 1}
quota.consumer.override: "c:5"
"""
    assert [str(problem) for problem in problems_of(text)] == [
        "q.yaml:5:5: quotas[2]: expected each user and client-id once; user a, client-id c has an entry already, "
        "quotas[0] at line 3",
        "q.yaml:6:1: quota.consumer.override: sets a limit of a client-id that has an entry already, "
        "quotas[1] at line 4",
    ]


def test_limits_of_connections() -> None:
    text = """
quotas:
  - {ip: <default>, connection_creation_rate: 20}
  - {ip: "::FFFF:10.0.0.1", connection_creation_rate: 2147483647, max_connections: 0}
  - {user: <default>, max_connections: 5, mode: shadow}
  - {user: alice, producer_byte_rate: 1M, connection_creation_rate: 3}
  - {ip: "2001:DB8:0::/32", max_connections: 7}
"""
    config = load_bytes("q.yaml", (MINIMAL + text).encode())
    table = to_table(config)
    assert table.entries == (Entry("alice", None, producer_byte_rate=1e6),)
    assert table.connections.entries == (
        ConnectionEntry(EntityType.IP, DEFAULT, 20.0),
        ConnectionEntry(EntityType.IP, "10.0.0.1", 2147483647.0, 0),
        ConnectionEntry(EntityType.USER, DEFAULT, None, 5, "shadow"),
        ConnectionEntry(EntityType.USER, "alice", 3.0),
        ConnectionEntry(EntityType.IP, "2001:db8::/32", None, 7),
    )
    assert not any("no quotas at all" in str(warning) for warning in warnings_of(config))
    assert table.without("alice", None).connections is table.connections  # other changes leave them alone


def test_kafkas_own_names_for_caps_of_addresses() -> None:
    text = 'max.connections.per.ip: 100\nmax.connections.per.ip.overrides: "10.0.0.1:5, 2001:db8::1:0"\n'
    assert to_table(load_bytes("q.yaml", (MINIMAL + text).encode())).connections.entries == (
        ConnectionEntry(EntityType.IP, DEFAULT, None, 100),
        ConnectionEntry(EntityType.IP, "10.0.0.1", None, 5),
        ConnectionEntry(EntityType.IP, "2001:db8::1", None, 0),
    )
    found = problems_of(
        MINIMAL
        + text
        + 'quotas: [{ip: 10.0.0.1, connection_creation_rate: 1}, {ip: "::ffff:a00:1", max_connections: 1}]'
    )
    assert [str(problem) for problem in found] == [
        "q.yaml:3:1: max.connections.per.ip.overrides: sets a limit of an ip that has an entry already, "
        "quotas[0] at line 4",
        "q.yaml:4:55: quotas[1]: expected each ip once; ip 10.0.0.1 has an entry already, quotas[0] at line 4",
    ]


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
        ("127.0.0.1", "localhost", True),
        ("0.0.0.0", "10.0.0.1", True),
        ("::", "10.0.0.1", True),
        ("::1", "::", True),
        ("0.0.0.0", "::1", False),
        ("127.0.0.1", "::1", False),
        ("10.0.0.1", "127.0.0.1", False),
    ],
)
def test_which_listeners_cannot_share_a_port(listen: str, admin: str, clash: bool) -> None:
    text = f'upstream: {{bootstrap: ["kafka:9093"]}}\nlisten: {{host: "{listen}", port: 9092}}\n'
    found = problems_of(text + f'admin: {{host: "{admin}", port: 9092}}') if clash else None
    if found is None:
        load_bytes("q.yaml", (text + f'admin: {{host: "{admin}", port: 9092}}').encode())
    else:
        assert ["expected another port than listen.port" in str(problem) for problem in found] == [True]
    load_bytes("q.yaml", b'upstream: {bootstrap: ["k:1"]}\nlisten: {port: 0}\nadmin: {port: 0}')


def test_anchors_and_merge_keys_work() -> None:
    text = MINIMAL + "quotas:\n- &base {user: a, producer_byte_rate: 1M}\n- {<<: *base, user: b}\n"
    assert entries(load_bytes("q.yaml", text.encode())) == [
        Entry("a", None, producer_byte_rate=1e6),
        Entry("b", None, producer_byte_rate=1e6),
    ]
    wrong = MINIMAL + "quotas:\n- &base {user: a, producer_byte_rate: 1X}\n- {<<: *base, user: b}\n"
    assert [problem.place for problem in problems_of(wrong)] == [
        "quotas[0].producer_byte_rate",
        "quotas[1].producer_byte_rate",
    ]


def test_kafkas_largest_and_smallest_limits() -> None:
    # semantics: byte rates are longs, the other two doubles above 0
    entry = limits({"user": "u", "producer_byte_rate": 2**63 - 1, "request_percentage": 250.5})
    assert (entry.producer_byte_rate, entry.request_percentage) == (float(2**63 - 1), 250.5)
    assert limits({"user": "u", "request_percentage": "50%"}).request_percentage == 50.0
    assert limits({"user": "u", "controller_mutation_rate": 0.5}).controller_mutation_rate == 0.5


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"---\n"])
def test_empty_file_is_named_as_empty(data: bytes) -> None:
    with pytest.raises(ConfigError, match="the file is empty"):
        load_bytes("q.yaml", data)


def test_missing_upstream() -> None:
    assert only_problem("quotas: []") == (
        "q.yaml:1:1: upstream: expected a section with bootstrap: host:port of some brokers, tried in turn. "
        "Required unless mode is transparent."
    )
    assert "upstream.bootstrap: expected a value: host:port of some brokers" in only_problem("upstream: {}")
    assert "expected at least one item" in only_problem("upstream: {bootstrap: []}")
    assert "a port from 1 to 65535 behind" in only_problem('upstream: {bootstrap: ["kafka:99999"]}')
    shared = problems_of("mode: transparent\nfleet: {default_scope: fleet}")
    assert "fleet: expected upstream.bootstrap" in str(shared[0])


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: \(the whole file\): cannot be read: No such file"):
        load(tmp_path / "none.yaml")


def test_data_path_settings_have_names_and_defaults() -> None:
    def settings(text: str) -> ProxySettings:
        return proxy_settings(load_bytes("q.yaml", (MINIMAL + text).encode()), identity=identity)

    identity = IdentityPolicy()
    least = ProxySettings("127.0.0.1", 9092, range(19_092, 19_192), (("kafka", 9092),), identity=identity)
    assert settings("") == least
    changed = {"pre_auth_timeout_ms": 5500, "stall_timeout_ms": 5500}
    for name in set(Limits.model_fields) - {"max_clients"}:  # which is the ledger's
        assert settings(f"limits: {{{name}: {changed.get(name, 2000)}}}") != least, name
    assert settings("limits: {stall_timeout_ms: 5500}").stalls.stall_timeout_s == 5.5
    assert settings("drain_timeout_s: 500ms").drain_timeout_s == 0.5
    assert settings("connections_max_idle_ms: 1m").connections_max_idle_s == 60
    assert settings("").connections_max_age_s == 0
    assert settings("connections_max_age_ms: 10m").connections_max_age_s == 600


def test_partition_mutations_have_windows_of_their_own() -> None:
    text = "controller.quota.window.num: 100\ncontroller.quota.window.size.seconds: 2\nquota.window.num: 3\n"
    config = load_bytes("q.yaml", (MINIMAL + text + "controller_mutation_algorithm: windowed_burst").encode())
    settings = new_ledger(config, to_table(config)).settings
    assert (settings.num_samples, settings.window_ms) == (3, 1000)
    assert (settings.mutation_num_samples, settings.mutation_window_ms) == (100, 2000)
    assert settings.mutation_algorithm == "windowed_burst"
    assert "controller_mutation_algorithm" in config.restart_settings()


def warnings_in(text: str) -> list[str]:
    return [str(problem) for problem in warnings_of(load_bytes("q.yaml", (MINIMAL + text).encode()))]


def test_ineffective_settings_warn_with_place() -> None:
    quotas = "quotas: [{client-id: <default>, producer_byte_rate: 1M}]\n"
    assert warnings_in(quotas) == []
    assert warnings_in(quotas + "identity: {sources: [tls, static], static: web}") == [
        'q.yaml:3:22: identity.sources[0]: got "tls", is not used: no client is asked for a certificate '
        "(listen.tls, ssl.client.auth)"
    ]
    assert warnings_in(quotas + "identity: {sources: [sasl], static: web}") == [
        'q.yaml:3:37: identity.static: got "web", is not used: identity.sources does not list static'
    ]
    users = "quotas: [{user: a, producer_byte_rate: 1}, {user: b, producer_byte_rate: 1}]"
    assert warnings_in(users) == []
    assert warnings_in(users + "\nidentity: {sources: [static]}") == [
        'q.yaml:2:17: quotas[0].user: got "a", matches no connection yet: with this file every connection\'s user is '
        "ANONYMOUS (and 1 more of the quotas)"
    ]
    assert warnings_in("quotas: [{user: <default>, request_percentage: 1}]") == []
    assert warnings_in("quotas: [{user: <default>, controller_mutation_rate: 1}]") == []
    assert warnings_in("") == ["q.yaml:1:1: quotas: no quotas at all: nothing will be throttled"]


CLIENT_TLS = "listen: {tls: {certificate_file: /c, key_file: /k, ssl.client.auth: %s, client_ca_file: /a}}\n"


def test_users_of_certificates_and_files_can_have_any_name() -> None:
    quotas = "quotas: [{user: alice, producer_byte_rate: 1M}]\n"
    no_login = "identity: {sources: [tls, static]}"
    assert len(warnings_in(quotas + "identity: {sources: [static]}")) == 1
    assert warnings_in(quotas + CLIENT_TLS % "required" + no_login) == []
    assert warnings_in(quotas + "identity: {sources: [static], static: {file: /etc/kquota/user}}") == []
    (warning,) = warnings_in(quotas + CLIENT_TLS % "required" + "identity: {sources: [static]}")
    assert "matches no connection yet" in warning


def test_warns_of_unchecked_host_name() -> None:
    text = 'upstream: {bootstrap: ["kafka:9092"], tls: {verify_hostname: false}}\n'
    text += "quotas: [{user: <default>, producer_byte_rate: 1}]"
    assert [str(one) for one in warnings_of(load_bytes("q.yaml", text.encode()))] == [
        "q.yaml:1:62: upstream.tls.verify_hostname: got false, any holder of a certificate of a trusted authority can "
        "pose as a broker"
    ]


def keys_of(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = set(schema.get("properties", {}))
        return own.union(*(keys_of(value) for value in schema.values())) if schema else own
    return set().union(*(keys_of(value) for value in schema)) if isinstance(schema, list) and schema else set()


def test_quotas_are_a_list_or_a_mapping_and_mean_the_same() -> None:
    entries = "[{user: a, producer_byte_rate: 1}, {user: <default>, consumer_byte_rate: 2M}]"
    plain = load_bytes("q.yaml", f"{MINIMAL}quotas: {entries}".encode())
    mapped = load_bytes("q.yaml", f"{MINIMAL}quotas: {{entries: {entries}}}".encode())
    assert plain.quotas == mapped.quotas
    assert plain.quota_settings == mapped.quota_settings
    settings = plain.quota_settings
    assert (settings.source, settings.alter, settings.overlay, settings.poll_interval_s) == ("file", "deny", None, 10)


def test_schema_names_every_setting_and_forbids_others() -> None:
    schema = json_schema()
    names = keys_of(schema)
    assert {"quota.window.num", "quota.producer.override", "client-id", "producer_byte_rate", "broker_ports"} <= names
    assert "client_id" not in names
    assert "window_num" not in names
    assert all(part["additionalProperties"] is False for part in (schema, *schema["$defs"].values()))
    assert schema["else"]["required"] == ["upstream"], "unless mode is transparent"
    assert json.loads(json.dumps(schema)) == schema
