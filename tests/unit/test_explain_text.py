"""What an engineer on call reads: which client waits, why, until when, what to change. The whole page, word by word."""

import json
from collections import Counter
from typing import Any

import pytest

from proxy.app.admin import explain
from proxy.app.admin.app import _connection_json, _group_json
from proxy.app.admin.explain import Moment, Origin, addresses_of, explanation_json, identity_of_connections
from proxy.app.admin.explain_text import explanation_text, throttled_text
from proxy.app.admin.history import History
from proxy.app.cli.top import Look, chosen, rows
from proxy.core.telemetry.observer import ConnectionInfo, Counters
from quota.admin import Entity
from quota.connections import ConnectionEntry, ConnectionLimits, EntityType
from quota.entity import DEFAULT, Kind
from quota.fleet.core import Fleet
from quota.fleet.record import Seal
from quota.fleet.shares import Shares
from quota.ledger import Ledger
from quota.steps import whole
from quota.table import CandidateLimits, Entry, QuotaTable

TABLE = QuotaTable(
    [
        Entry(DEFAULT, None, producer_byte_rate=2e6, consumer_byte_rate=4_194_304.0),
        Entry("web", "etl", 10e6, None, 5.0, 5.0),
        Entry("web", None, consumer_byte_rate=500e3, mode="shadow"),
    ],
    connections=ConnectionLimits(
        [ConnectionEntry(EntityType.USER, DEFAULT, 10, 3), ConnectionEntry(EntityType.IP, DEFAULT, 20, None, "shadow")]
    ),
)
AT = Moment(now_ms=1500.0, wall_s=1_790_000_000.0)  # 2026-09-21T14:13:20Z


def connection(port: int, muted_ms: float = 0.0, waits: tuple[str | None, float] = (None, 0.0)) -> ConnectionInfo:
    peer, library = f"10.0.0.7:{port}", "librdkafka 2.8"
    return ConnectionInfo(peer, "broker 1", "web", ("etl",), library, 0, muted_ms, 1, 2, 0.5, "static", *waits)


PEERS = [connection(5000), connection(5001, muted_ms=900.0)]


def use(ledger: Ledger, user: str, client_id: str, kind: Kind, amount: float, api_key: int, at_ms: float) -> None:
    account = ledger.account(user, client_id)
    delay_ms = ledger.charge(account, kind, amount, at_ms)
    if delay_ms:
        ledger.note_throttle(account, kind, delay_ms, at_ms=at_ms, api_key=api_key, amount=amount)


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(TABLE, smooth=False)
    use(made, "web", "etl", Kind.PRODUCE, 150e6, 0, 1000)
    use(made, "web", "etl", Kind.FETCH, 60e6, 1, 1000)
    use(made, "web", "etl", Kind.REQUEST, 700, 3, 1000)
    use(made, "web", "etl", Kind.MUTATION, 120, 19, 1400)
    use(made, "bob", "\x1b[2J", Kind.PRODUCE, 80e6, 0, 1300)
    for _ in range(4):
        made.connections.admit("10.0.0.7", "web", 1000)
    return made


def throttled_json(ledger: Ledger, origin: Origin | None = None, *, every: bool = False) -> Any:
    """The whole answer of /throttled at once, as the admin port puts it together."""
    groups = [group for group in ledger.groups() if every or group.throttled_until > AT.now_ms]
    rows = [explain.throttled_row(group, ledger, AT, origin) for group in groups]
    rows.sort(key=lambda row: (row["now"]["muted_ms"], row["now"]["wait_ms"]), reverse=True)
    return {"throttled": rows} | explain.throttled_json(ledger, AT)


def about(
    ledger: Ledger, client_id: str = "etl", *, peers: list[ConnectionInfo] = PEERS, at: Moment = AT, **more: Any
) -> Any:
    identity = identity_of_connections(peers, "web", client_id, ("web", "static"))
    addresses = addresses_of(identity["peers"])
    return explanation_json(ledger, "web", client_id, identity=identity, at=at, addresses=addresses, **more)


def explained(ledger: Ledger, client_id: str = "etl", **more: Any) -> str:
    return explanation_text(about(ledger, client_id, **more))


def origin(entity: Entity, key: str) -> str:
    return "in the overlay o.yaml" if key == "producer_byte_rate" else "in the file q.yaml"


def test_the_page_about_a_throttled_client(ledger: Ledger) -> None:
    # produce: 150 MB in 10 s are 15 MB/s: (15 - 10) / 10 * 10 s = 5 s from 1000 ms on; in 10.5 s 14.3 MB/s
    # request: 700 ms busy are 70 percent-seconds, 7 % in 10 s: 4 s, cut to one sample, 1 s
    # mutation: 55 - 120 = -65 tokens, 13 s; 100 ms later -64.5
    sections = explained(ledger, origin=origin).split("\n\n")
    assert sections[:2] == [
        """user web, client-id etl, at 2026-09-21T14:13:20.000Z
  user: web (identity.static)
  2 open connections, 1 muted (from 10.0.0.7:5000, 10.0.0.7:5001, librdkafka 2.8)""",
        """THROTTLED by mutation until 14:13:32Z (12.9 s left): 64.5 partitions overdrawn, refilled at 5/s
  to change it: controller_mutation_rate of {user: web, client-id: etl}, now 5/s, in the file q.yaml
THROTTLED by produce until 14:13:24Z (4.5 s left): 14.3 MB/s used of 10 MB/s, 143 %
  to change it: producer_byte_rate of {user: web, client-id: etl}, now 10 MB/s (10000000), in the overlay o.yaml
THROTTLED by request until 14:13:20Z (500 ms left): 6.67 % used of 5 %, 133 %
  to change it: request_percentage of {user: web, client-id: etl}, now 5 %, in the file q.yaml
shadow, not applied: fetch would have delayed 1 request, 110 s in all (consumer_byte_rate of {user: web})
CONNECTIONS of user web REFUSED, last at 14:13:19Z: 3 open, limit 3
  to change it: max_connections of {user: <default>}, now 3, in the file q.yaml""",
    ]
    _levels, kinds, connections, last = sections[2:]
    produce, fetch = kinds.split("\nfetch ")[0].splitlines(), kinds.split("\nfetch ")[1].splitlines()
    assert produce[0].startswith("produce   10 MB/s (10000000) from user+client-id; one counter for all connections of")
    assert [line.strip() for line in produce[1:]] == [
        "now 14.3 MB/s: 150 MB in the last 10.5 s, 143 % used",
        "muted until 14:13:24Z (4.5 s left); next request waits 4.5 s; free after 10.5 s without requests",
        "delayed 1 request so far, 5 s in all",
    ]
    assert fetch[3].strip() == "would have delayed 1 request, 110 s in all"
    assert "tokens left: -64.50 of 55, 217 % used" in kinds
    assert connections.startswith("user web: new connections at most 10/s (<default user>), now 0.4/s; at most 3 open")
    assert " ".join(last.splitlines()[4].split()) == (
        "14:13:19Z Metadata web etl 1 s request 700 ms of broker time raised the rate to 7 % (limit 5 %)"
    )


def test_the_page_about_all_clients(ledger: Ledger) -> None:
    head, rest = throttled_text(throttled_json(ledger, origin), "http://h:9404").split("\n", 1)
    assert head == "4 counters throttled at 2026-09-21T14:13:20.000Z, the longest first:"
    first, last, refused, more = rest.split("\n\n")
    # bob: 80 MB in 10 s are 8 MB/s: (8 - 2) / 2 * 10 s = 30 s
    assert [" ".join(line.split()) for line in first.splitlines()[:3]] == [
        "quota user client-id limit now muted until next request waits set by",
        "produce bob - 2 MB/s (2000000) 7.84 MB/s 14:13:49Z (29.8 s) 29.8 s {user: <default>}",
        "mutation web etl 5/s 64.5 overdrawn 14:13:32Z (12.9 s) 12.9 s {user: web, client-id: etl}",
    ]
    places = ["in the file q.yaml", "in the overlay o.yaml"]
    assert first.splitlines()[5:] == [f"  limits are set {place}" for place in places]
    assert " ".join(last.splitlines()[3].split()) == (
        '14:13:19Z Produce bob "\\x1b[2J" 30 s produce 80 MB raised the rate to 8 MB/s (limit 2 MB/s)'
    )
    assert " ".join(refused.splitlines()[2].split()) == "14:13:19Z user_max_connections web 1 3 open, limit 3"
    assert more == "for one client: kquota explain --admin http://h:9404 --user U --client-id C"
    assert throttled_text(throttled_json(Ledger(TABLE)), "http://h:9404").startswith("no client is throttled at")


def test_shows_client_near_its_limit_and_the_brokers_throttling() -> None:
    ledger = Ledger(TABLE, smooth=False)
    use(ledger, "web", "etl", Kind.PRODUCE, 99e6, 0, 1500)
    ledger.note_broker_throttle(ledger.account("web", "etl"), 2500)
    page = explained(ledger)
    near = "near its limit: produce, 9.9 MB/s used of 10 MB/s, 99 % (producer_byte_rate of {user: web, client-id: etl})"
    assert near in page
    assert "the broker's own quotas delayed this client 1 times, 2.5 s in all" in page


def test_shows_effect_of_a_candidate_and_shared_overflow_counter() -> None:
    entry = Entry(client_id=DEFAULT, producer_byte_rate=1e6, candidate=CandidateLimits(producer_byte_rate=500e3))
    ledger = Ledger(QuotaTable([entry]), smooth=False, max_clients=1)
    assert "no traffic yet" in explained(ledger)
    use(ledger, "web", "etl", Kind.PRODUCE, 6e6, 0, 1500)  # 600 kB/s: (600 - 500) / 500 * 10 s = 2 s
    assert "candidate 500 kB/s (500000): 120 % used, would have delayed 1 request, 2 s in all" in explained(ledger)
    who = {"source": "static", "given": "web", "given_source": "static", "logins": [], "given_by": None}
    on_paper = explanation_text(explanation_json(ledger, "web", "etl", identity=who, at=None, addresses=[]))
    assert "candidate 500 kB/s (500000): measured, never applied" in on_paper
    use(ledger, "web", "late", Kind.PRODUCE, 20_000, 0, 1500)
    assert "overflow counter, shared by new clients of this entry" in explained(ledger, "late")


def test_names_full_cap_before_it_refuses() -> None:
    ledger = Ledger(TABLE, smooth=False)
    for _ in range(3):
        ledger.connections.admit("10.0.0.7", "web", 1000)
    full = "the next connection of user web will be refused: 3 of 3 open"
    assert full in explained(ledger).split("\n\n")[1]
    ledger.connections.admit("10.0.0.7", "web", AT.now_ms - 300_001)
    top, rest = explained(ledger).split("levels from most", 1)
    assert full in top
    assert "1 connection refused by user_max_connections, last at 14:08:19Z" in rest


@pytest.mark.parametrize("entity", ["10.0.0.0/8", "<default>"])
def test_a_rate_that_refuses_connections_names_its_limit(entity: str) -> None:
    name = DEFAULT if entity == "<default>" else entity
    limits = ConnectionLimits([ConnectionEntry(EntityType.IP, name, 2)])
    ledger = Ledger(QuotaTable(connections=limits), smooth=False, num_samples=2)
    for _ in range(3):
        ledger.connections.admit("10.0.0.7", "web", 1500)
    page = explained(ledger)
    assert (
        "CONNECTIONS of ip 10.0.0.7 REFUSED, last at 14:13:20Z: 3/s, limit 2/s\n"
        f"  to change it: connection_creation_rate of {{ip: {entity}}}, now 2\n"
    ) in page
    assert "now 2.0/s, the next is closed after 500 ms" in page


def test_short_delays_are_shown_with_their_history() -> None:
    """A paced client between two delays, at less than its share of a fleet's limit."""
    ledger = Ledger(QuotaTable([Entry(None, "etl", 2e6, scope="fleet")]))
    shares = Shares(ledger, Fleet(Seal([b"key"], "topic", "f"), 1, "one", 0.0), 0.0)
    account, history = ledger.account("web", "etl"), History(ledger, Counters())
    for now_ms in range(0, 30_001, 5000):
        ledger.charge(account, Kind.PRODUCE, 250_000 if now_ms == 0 else 50_000, now_ms)
        whole(shares.steps(now_ms))
        if now_ms:
            ledger.note_throttle(account, Kind.PRODUCE, 40)
        for _ in history.look(now_ms):
            pass
    page = explained(ledger, at=Moment(31_000.0, AT.wall_s + 29.5, history))
    assert page.split("\n\n")[1].splitlines()[:2] == [
        "THROTTLED by produce since 14:13:23Z, 50 % of the last minute: "
        "10 kB/s used of 2 MB/s (100.0 % of the fleet's 2 MB/s), 0 %",
        "  paced: even rate after a violation, possibly below the limit",
    ]


def test_shows_share_of_a_fleet_connection_rate() -> None:
    limits = ConnectionLimits([ConnectionEntry(EntityType.IP, "10.0.0.7", 2, scope="fleet")])
    ledger = Ledger(QuotaTable(connections=limits))
    shares = Shares(ledger, Fleet(Seal([b"key"], "topic", "f"), 1, "one", 0.0), 0.0)
    explained(ledger)
    assert shares.count == 0  # who only asks adds nothing
    ledger.connections.admit("10.0.0.7", "web", 100.0)
    whole(shares.steps(1000.0))
    page = explained(ledger)
    assert "ip 10.0.0.7: new connections at most 2/s of the whole fleet (ip), now " in page
    # Alone and just started, it has the floor, 1 % of 2/s; one connection per window of 10 s is always allowed.
    assert "share here 1.0 % = 0.1/s (no recent usage here: the initial share); 1 instance of 1 uses it, " in page


@pytest.mark.parametrize("limit", [5e-324, 1.0, 1.7e308])
@pytest.mark.parametrize("amount", [0, 2**31])
@pytest.mark.parametrize("smooth", [True, False])
def test_explains_extreme_limits(limit: float, amount: int, smooth: bool) -> None:
    candidate = CandidateLimits(limit, limit, limit, limit)
    ledger = Ledger(QuotaTable([Entry(None, DEFAULT, limit, limit, limit, limit, candidate=candidate)]), smooth=smooth)
    for kind in Kind:
        use(ledger, "web", "etl", kind, amount, 0, 1000)
    one, all_clients = about(ledger), throttled_json(ledger, every=True)
    for answer in (one, all_clients):
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert explanation_text(one)
    assert throttled_text(all_clients, "http://h:9404")
    assert Moment(0.0, 0.0).iso(1e18) == "9999-12-31T23:59:59.999Z"


LATER = Moment(now_ms=4000.0, wall_s=1_790_000_000.0)
WAITS = ("produce", 3000.0)
WAITING = [connection(1, muted_ms=900.0), connection(2, waits=WAITS), connection(3, waits=WAITS), connection(4)]


@pytest.fixture
def in_debt() -> Ledger:
    """web/etl used 8.4 s' worth over its window at 0, of which 1 s was announced; two connections wait at 4 s."""
    limits = Entry(client_id=DEFAULT, producer_byte_rate=1000, request_percentage=10, controller_mutation_rate=5)
    made = Ledger(QuotaTable([limits]), max_throttle_ms=1000)
    account = made.account("web", "etl")
    delay_ms = made.charge(account, Kind.PRODUCE, 18_400, 0)
    made.note_throttle(account, Kind.PRODUCE, delay_ms, at_ms=0, api_key=0, amount=18_400)
    made.note_throttle(account, Kind.PRODUCE, 4200, at_ms=3000, api_key=0, amount=100, queued=True)
    for each in WAITING[1:3]:
        assert made.queue(account, Kind.PRODUCE, each, 2000, 4000, whole=True) > 0
    return made


def test_explain_shows_waiting_requests(in_debt: Ledger) -> None:
    text = explained(in_debt, peers=WAITING, at=LATER)
    assert "4 open connections, 1 muted, 2 waiting for the group's debt" in text
    # 8.4 s less 4 s; 0.2 s may be owed when a request passes; the two that wait cost 2 s each
    assert text.count("2 connections wait; the next passes in 4.2 s; the group owes 4.4 s") == 2
    assert "THROTTLED by produce (next request waits 8.2 s): " in text
    assert "owes 4.4 s, which outlasts the latest delay; the next requests wait for it" in text
    assert "delayed 2 requests so far, 5.2 s in all; 1 waited 4.2 s before they were forwarded" in text
    assert "waited 4.2 s before it was forwarded: the group was in debt" in text


def test_top_and_quotas_show_waiting_connections(in_debt: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    (group,) = (_group_json(in_debt, one, LATER) for one in in_debt.groups(Kind.PRODUCE))
    assert (group["waiting"], group["totals"]["held"], group["totals"]["held_ms"]) == (2, 1, 4200)
    (row,) = rows([group], {}, 0.0)
    assert row.state == "owes 4.4 s, 2 waiting"
    others = group | {"owed_ms": 0, "throttled_for_ms": 0, "client_id": "other"}
    waits, calm = rows([others, others | {"waiting": 0}], {}, 0.0)
    assert (waits.state, waits.throttled, calm.throttled) == ("2 waiting", True, False)
    assert chosen([calm, waits], "", "throttled") == [waits, calm]
    muted = others | {"throttled_for_ms": 5, "waiting": 0}
    states = Counter(_connection_json(one)["state"] for one in WAITING)
    answers = {"/quotas": {"groups": [group, muted], "total": 2}, "/connections": {"states": states, "total": 4}}
    monkeypatch.setattr("proxy.app.cli.top.get_json", lambda admin, path, query: answers[path])
    head, shown = Look("http://h", "etl", "use").page(20, 200).renderables  # type: ignore[union-attr]
    assert "connections 4 (1 muted, 2 waiting)   counters 2 (2 throttled)" in str(head), "whatever the filter shows"
    assert shown.row_count == 1
    _, nothing = Look("http://h", "zzz", "use").page(20, 200).renderables  # type: ignore[union-attr]
    assert "kind contains 'zzz'" in str(nothing)
