"""What a person sees: check, explain, simulate, schema; exit codes; stdout for results, stderr for complaints."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.net.tls import channel
from tests.lab.kafka.ports import free_ports
from tests.support.command import KQUOTA, LIMIT_S, started
from tests.support.command import in_process as kquota
from tests.support.waiting import in_background

UPSTREAM = 'upstream: {bootstrap: ["kafka-0.kafka:9092"]}\n'
GOOD = f"""{UPSTREAM}identity: {{sources: [tls, static], static: web}}
quotas:
  - {{user: <default>, producer_byte_rate: 2M, consumer_byte_rate: 4Mi}}
  - {{user: web, client-id: etl, producer_byte_rate: 10M, controller_mutation_rate: 5, mode: shadow}}
"""
BAD = UPSTREAM + "quotas: [{user: a, producer_byte_rat: 1}, {usr: b}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "q.yaml").write_text(text)
        return str(tmp_path / "q.yaml")

    return write


@pytest.fixture
def good(file: Callable[[str], str]) -> str:
    return file(GOOD)


CHECKED = """{file}: ok
  mode              rewrite
  listen            127.0.0.1:9092, brokers on ports 19092-19191
  clients use       bootstrap.servers 127.0.0.1:9092
  clients get       127.0.0.1, ports 19092-19191, broker N: 19092 + N mod 100
  upstream          kafka-0.kafka:9092
  user              web for every connection
  window            11 samples of 1 s, pacing smooth, max throttle 2 min
  mutation window   11 samples of 1 s, token_bucket
  limits are        per sidecar (n sidecars: up to n times the limit)
  largest request   100 MiB
  quotas from       this file
  altering quotas   refused
  admin             http://127.0.0.1:9404

2 quotas, most specific level first:
  level            user        client-id   produce              fetch               partition mutations   mode
  user+client-id   web         etl         10 MB/s (10000000)   -                   5/s                   shadow
  <default user>   <default>   -           2 MB/s (2000000)     4 MiB/s (4194304)   -                     enforce
"""


def test_check_explains_the_file(good: str) -> None:
    result = kquota("check", good)
    assert result.exit_code == 0
    assert result.stdout == CHECKED.format(file=good)
    assert result.stderr.splitlines() == [
        f'warning: {good}:2:22: identity.sources[0]: got "tls", is not used: no client is asked for a '
        "certificate (listen.tls, ssl.client.auth)"
    ]


NODE = "{host: 0.0.0.0, broker_ports: 1-30, advertised: {host: node-1, port: 30092, first_broker_port: 30100}}"
SAME = "the address that they connected to, ports 19092-19191, broker N: 19092 + N mod 100"
TLS = "{certificate_file: /a, key_file: /b, client_ca_file: /c, ssl.client.auth: requested}"
CLUSTER = "quotas: {source: cluster, alter: forward}"


@pytest.mark.parametrize(
    ("settings", "label", "text"),
    [
        (f"listen: {NODE}", "clients use", "bootstrap.servers node-1:30092"),
        (f"listen: {NODE}", "clients get", "node-1, ports 30100-30129, broker N: 30100 + N mod 30"),
        ("listen: {host: '::', port: 9000}", "clients use", "bootstrap.servers (this machine):9000"),
        ("listen: {host: '::', port: 9000}", "clients get", SAME),
        (UPSTREAM.replace("{", "{tls: {}, "), "TLS", f"brokers, by {channel.DESCRIPTION}"),
        ("", "user", "from the SASL login, else ANONYMOUS"),
        ("identity: {static: web}", "user", "from the SASL login, else web"),
        (f"listen: {{tls: {TLS}}}", "user", "from the TLS client certificate or the SASL login, else ANONYMOUS"),
        ("identity: {static: {file: /etc/user}}", "user", "from the SASL login, else as /etc/user says"),
        ("identity: {sources: [static]}", "user", "ANONYMOUS for every connection"),
        (CLUSTER, "quotas from", "the cluster's own, polled every 10 s"),
        (CLUSTER, "altering quotas", "passed to the broker"),
    ],
)
def test_check_says_what_settings_mean(settings: str, label: str, text: str, file: Callable[[str], str]) -> None:
    path = file(settings if settings.startswith("upstream") else UPSTREAM + settings)
    assert f"\n  {label:18}{text}\n" in kquota("check", path).stdout
    explained = kquota("explain", "--config", path)
    assert label != "user" or explained.stdout.splitlines()[1] == f"  user: {text}"
    assert ("warning: quotas.source is cluster: this file does not" in explained.stderr) == (settings == CLUSTER)


def test_check_names_every_problem(file: Callable[[str], str]) -> None:
    path, expected = file(BAD), "unknown key, did you mean producer_byte_rate?"
    result = kquota("check", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"error: {path}:2:20: quotas[0].producer_byte_rat: {expected}",
        f"error: {path}:2:44: quotas[1].usr: unknown key, did you mean user?",
    ]
    result = kquota("check", path, "--json")
    wrong = json.loads(result.stdout)
    assert (result.exit_code, wrong["ok"]) == (2, False)
    place = {"file": path, "place": "quotas[0].producer_byte_rat", "line": 2, "column": 20}
    assert wrong["problems"][0] == place | {"value": None, "expected": expected}


def test_check_as_json(good: str) -> None:
    fine = json.loads(kquota("check", good, "--json").stdout)
    assert (fine["ok"], fine["problems"], len(fine["warnings"])) == (True, [], 1)
    brokers = "127.0.0.1, ports 19092-19191, broker N: 19092 + N mod 100"
    assert fine["clients"] == {"bootstrap": "127.0.0.1:9092", "brokers": brokers}
    limits = {"producer_byte_rate": 10_000_000, "controller_mutation_rate": 5}
    more = {"mode": "shadow", "scope": "instance", "level": "user+client-id"}
    assert fine["quotas"][1] == {"user": "web", "client-id": "etl"} | limits | more


def test_a_file_full_of_mistakes_does_not_flood_the_terminal(file: Callable[[str], str]) -> None:
    lines = kquota("check", file(UPSTREAM + "quotas:\n" + "- {usr: a}\n" * 300)).stderr.splitlines()
    assert len(lines) == 51
    assert lines[-1] == "error: … and 250 more problems"


def test_check_shows_limits_of_connections(file: Callable[[str], str]) -> None:
    path = file(f"""{UPSTREAM}max.connections.per.ip: 100
quotas: [{{ip: 10.0.0.1, connection_creation_rate: 20}}, {{user: <default>, max_connections: 5, mode: shadow}}]
""")
    assert kquota("check", path).stdout.split("\n\n")[1] == (
        "3 limits of connections:\n"
        "  by     name        connections made   connections open   mode\n"
        "  ip     10.0.0.1    20/s               -                  enforce\n"
        "  ip     <default>   -                  at most 100        enforce\n"
        "  user   <default>   -                  at most 5          shadow\n"
    )
    answer = json.loads(kquota("check", path, "--json").stdout)
    assert answer["quotas"] == []
    assert answer["connection_limits"][0] == {"ip": "10.0.0.1", "connection_creation_rate": 20, "mode": "enforce"}


def test_explain_shows_eight_levels_and_the_winner(good: str) -> None:
    result = kquota("explain", "--config", good, "--user", "web", "--client-id", "etl")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:2] == ["user web, client-id etl", "  user: web for every connection"]
    assert lines[3] == "levels from most to least specific:"
    assert [line.split("   ")[0].strip() for line in lines[5:13]] == [
        *("user+client-id", "user+<default client-id>", "user", "<default user>+client-id"),
        *("<default user>+<default client-id>", "<default user>", "client-id", "<default client-id>"),
    ]
    assert lines[5].split("   ")[-1].strip() == "5/s <- in force (shadow)"
    assert "10 MB/s (10000000) <- in force (shadow)" in lines[5]
    assert "2 MB/s (2000000)  " in lines[10]
    assert "4 MiB/s (4194304) <- in force  " in lines[10]
    shadow = "from user+client-id, shadow: measured, never applied; one counter for all connections of user web with"
    assert lines[14:] == [
        f"produce   10 MB/s (10000000) {shadow} client-id etl",
        "fetch     4 MiB/s (4194304) from <default user>; "
        "one counter for all connections of user web, with any client-id",
        "request   no limit",
        f"mutation  5/s {shadow} client-id etl",
        "",
        "user web: no connection limits",
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", "cannot connect"),
        ("127.0.0.1:1", "http://127.0.0.1:1: cannot connect"),
        *((wrong, "is not a URL") for wrong in ("ftp://x", "x", "http://exa mple")),
    ],
)
def test_explain_reports_unreachable_sidecar(url: str, expected: str) -> None:
    result = kquota("explain", "--admin", url)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert expected in line


@pytest.mark.parametrize("place", ["--config", "--admin"])
def test_explain_refuses_what_is_no_address(place: str, good: str) -> None:
    result = kquota("explain", place, good if place == "--config" else "http://127.0.0.1:1", "--ip", "10.0.0.0/8")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--ip: '10.0.0.0/8' does not appear to be" in result.stderr


@pytest.mark.parametrize("command", [("top", "--once"), ("explain",)])
def test_what_is_no_admin_port_is_one_sentence(command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            stream, _ = server.accept()
            with stream:
                stream.sendall(b"SSH-2.0-x\r\n")
                stream.recv(1000)

        greeted = in_background(greet)
        result = kquota(*command, "--admin", f"127.0.0.1:{server.getsockname()[1]}/")
        greeted.result()
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "not a kquota admin port" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_page_of_many_sidecars_silently(number: signal.Signals) -> None:
    with started("ui", "--admin", "localhost:9", "--port", str(free_ports(1)[0])) as process:
        assert process.stdout is not None
        assert "(Ctrl-C ends)" in process.stdout.readline()
        process.send_signal(number)
        assert (process.communicate(timeout=20), process.returncode) == (("", ""), 0)


def test_simulate_reports_wrong_lines_goes_on_and_ends_with_2(good: str) -> None:
    event = '{"t_ms":0,"user":"web","kind":"produce","amount":400}'
    result = kquota("simulate", "--config", good, stdin=f"{event}\nnonsense\n\n{event}\n")
    assert result.exit_code == 2
    assert [json.loads(line)["observed"] for line in result.stdout.splitlines()] == [40, 80]
    assert [json.loads(line)["line"] for line in result.stderr.splitlines()] == [2]
    assert kquota("simulate", "--config", good, stdin=f"{event}\n").exit_code == 0
    assert kquota("simulate", "--config", good, stdin="").stdout == ""


def test_simulate_answers_each_line_at_once(good: str) -> None:
    with started("simulate", "--config", good, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for t_ms in range(3):
            process.stdin.write(f'{{"t_ms":{t_ms},"kind":"fetch","amount":1}}\n')
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["t_ms"] == t_ms
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_reader_that_goes_away_is_no_stack_trace(good: str) -> None:
    with started("simulate", "--config", good, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write('{"t_ms":0,"kind":"fetch","amount":1}\n' * 10)
        process.stdin.close()
        assert (process.wait(LIMIT_S), process.stderr.read()) == (1, "")


@pytest.mark.parametrize("command", ["run", "check", "simulate"])
def test_a_missing_file_is_wrong_use(command: str) -> None:
    result = kquota(command, "--config", "/nowhere.yaml")
    assert result.exit_code == 2
    assert result.stderr == "error: /nowhere.yaml: cannot be read: No such file or directory\n"


def test_quotas_can_be_tried_on_paper_without_an_upstream(file: Callable[[str], str]) -> None:
    """simulate and explain connect to nothing, so `upstream` may be missing; run and check still want it."""
    path = file("quotas: [{client-id: etl, producer_byte_rate: 500}]\n")
    event = '{"t_ms": 0, "client_id": "etl", "kind": "produce", "amount": 6000}\n'
    done = kquota("simulate", "--config", path, stdin=event)
    # 6 000 B in 10 s are 600 B/s: (600 - 500) / 500 * 10 s = 2 s
    assert (done.exit_code, json.loads(done.stdout)["throttle_ms"]) == (0, 2000)
    assert json.loads(done.stdout)["user"] == "ANONYMOUS"
    assert kquota("explain", "--config", path, "--user", "u", "--client-id", "etl").exit_code == 0
    checked = kquota("check", path)
    assert (checked.exit_code, "upstream" in checked.stderr) == (2, True)


@pytest.fixture
def administered(file: Callable[[str], str], tmp_path: Path) -> str:
    """A configuration with an overlay, which does not exist yet."""
    return file(f"""{UPSTREAM}quotas:
  {{alter: apply, alter_principals: [ANONYMOUS], overlay: {tmp_path}/overlay.yaml,
   entries: [{{user: <default>, producer_byte_rate: 2M, consumer_byte_rate: 3M}}]}}
""")


def test_check_explain_and_simulate_include_the_overlay(administered: str, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    before = kquota("check", administered)
    assert before.exit_code == 0
    assert f"quotas from       this file with overlay {overlay}, which does not exist yet\n" in before.stdout
    assert "altering quotas   applied here, for ANONYMOUS\n" in before.stdout
    assert "1 quota, most specific level first" in before.stdout
    assert "2 MB/s (2000000) from <default user>" in kquota("explain", "--config", administered).stdout
    overlay.write_text(
        "quotas:\n- {user: <default>, producer_byte_rate: 5, consumer_byte_rate: null}\n"
        "- {client-id: c, request_percentage: 1}\n"
    )
    after = kquota("check", administered)
    assert f"quotas from       this file with overlay {overlay}, which has 2 entities\n" in after.stdout
    assert "2 quotas, most specific level first" in after.stdout
    shown = json.loads(kquota("check", administered, "--json").stdout)
    assert (shown["source"], shown["alter"], shown["overlay"]) == ("file", "apply", str(overlay))
    assert [quota.get("producer_byte_rate") for quota in shown["quotas"]] == [5, None]
    explained = kquota("explain", "--config", administered)
    assert "5 B/s from <default user>" in explained.stdout
    assert "fetch     no limit" in explained.stdout
    assert explained.stderr == f"note: with overlay {overlay}, which has 2 entities\n"
    simulated = kquota("simulate", "--config", administered, stdin='{"t_ms":0,"kind":"produce","amount":60}\n')
    assert json.loads(simulated.stdout)["limit"] == 5
    assert simulated.stderr == explained.stderr


def test_a_broken_overlay_is_named_by_every_command(administered: str, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("quotas: [{user: alice}]")
    complaint = f"error: {overlay}:1:10: quotas[0]: expected at least one limit: "
    for command in ("check", "explain", "simulate", "run"):
        result = kquota(command, "--config", administered)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert result.stderr.startswith(complaint), command
    problem = json.loads(kquota("check", administered, "--json").stdout)["problems"][0]
    assert (problem["file"], problem["place"], problem["line"]) == (str(overlay), "quotas[0]", 1)


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">/dev/full", 1, "error: cannot write the output: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&-", 0, None),
        ("| true", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line(good: str, redirection: str, code: int, error: str | None) -> None:
    shell = ["sh", "-c", f'"$@" {redirection}', "sh", *KQUOTA, "check", good]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == code
    lines = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("warning: ")]
    assert error is None or "".join(lines) == error
    assert "Traceback" not in done.stdout + done.stderr


NEEDLESS = {
    "yaml", "kio", "trio", "starlette", "h11", "hypercorn", "prometheus_client", "structlog", "rich", "kafka",
    "config.model", "proxy.core.session.session", "proxy.app.metrics",
}  # fmt: skip
LIST = "import json, sys; print(json.dumps(sorted(name for name, one in sys.modules.items() if one is not None)))"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["redirect", "--help"], ["run", "--help"]], ids=" ".join
)
def test_imports_only_needed_modules(arguments: list[str]) -> None:
    """Asking for the version or for help takes no time."""
    program = (
        "import sys; from proxy.app.cli.main import main\n"
        f"sys.argv = ['kquota', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print(); {LIST}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "typer" in loaded
    assert loaded & NEEDLESS == set()
