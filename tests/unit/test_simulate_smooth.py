"""`kquota simulate --pacing smooth`: what the sidecar would do, holds and mutes included, by hand-made arithmetic."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from config.load import load_bytes
from proxy.app.cli.main import app
from proxy.app.cli.simulate import run

LIMIT_500 = "quotas: [{client-id: c, producer_byte_rate: 500, consumer_byte_rate: 500}]"
ALL = (
    "quotas: [{client-id: c, producer_byte_rate: 500, consumer_byte_rate: 500, request_percentage: 10, "
    "controller_mutation_rate: 5}]"
)


def simulate(quotas: str, *events: Any, smooth: bool = True) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(results, errors) of events against the quotas of a file."""
    config = load_bytes("q.yaml", f'upstream: {{bootstrap: ["kafka:9092"]}}\n{quotas}'.encode())
    outcome = list(run(config, [json.dumps(event).encode() for event in events], smooth=smooth))
    return [line for good, line in outcome if good], [line for good, line in outcome if not good]


def event(
    t_ms: int, amount: float, connection: str | None = None, kind: str = "produce", **more: Any
) -> dict[str, Any]:
    named = {} if connection is None else {"connection": connection}
    return {"t_ms": t_ms, "user": "u", "client_id": "c", "kind": kind, "amount": amount} | named | more


def times(results: list[dict[str, Any]]) -> list[tuple[float, float, float, float]]:
    return [tuple(one[name] for name in ("t_ms", "held_ms", "forwarded_ms", "throttle_ms")) for one in results]  # type: ignore[misc]


def test_holds_other_connection_until_group_has_paid() -> None:
    # 7000 B / 10 s = 700 B/s: (700 - 500) / 500 * 10 s = 4 s of debt. 0.2 s may be owed when the next one passes, so
    # "b" waits from 1 s to 3.8 s. With its 500 B the window has 7500 B in 10.8 s, 694.4 B/s: 4.2 s, of which 0.1 s may
    # become credit. So "d" passes 4.1 - 0.2 s later.
    results, errors = simulate(
        LIMIT_500, event(0, 7000, "a"), event(1000, 500, "b"), event(1500, 500, "d"), event(60_000, 1, "a")
    )
    assert errors == []
    passed = [(one[0], one[1], one[2]) for one in times(results)]
    assert passed == [(0, 0, 0), (1000, 2800, 3800), (1500, 6200, 7700), (60_000, 0, 60_000)]
    assert results[0]["throttle_ms"] == 4000


def test_takes_request_when_mute_ends() -> None:
    results, _ = simulate(LIMIT_500, event(0, 7000), event(1000, 100), event(1001, 100))
    first, second, third = times(results)
    assert first == (0, 0, 0, 4000)
    assert second[:3] == (1000, 0, 4000)  # the client waits, as it was told: no hold
    assert third[2] >= 4000 + second[3]


def test_what_max_mute_cuts_is_held() -> None:
    results, _ = simulate("max_mute: 1s\n" + LIMIT_500, event(0, 7000), event(500, 100))
    assert times(results)[0] == (0, 0, 0, 1000)
    # muted for 1 s, then held until 3.8 s
    assert times(results)[1][:3] == (500, 2800, 3800)


def test_results_come_in_the_order_of_forwarding_and_each_once() -> None:
    events = [event(10 * number, 300, str(number % 7)) for number in range(200)]
    results, _ = simulate(LIMIT_500, *events)
    moments = [one["forwarded_ms"] for one in results]
    assert moments == sorted(moments)
    assert sorted(one["t_ms"] for one in results) == [one["t_ms"] for one in events]
    for number in range(7):  # those of one connection stay in order
        mine = [one["t_ms"] for one in results if one["t_ms"] // 10 % 7 == number]
        assert mine == sorted(mine)


def test_other_kinds_wait_as_in_the_sidecar() -> None:
    results, errors = simulate(
        ALL,
        event(0, 3000, "a", "request"),  # 30 % of 10 s: three times the limit
        event(1, 10, "b", "request"),
        event(2, 100, "m", "mutation", strict=False),  # 55 tokens: 45 overdrawn, 9 s
        event(3, 1, "n", "mutation", strict=False),
        event(4, 1, "s", "mutation"),  # strict: refused at once
        event(5, 9000, "f", "fetch"),
        event(6, 100, "g", "fetch"),
    )
    assert errors == []
    by_time = {one["t_ms"]: one for one in results}
    # (30 - 10) / 10 * 10 s = 20 s of debt; the delay that is told is one sample
    assert by_time[0]["throttle_ms"] == 1000
    assert by_time[1]["forwarded_ms"] == 20_000 - 200
    assert by_time[2]["throttle_ms"] == 9000
    assert by_time[3]["forwarded_ms"] == 9002
    assert (by_time[4]["accepted"], by_time[4]["held_ms"]) == (False, 0)
    assert by_time[5]["held_ms"] == 0  # one batch comes whole
    assert by_time[6]["held_ms"] > 5000  # answered without the broker until there is room: 18 s' worth has come


def test_applies_events_at_their_time() -> None:
    results, _ = simulate(
        LIMIT_500,
        event(0, 7000, "a"),
        event(10, 100, "b"),
        {"t_ms": 1000, "set": {"client-id": "c", "producer_byte_rate": 50_000}},
        {"t_ms": 1000, "kind": "connection", "user": "u"},
        event(1000, 10, "a", refund=True),
    )
    # at a hundred times the limit the debt is paid in a hundredth of the time
    assert [one["t_ms"] for one in results[:4]] == [0, 1000, 1000, 1000]
    assert results[4]["t_ms"] == 10
    assert results[4]["forwarded_ms"] < 2100


def test_endless_wait_is_an_error_and_others_go_on() -> None:
    results, errors = simulate(LIMIT_500, event(0, 2**63, "a"), event(1, 2**62, "b"), event(2, 2**61, "d"))
    assert [one["t_ms"] for one in results] == [0, 1]  # a delay is never longer than 2^31 ms
    assert errors == [{"line": 3, "error": "it would wait until after 9007199254740992 ms, its group owes"}]


def test_connection_is_an_event_of_smooth_pacing_only() -> None:
    results, (error,) = simulate(LIMIT_500, event(0, 1, "a"), smooth=False)
    assert results == []
    assert "connection: unknown key" in error["error"]
    _, (error,) = simulate(LIMIT_500, event(0, 1) | {"connection": 5})
    assert error == {"line": 1, "error": "connection: got 5, expected text or null"}


def test_the_command_takes_pacing(tmp_path: Any) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(LIMIT_500)
    lines = "\n".join(json.dumps(one) for one in (event(0, 7000, "a"), event(1000, 1, "b")))
    done = CliRunner().invoke(app, ["simulate", "--pacing", "smooth", "--config", str(path)], input=lines)
    assert done.exit_code == 0
    assert [json.loads(line)["held_ms"] for line in done.stdout.splitlines()] == [0, 2800]
    done = CliRunner().invoke(app, ["simulate", "--pacing", "smooth", "--compare", "--config", str(path)], input=lines)
    assert done.exit_code == 2
    assert "--compare" in done.stderr
