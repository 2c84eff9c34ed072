"""What idle cores are asked to do while the benchmarks measure (`benchmarks.rig.idle`)."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.rig import idle


def _state(states: Path, cpu: int, number: int, latency: int, time_us: int) -> Path:
    folder = states / f"cpu{cpu}" / "cpuidle" / f"state{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latency").write_text(f"{latency}\n", encoding="ascii")
    (folder / "time").write_text(f"{time_us}\n", encoding="ascii")
    return folder / "time"


def test_the_latency_is_asked_for_and_what_the_cores_did_is_counted(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.write_bytes(b"")
    polled = _state(tmp_path, 0, 0, 0, 1_000)
    halted = _state(tmp_path, 0, 1, 1, 5_000)
    other = _state(tmp_path, 1, 0, 0, 50)
    (tmp_path / "cpuidle").mkdir()  # settings of all cores: no core
    with idle.polling(device=device, states=tmp_path) as idling:
        assert device.read_bytes() == b"\0\0\0\0"
        assert idling.polling_share() is None  # no core has been idle since
        polled.write_text("1600\n", encoding="ascii")
        halted.write_text("5200\n", encoding="ascii")
        other.write_text("250\n", encoding="ascii")
        # 600 + 200 µs polled, 200 µs halted: 800 / 1000
        assert idling.polling_share() == 0.8
        assert idling.describe() == {"polling_share": 0.8, "refused": None}


def test_nothing_is_asked_of_the_machine_if_it_is_not_wanted(tmp_path: Path) -> None:
    with idle.polling(False, device=tmp_path / "none", states=tmp_path) as idling:
        assert idling.describe() == {"polling_share": None, "refused": None}


def test_a_machine_that_does_not_allow_it_is_measured_all_the_same(tmp_path: Path) -> None:
    _state(tmp_path, 0, 1, 1, 5_000)
    with idle.polling(device=tmp_path / "none", states=tmp_path) as idling:
        assert idling.refused == f"{tmp_path / 'none'}: No such file or directory"


def test_the_command_line_can_leave_idle_cores_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[bool] = []

    def run(plan: Any, *_rest: Any) -> dict[str, Any]:
        seen.append(plan.idle_cores_poll)
        raise ValueError("that is all")

    monkeypatch.setattr("benchmarks.rig.runner.run", run)
    for words in ([], ["--halt-idle-cores"]):
        assert main(["--plan", "tiny", "--output", str(tmp_path), *words]) == 2
    assert seen == [True, False]
