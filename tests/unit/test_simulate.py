"""`kquota simulate`: Kafka's own numbers come out (cases A, B, C, E of Kafka's tests), wrong events are refused."""

import json
from typing import Any

import pytest

from config.load import load_bytes
from proxy.app.cli.simulate import run

BASE = 'upstream: {bootstrap: ["kafka:9092"]}\n'
CLIENT_500 = "quotas: [{client-id: c, producer_byte_rate: 500, consumer_byte_rate: 500}]"
EVENT = {"t_ms": 0, "kind": "produce", "amount": 1}


def simulate(quotas: str, *events: dict[str, Any] | str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lines = [event.encode() if isinstance(event, str) else json.dumps(event).encode() for event in events]
    outcome = list(run(load_bytes("q.yaml", (BASE + quotas).encode()), lines))
    return [line for good, line in outcome if good], [line for good, line in outcome if not good]


def connection(t_ms: int, **more: Any) -> dict[str, Any]:
    return {"t_ms": t_ms, "kind": "connection", "ip": "10.0.0.1"} | more


def produce(t_ms: int, amount: float, user: str = "u", client_id: str = "c") -> dict[str, Any]:
    return {"t_ms": t_ms, "user": user, "client_id": client_id, "kind": "produce", "amount": amount}


def test_the_output_has_exactly_the_promised_keys() -> None:
    quotas = "max_mute: 1s\npacing: smooth\n" + CLIENT_500  # delays are neither capped nor paced
    (result,), _ = simulate(quotas, produce(7, 8000))
    # 8000 B / 10 s = 800 B/s; (800 - 500) / 500 * 10 000 ms
    numbers = {"t_ms": 7, "throttle_ms": 6000, "limit": 500, "observed": 800}
    assert result == {"kind": "produce", "user": "u", "client_id": "c", "accepted": True, "group": ":c"} | numbers


def test_the_example_of_kip_599_under_both_algorithms() -> None:
    # rate 5, 100 windows of 1 s: burst 500. 560 partitions: -60 tokens, and 560 / 100 = 5.6 on average; 12 s to go
    quotas = "controller.quota.window.num: 100\nquotas: [{client-id: c, controller_mutation_rate: 5}]"
    event = {"client_id": "c", "kind": "mutation"}
    times = ((0, 560), (0, 1), (12_000, 0), (12_000, 0), (100_000, 0), (100_000, 7))
    events: list[dict[str, Any]] = [event | {"t_ms": t_ms, "amount": amount} for t_ms, amount in times]
    events[3]["refund"], events[5]["kind"] = True, "produce"
    overdrawn = {"accepted": True, "throttle_ms": 0, "observed": -60, "rate": 5.6}
    refused = overdrawn | {"accepted": False, "throttle_ms": 12_000}
    back = {"accepted": True, "throttle_ms": 0, "observed": 0, "rate": 5}
    for algorithm in ("token_bucket", "windowed_burst"):
        config = load_bytes("q.yaml", f"{BASE}controller_mutation_algorithm: {algorithm}\n{quotas}".encode())
        lines = [json.dumps(one).encode() for one in events]
        results = [result for good, result in run(config, lines, compare=True) if good]
        both = [result.pop("algorithms", None) for result in results]
        for expected, got in zip((overdrawn, refused, back, back), both, strict=False):
            assert got == {"token_bucket": expected, "windowed_burst": expected}
        # What was overdrawn is forgotten with its window: 500 to use, where the bucket has -60 + 500.
        assert [both[4][name]["observed"] for name in ("token_bucket", "windowed_burst")] == [440, 500]
        assert both[5] is None
        assert results == [result for _, result in run(config, lines)]  # --compare only adds
        assert results[4]["observed"] == both[4][algorithm]["observed"]
        ((_, free),) = run(config, [b'{"t_ms": 0, "client_id": "free", "kind": "mutation", "amount": 9}'], compare=True)
        assert free["algorithms"][algorithm] == {"accepted": True, "throttle_ms": 0, "observed": 0, "rate": None}


def test_group_names_are_kafkas_sensor_names() -> None:
    # semantics 1.9: the user sanitised, the client-id raw
    quotas = "quotas: [{user: <default>, client-id: <default>, producer_byte_rate: 1}]"
    (result,), _ = simulate(quotas, produce(0, 0, "O=A client,CN=localhost~", "client@#$%"))
    assert result["group"] == "O%3DA%20client%2CCN%3Dlocalhost%7E:client@#$%"
    (result,), _ = simulate(quotas, EVENT)
    assert (result["user"], result["client_id"]) == ("ANONYMOUS", "")


def test_quotas_change_on_the_way_and_history_stays() -> None:
    # A7: raised, the history stays. Lowered to 2000, t=1: the window is 10 001 ms, (27 500 - 20 002) / 2000 s = 3749 ms
    results, errors = simulate(
        CLIENT_500,
        produce(0, 27_500),
        {"t_ms": 0, "set": {"client-id": "c", "producer_byte_rate": 3000}},
        produce(0, 0),
        {"t_ms": 1, "set": {"client-id": "c", "producer_byte_rate": "2k"}},
        produce(1, 0),
        {"t_ms": 2, "remove": {"client-id": "c"}},
        produce(2, 0),
        {"t_ms": 2, "remove": {"client-id": "c"}},
        {"t_ms": 2, "set": {"client-id": "c", "producer_byte_rate": 1}},
        {"t_ms": 2, "set": {"client-id": "c", "producer_byte_rate": None}},
    )
    assert errors == []
    assert [one.get("throttle_ms") for one in results[:8]] == [45_000, None, 0, None, 3749, None, 0, None]
    assert results[9] == {"t_ms": 2, "remove": {"client-id": "c"}, "removed": True}, "with its last limit"
    assert results[1] == {
        "t_ms": 0,  # Kafka's way: limits that are not named stay
        "set": {"client-id": "c", "producer_byte_rate": 3000, "consumer_byte_rate": 500, "mode": "enforce"},
    }
    assert results[5] == {"t_ms": 2, "remove": {"client-id": "c"}, "removed": True}
    assert results[7]["removed"] is False


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("{", "expected one JSON object: Expecting property name"),
        ("[]", "expected an object, got []"),
        ("[" * 100_000, "expected one JSON object: "),
        ({"t_ms": 0, "kind": "prodce", "amount": 1}, 'kind: got "prodce", expected one of produce, fetch, request,'),
        ({"t_ms": 0, "amount": 1}, "kind: got nothing, expected one of"),
        ({"t_ms": 0, "kind": "produce"}, "amount: got nothing, expected a number of at least 0"),
        ('{"t_ms":0,"kind":"produce","amount":NaN}', "amount: got NaN, expected"),
        (EVENT | {"t_ms": 2**60}, "t_ms: got"),
        (EVENT | {"user": 5}, "user: got 5, expected text or null"),
        (EVENT | {"refund": 1}, "refund: got 1, expected true or false"),
        (EVENT | {"strict": True}, "strict: expected only with kind mutation"),
        ({"t_ms": 0, "kind": "produce", "amont": 1}, "amont: unknown key, did you mean amount?"),
        ({"t_ms": 0, "set": {"client-id": "c", "producer_byte_rate": "4X"}}, 'set: producer_byte_rate: got "4X",'),
        ({"t_ms": 0, "set": {"client-id": "c", "producer_rate": 4}}, "set: producer_rate: unknown key, did you mean"),
        ({"t_ms": 0, "set": {"producer_byte_rate": 4}}, "expected user, client-id or both"),
        ({"t_ms": 0, "set": {"client-id": "d"}}, "set: got a mapping with client-id, expected at least one limit"),
        ({"t_ms": 0, "set": 5}, "set: expected a quota entry, got 5"),
        ({"t_ms": 0, "set": {"client-id": ""}}, 'client-id: got "", expected a name or <default>'),
        ({"t_ms": 0, "set": {"user": "x", "producer_byte_rate": 1}, "kind": "produce"}, "kind: unknown key"),
        ({"t_ms": 0, "remove": {}}, "remove: expected user, client-id or both"),
        ({"t_ms": 0, "remove": {"usr": "x"}}, "remove: usr: unknown key, did you mean user?"),
        ({"t_ms": 0, "remove": "x"}, 'remove: expected user and/or client-id, or ip, got "x"'),
        (connection(0, ip="kafka-0"), 'ip: got "kafka-0", expected an IP address'),
        (connection(0, amount=1), "amount: unknown key"),
        ({"t_ms": 0, "set": {"ip": "x", "max_connections": 1}}, 'ip: got "x", expected an IP address'),
        ({"t_ms": 0, "set": {"ip": "10.0.0.1", "user": "u", "max_connections": 1}}, "expected ip alone"),
        ({"t_ms": 0, "set": {"ip": "10.0.0.1", "producer_byte_rate": 1}}, "an entry for ip to set"),
    ],
)
def test_names_line_of_wrong_event_and_ignores_it(event: Any, expected: str) -> None:
    results, errors = simulate(CLIENT_500, produce(0, 100), event, "", produce(0, 100))
    assert [one["observed"] for one in results] == [10, 20]
    (error,) = errors
    assert error["line"] == 2
    assert expected in error["error"]


def test_time_only_goes_forward_and_amounts_are_finite() -> None:
    results, errors = simulate(CLIENT_500, produce(10, 2**63), produce(9, 1), produce(10, 2**63), produce(10, 1e300))
    assert [one["throttle_ms"] for one in results] == [2**31 - 1] * 2
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert errors[0] == {"line": 2, "error": "t_ms: got 9, but the clock is at 10 already, and never goes back"}
    assert "expected a number of at least 0 and at most 9223372036854775808" in errors[1]["error"]


def test_connections_answer_with_the_limit_that_refused_them() -> None:
    results, errors = simulate(
        "quota.window.num: 2\nquotas: [{ip: 10.0.0.1, connection_creation_rate: 20}, {user: u, max_connections: 2}]",
        *(connection(0) for _ in range(21)),
        connection(50),
        *(connection(2100 + 1000 * number, user="u") for number in range(3)),
        connection(6000, user="u", close=True),
        connection(6000, user="u"),
        connection(6000, user="v", close=True),
    )
    assert [one["error"] for one in errors] == ["close: no connection of this ip and user is open"]
    # I1: 21 in a window of 1 s: (21 - 20) / 20 * 1000 ms; after them 21 / 1.05 s = 20/s; at 2100 all is gone
    assert [one.get("accepted") for one in results[:22]] == [True] * 20 + [False, True]
    assert [one.get("reason") for one in results[22:]] == [None, None, "user_max_connections", None, None]
    assert (results[25]["closed"], results[25]["open"]["user"]) == (True, 1)
    refused = {"accepted": False, "throttle_ms": 50, "reason": "ip_connection_rate", "limit": 20, "observed": 21}
    counts = {"rate": {"ip": 20, "user": 0}, "open": {"ip": 20, "user": 20}}
    assert results[20] == connection(0, user="ANONYMOUS") | refused | counts
    assert results[22]["open"] == {"ip": 22, "user": 1}


def test_limits_of_connections_are_set_and_removed_beside_others() -> None:
    results, errors = simulate(
        CLIENT_500,
        {"t_ms": 0, "set": {"user": "u", "producer_byte_rate": 7, "max_connections": 1}},
        {"t_ms": 0, "set": {"user": "u", "max_connections": None, "connection_creation_rate": 3}},
        {"t_ms": 0, "set": {"ip": "::ffff:10.0.0.0/104", "max_connections": 0}},
        connection(0),
        {"t_ms": 0, "remove": {"ip": "10.0.0.0/8"}},
        connection(0),
        {"t_ms": 0, "remove": {"user": "u"}},
        {"t_ms": 0, "remove": {"user": "u"}},
    )
    assert errors == []
    assert [one["set"] for one in results if "set" in one] == [
        {"user": "u", "max_connections": 1, "mode": "enforce", "producer_byte_rate": 7},
        {"user": "u", "connection_creation_rate": 3, "mode": "enforce", "producer_byte_rate": 7},
        {"ip": "10.0.0.0/8", "max_connections": 0, "mode": "enforce"},
    ]
    assert [one["reason"] for one in results if "reason" in one] == ["ip_max_connections", None]
    assert [one["removed"] for one in results if "removed" in one] == [True, True, False]
