"""The ports of brokers are kept in a file, and listened on from the start after a restart."""

import json
from pathlib import Path

import pytest
import trio

from proxy.app.sources import follow, known_ports
from proxy.app.sources.known_ports import keep_ports, ports_before
from tests.support.scripted_broker import answer, through, until


async def test_the_file_follows_the_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ports, "BETWEEN_WRITES_S", 0.01)
    path = tmp_path / "ports.json"
    async with through(answer) as (proxy, broker, nursery):
        nursery.start_soon(keep_ports, path, proxy)
        await until(path.exists)
        (local,) = [local for *_, local in proxy.cluster.all()]
        assert json.loads(path.read_bytes())["ports"] == [
            {"port": local, "broker": 1, "host": "127.0.0.1", "broker_port": broker.node_port, "until": None}
        ]
        assert ports_before(str(path)) == proxy.cluster.known_ports()
        broker.node_port += 1  # it moves, and a client's connection that fails makes the sidecar ask
        assert local is not None
        proxy.cluster._look_again.set()
        await until(lambda: f'"broker_port":{broker.node_port}'.encode() in path.read_bytes())


async def test_unusable_files_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text('{"version": 1, "ports": [{}]}')
    assert ports_before(str(tmp_path / "bad.json")) == []
    assert capsys.readouterr().out.count("ports.0.port: Field required") == 1
    monkeypatch.setattr(known_ports, "BETWEEN_WRITES_S", 0.01)
    monkeypatch.setattr(follow, "ANSWER_TIMEOUT_S", 0.05)
    path = tmp_path / "missing" / "ports.json"
    async with through(answer) as (proxy, _, nursery):
        nursery.start_soon(keep_ports, path, proxy)
        await until(lambda: proxy.cluster.reached)
        await trio.sleep(0.3)
        path.parent.mkdir()
        await until(path.exists)
    assert capsys.readouterr().out.count("the ports of brokers cannot be stored") == 1
