"""`kquota redirect`: the rules as text, and in the kernel of a network namespace, by both tools."""

import json
import select
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.redirect.cli import app
from deploy.redirect.run import Rules, iptables_install
from tests.support.command import KQUOTA
from tests.support.namespaces import Namespace, machine_with
from tests.support.waiting import in_background

TO, KAFKA = 15001, 9092
SIDECAR_UID, SIDECAR_GID, MARK = 65532, 65533, 1337
TOOLS = pytest.mark.parametrize("tool", ["nft", "iptables"])
HERE, ELSEWHERE, LEFT_OUT = "10.77.0.2", "10.77.0.11", "10.77.1.1"
HERE6, ELSEWHERE6 = "fd77::2", "fd77::11"


@pytest.fixture
def machine() -> Iterator[Namespace]:
    with machine_with(HERE, ELSEWHERE, LEFT_OUT, HERE6, ELSEWHERE6) as found:
        yield found


def redirect(machine: Namespace, arguments: str, code: int = 0) -> str:
    """What the command says; on stderr if that is where it ends up."""
    with machine.inside():
        done = CliRunner().invoke(app, shlex.split(arguments))
    assert done.exit_code == code, (done.output, done.exception)
    return (done.stdout or done.stderr).strip()


CONNECT_AS = """import encodings.idna, os, socket, sys  # all that is needed, while it may still be read
host, port, uid, gid = sys.argv[1], *map(int, sys.argv[2:])
os.setgid(gid)
os.setuid(uid)
socket.create_connection((host, port), 5).recv(1)
"""


def reached(machine: Namespace, host: str, port: int, *, uid: int = 0, gid: int = 0, mark: int = 0) -> int:
    """At which port of this machine a connection arrives, where there is a listener on `TO` and one on the port."""
    with machine.inside(), ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("::", one), family=socket.AF_INET6, dualstack_ipv6=True))
            for one in (TO, port)
        ]

        def accept() -> list[int]:
            ready, _, _ = select.select(listeners, [], [], 20)
            for listener in ready:
                listener.accept()[0].close()
            return [listener.getsockname()[1] for listener in ready]

        arrived = in_background(accept)
        if uid or gid:
            command = [sys.executable, "-I", "-S", "-c", CONNECT_AS, host, *map(str, (port, uid, gid))]
            subprocess.run(command, check=True, timeout=60)
        else:
            client = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
            client.connect((host, port))
        (found,) = arrived.result()
    return found


@TOOLS
def test_redirects_ports_and_leaves_out_exclusions(machine: Namespace, tool: str) -> None:
    said = redirect(
        machine,
        f"install --with {tool} --to-port {TO} --port {KAFKA} --port 9094-9096 --exclude-port 9095 "
        f"--exclude-network 10.77.1.0/24 --exclude-uid {SIDECAR_UID} --exclude-gid {SIDECAR_GID} --exclude-mark {MARK}",
    )
    assert said == f"redirecting to port {TO}, by {tool}"
    for host in (ELSEWHERE, ELSEWHERE6):
        for port, arrived in ((KAFKA, TO), (9096, TO), (9095, 9095), (8080, 8080)):
            assert reached(machine, host, port) == arrived
        for exempt in ({"uid": SIDECAR_UID}, {"gid": SIDECAR_GID}, {"mark": MARK}):
            assert reached(machine, host, KAFKA, **exempt) == KAFKA
    for host in (LEFT_OUT, "127.0.0.1", "::1"):
        assert reached(machine, host, KAFKA) == KAFKA


@TOOLS
def test_install_replaces_and_remove_leaves_nothing(machine: Namespace, tool: str) -> None:
    untouched = "table ip mine { chain output { type filter hook output priority 0; tcp dport 7 accept;\n}\n}\n"
    machine.run("nft", "-f", "-", given=untouched)
    arguments = f"install --with {tool} --to-port {TO} --exclude-uid {SIDECAR_UID}"
    redirect(machine, f"{arguments} --port 9000")
    listed: list[str] = []
    for _ in range(2):
        redirect(machine, f"{arguments} --network {ELSEWHERE} --network fd77::/64")
        listed.append(machine.run("nft", "list", "ruleset").stdout)
    assert listed[0] == listed[1], "the same again changes nothing"
    assert reached(machine, ELSEWHERE, 9000) == TO
    assert reached(machine, ELSEWHERE6, 9000) == TO
    assert reached(machine, LEFT_OUT, 9000) == 9000, "the first install's port is forgotten"
    shown = redirect(machine, "show")
    assert json.loads(redirect(machine, "show --json"))["rules"] == shown.splitlines()
    assert ELSEWHERE in shown
    assert "# would be removed" in redirect(machine, "remove --dry-run")
    assert redirect(machine, "remove") == f"removed the rules of {tool}"
    assert reached(machine, ELSEWHERE, 9000) == 9000
    left = machine.run("nft", "list", "ruleset").stdout
    assert "tcp dport 7 accept" in left, "other people's rules stay"
    assert "kquota" not in left.lower()
    assert redirect(machine, "remove") == "no rules of kquota", "once more does no harm"
    assert redirect(machine, "show", code=1) == "error: no rules of kquota"
    assert json.loads(redirect(machine, "show --json", code=1)) == {"rules": []}


def test_the_other_tools_rules_are_replaced(machine: Namespace) -> None:
    arguments = f"--to-port {TO} --port 9092 --exclude-uid {SIDECAR_UID}"
    redirect(machine, f"install --with iptables {arguments}")
    redirect(machine, f"install --with nft {arguments}")
    assert "KQUOTA_OUTPUT" not in redirect(machine, "show")
    redirect(machine, f"install --with iptables {arguments} --no-ipv6")
    shown = redirect(machine, "show")
    assert "# iptables -t nat" in shown
    assert "ip6tables" not in shown
    assert "table inet" not in shown
    assert reached(machine, ELSEWHERE6, 9092) == 9092


def test_removes_every_jump_to_its_chain(machine: Namespace) -> None:
    """Saved rules that are restored over the same ones (`iptables-restore --noflush`) make a second one."""
    arguments = f"install --to-port {TO} --port 9092 --exclude-uid {SIDECAR_UID}"
    for end in ("remove", f"{arguments} --with nft"):
        redirect(machine, f"{arguments} --with iptables")
        saved = machine.run("iptables-save").stdout
        machine.run("iptables-restore", "--noflush", given=saved)
        redirect(machine, end)
        assert "KQUOTA_OUTPUT" not in machine.run("iptables-save").stdout


def test_without_the_program_for_ipv6(machine: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("iptables", "iptables-restore"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = f"install --to-port {TO} --port 9092 --exclude-uid {SIDECAR_UID}"
    assert "ip6tables is not installed here" in redirect(machine, arguments, code=1)
    assert redirect(machine, "show", code=1) == "error: no rules of kquota"
    redirect(machine, f"{arguments} --no-ipv6")
    assert redirect(machine, "remove") == "removed the rules of iptables"


def test_fail_open_rules_follow_the_heartbeat(machine: Namespace) -> None:
    redirect(machine, f"install --with nft --to-port {TO} --port {KAFKA} --exclude-uid {SIDECAR_UID} --when-down open")
    assert reached(machine, ELSEWHERE, KAFKA) == KAFKA, "no sidecar yet: directly"
    with machine.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", ("127.0.0.1", TO))
    assert reached(machine, ELSEWHERE, KAFKA) == TO
    assert reached(machine, ELSEWHERE6, KAFKA) == KAFKA, "IPv6 has a heartbeat of its own"
    # That it ends is seen with a real sidecar, in test_transparent_kafka: it takes ALIVE_S.


def test_configuration_sets_port_and_mark(machine: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "kquota.yaml"
    path.write_text(f"mode: transparent\nlisten: {{port: {TO}}}\ntransparent: {{mark: {MARK}}}\n")
    text = redirect(machine, f"install --config {path} --port {KAFKA} --dry-run --with nft")
    assert f"redirect to :{TO}" in text
    assert f"meta mark {{ {MARK} }} return" in text
    assert text.startswith("# nft -f -\n")
    assert machine.run("nft", "list", "ruleset").stdout == "", "a dry run does nothing"
    for text, said in (
        ('upstream: {bootstrap: ["k:1"]}\n', "mode is rewrite"),
        ("mode: transparent\nlisten: {port: 0}\n", "listen.port is 0"),
    ):
        path.write_text(text)
        assert said in redirect(machine, f"install --config {path} --port {KAFKA}", code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--exclude-uid 1", "nothing to redirect: expected --port or --network"),
        ("--port 9092", "expected --exclude-uid (65532 in the image)"),
        ("--port 0 --exclude-uid 1", "expected a port or first-last"),
        ("--port 9096-9092 --exclude-uid 1", "expected a port or first-last"),
        ("--network 10.0.0.1/8 --exclude-uid 1", "has host bits set"),
        ("--network fd77::/64 --no-ipv6 --exclude-uid 1", "--network has only IPv6 networks, which --no-ipv6 leaves"),
        ("--port 1 --exclude-uid 1 --when-down open --with iptables", "--when-down open needs nftables"),
    ],
)
def test_wrong_use_is_an_error(machine: Namespace, arguments: str, said: str) -> None:
    text = " ".join(redirect(machine, f"install {arguments}", code=2).replace("│", " ").split())
    assert said in text


def test_missing_capability_names_the_fix(machine: Namespace) -> None:
    drop = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    done = machine.run(*drop, *KQUOTA, "redirect", "remove", check=False)
    assert done.returncode == 1
    assert "this needs the capability NET_ADMIN: run it in an init container" in done.stderr
    assert "Traceback" not in done.stderr


MISSING = {
    "auto": "neither nft nor iptables is installed",
    "nft": "apt-get install nftables",
    "iptables": "apt-get install iptables",
}


@pytest.mark.parametrize("tool", MISSING)
def test_missing_programs_name_the_packages(
    tool: str, machine: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    install = f"install --port 9092 --exclude-uid 1 --with {tool}"
    assert MISSING[tool] in redirect(machine, install, code=1)
    if tool != "auto":
        assert " 9092" in redirect(machine, f"{install} --dry-run")


def test_many_ports_are_several_matches() -> None:
    """15 ports fit in one match of iptables, a range counting twice: 10 single ones and 3 ranges are 16."""
    ports = (*(range(n, n + 1) for n in range(1, 11)), range(100, 103), range(200, 203), range(300, 303))
    text = iptables_install(Rules(TO, ports=ports, exclude_uids=(1,)), 4, jump=True)
    matches = [line.split("--dports ")[1].split()[0] for line in text.splitlines() if "--dports" in line]
    assert matches == ["1,2,3,4,5,6,7,8,9,10,100:102,200:202", "300:302"]
