"""The attacks: each has a limit of its own, so that many can run at the same time against one broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Attack = Literal["produce", "fetch", "share", "requests", "mutations"]
Door = Literal["plain", "tls", "sasl", "certificate", "kerberos", "ipv6"]
"""How clients come in: `certificate` is TLS with client certificates, `ipv6` a listener for both families."""
Mode = Literal["persistent", "reconnect", "impatient", "reset", "half-close"]
"""What an attacker does with a connection: keep it; a new one per request, with the answer awaited; the same without
awaiting it; the same, ended by a reset; the same with its sending side closed before the answer is read."""
Counter = Literal["client-id", "user", "user+client-id", "nothing"]

Flavour = Literal[
    "", "compressed", "idempotent", "transactional", "names", "session", "small", "validate", "ids", "old",
    "partitions", "partitions-old", "delete", "delete-old", "metadata", "metadata-old",
]  # fmt: skip
"""`names`: a client-id per request. Of mutations what is asked for, and whether in a version that is never refused."""
Member = Literal["", "joins", "beats", "consumer", "member", "leaves"]
"""What an attacker sends before each request to be taken for a group's member: a JoinGroup with a session of 1 ms;
ten heartbeats; a ConsumerGroupHeartbeat; the heartbeat of a member that has joined; JoinGroup, and LeaveGroup behind
the request."""

SOURCES = tuple(f"127.0.{number}.1" for number in range(1, 9))
LOOPBACK = {"127": "127.0.0.1", "::1": "::1"}
KERBEROS_USER = "kerberos"
"""The one client that the Kerberos server knows, and whom the sidecar takes all clients of GSSAPI for."""
BOUND = 1.05
STRETCHES = {24.0: BOUND, 10.0: 1.12}
"""Bounds over any so many seconds after the first window, besides one request."""


@dataclass(frozen=True)
class Row:
    """One attack, and what its group may do."""

    name: str
    title: str
    batch: str
    """Rows of one batch run at the same time."""
    attack: Attack = "produce"
    limit: float = 100_000
    """Bytes per second; of requests percent of one thread; of mutations partitions per second."""
    size: int = 100_000
    """Of a request (produce) or of an answer (fetch), in bytes; of mutations topics in a request."""
    connections: int = 1
    mode: Mode = "persistent"
    acks: int = 1
    depth: int = 1
    """Requests on their way on one connection."""
    flavour: Flavour = ""
    version: int = 11
    """Of Fetch."""
    door: Door = "plain"
    mechanism: str = "PLAIN"
    relogin: Literal["", "again", "other", "renew", "piped"] = ""
    """Between two requests on one connection: a login of the same user, of another one, after the token was renewed; or
    a login behind all requests that are offered until the token expires, without waiting for their answers."""
    token_s: float = 1800.0
    sources: int = 1
    """Addresses that connections come from."""
    offer: float = 10.0
    """The most that is tried, in limits. More would only load the machine."""
    member: Member = ""
    counter: Counter = "client-id"
    """What its entry names."""
    bounded: bool = True
    """False: Kafka's definition lets this one escape; the figure is shown and not judged."""
    one_at_least: bool = True
    """Something has to pass in the counted time, or the row shows nothing (but long debts may fill all of it)."""

    @property
    def in_stretches(self) -> bool:
        """Also judged by `STRETCHES`."""
        return self.member != ""

    @property
    def user(self) -> str:
        """Of the row."""
        match self.door:
            case "sasl":
                return f"u-{self.name}"
            case "certificate":
                return f"CN=u-{self.name}"
            case "kerberos":
                return KERBEROS_USER
        return ""

    @property
    def at_a_broker(self) -> bool:
        """Also tried against the broker's own quotas. 200 connections that are opened again for each request
        are not: a broker lets all of them pass, and its open files end within the time."""
        return self.connections < 200 or self.mode == "persistent"

    @property
    def answered(self) -> bool:
        """What counts are the broker's answers: topics that exist do not show it."""
        return self.flavour in ("ids", "partitions", "partitions-old", "delete", "delete-old")

    def source(self, index: int) -> str | None:
        """The address that the connection of this number comes from; None: any."""
        if self.sources == 1:
            return None
        if self.door == "ipv6" and index % 2:
            return "::1"
        return SOURCES[index % self.sources]

    def quotas(self, prefix: str) -> list[dict[str, str | float]]:
        """The entries of its sidecar's configuration. `prefix`: of the client-id."""
        kind = {
            "produce": "producer_byte_rate",
            "fetch": "consumer_byte_rate",
            "share": "consumer_byte_rate",
            "requests": "request_percentage",
            "mutations": "controller_mutation_rate",
        }[self.attack]
        value = self.limit if self.attack in ("requests", "mutations") else int(self.limit)
        entity: dict[str, str | float] = {}
        if self.counter in ("user", "user+client-id"):
            entity["user"] = self.user
        if self.flavour == "names":
            if self.counter != "user":
                entity["client-id"] = "<default>"
        elif self.counter in ("client-id", "user+client-id"):
            entity["client-id"] = prefix + self.name
        return [] if self.counter == "nothing" else [{**entity, kind: value}]


def _produce() -> Iterator[Row]:
    kb, mb = 1000, 1_000_000
    for connections in (1, 4, 30, 200):
        # a window's worth at least for each: the first requests alone must not be all that counts
        limit = 100 * kb if connections < 200 else 200 * kb
        size = 20 * kb if connections == 200 else 100 * kb
        ways: tuple[tuple[Mode, str], ...] = (
            ("persistent", "persistent"),
            ("reconnect", "a new connection per request"),
            ("impatient", "a new connection per request, closed before the answer"),
            ("half-close", "a new connection per request, half closed"),
        )
        for mode, words in ways:
            yield Row(
                f"p{connections}-{mode}",
                f"{connections} × {size // kb} kB, {words}",
                "produce",
                limit=limit,
                size=size,
                connections=connections,
                mode=mode,
                one_at_least=connections < 200,
            )
    yield Row("p4-reset", "4 × 100 kB, a new connection per request, reset", "produce", connections=4, mode="reset")
    for acks in (0, -1):
        name = {0: "0", -1: "all"}[acks]
        for mode in ("persistent", "reconnect"):
            words = {"persistent": "persistent", "reconnect": "a new connection per request"}[mode]
            yield Row(
                f"p4-acks-{name}-{mode}",
                f"4 × 100 kB, acks={name}, {words}",
                "produce",
                acks=acks,
                connections=4,
                mode=mode,  # type: ignore[arg-type]
            )
    yield Row("p1-1kb", "1 × 1 kB, persistent", "produce", limit=10 * kb, size=kb)
    yield Row("p4-1kb", "4 × 1 kB, a new connection per request", "produce", limit=10 * kb, size=kb, connections=4,
              mode="reconnect", offer=5)  # fmt: skip
    yield Row("p1-pipelined", "1 × 20 kB, 10 on their way", "produce", size=20 * kb, depth=10)
    yield Row("p4-pipelined", "4 × 20 kB, 10 on their way, a new connection per ten", "produce", size=20 * kb, depth=10,
              connections=4, mode="reconnect")  # fmt: skip
    for flavour in ("idempotent", "transactional", "compressed"):
        yield Row(f"p1-{flavour}", f"1 × 50 kB, {flavour}, persistent", "produce", size=50 * kb, acks=-1,
                  flavour=flavour)  # type: ignore[arg-type]  # fmt: skip
        yield Row(f"p4-{flavour}", f"4 × 50 kB, {flavour}, a new connection per request", "produce", size=50 * kb,
                  acks=-1, flavour=flavour, connections=4, mode="reconnect")  # type: ignore[arg-type]  # fmt: skip
    yield Row("p8-addresses", "8 × 100 kB from 8 addresses, a new connection per request", "produce", connections=8,
              mode="reconnect", sources=8)  # fmt: skip
    yield Row("p1-tls", "1 × 100 kB, TLS, persistent", "produce", door="tls")
    yield Row("p4-tls", "4 × 100 kB, TLS, a new connection per request", "produce", door="tls", connections=4,
              mode="reconnect")  # fmt: skip
    yield Row("p4-tls-impatient", "4 × 100 kB, TLS, closed before the answer", "produce", door="tls", connections=4,
              mode="impatient")  # fmt: skip
    yield Row("p1-certificate", "1 × 100 kB, TLS with a client certificate, persistent", "produce", door="certificate",
              counter="user")  # fmt: skip
    yield Row("p4-certificate", "4 × 100 kB, TLS with a client certificate, a new connection per request", "produce",
              door="certificate", counter="user", connections=4, mode="reconnect")  # fmt: skip
    yield Row("p4-ipv6", "4 × 100 kB from ::1, a new connection per request", "produce", door="ipv6", connections=4,
              mode="reconnect")  # fmt: skip
    yield Row("p4-ipv6-impatient", "4 × 100 kB from ::1, closed before the answer", "produce", door="ipv6",
              connections=4, mode="impatient")  # fmt: skip
    yield Row("p8-ipv6-addresses", "8 × 100 kB from ::1 and 4 addresses of IPv4, a new connection per request",
              "produce", door="ipv6", connections=8, mode="reconnect", sources=8)  # fmt: skip
    for mode in ("persistent", "reconnect"):
        words = {"persistent": "persistent", "reconnect": "a new connection per request"}[mode]
        # 20 MB at 0.5 MB/s are 40 s, more than `max_mute`; at 2 MB/s they are 10 s.
        yield Row(f"b1-20mb-{mode}", f"1 × 20 MB at 2 MB/s, {words}", "large", limit=2 * mb, size=20 * mb,
                  mode=mode, offer=5)  # type: ignore[arg-type]  # fmt: skip
        yield Row(f"b1-20mb-40s-{mode}", f"1 × 20 MB at 0.5 MB/s (40 s each), {words}", "large", limit=mb // 2,
                  size=20 * mb, mode=mode, offer=10)  # type: ignore[arg-type]  # fmt: skip
    yield Row("b4-5mb", "4 × 5 MB at 0.5 MB/s, persistent", "large", limit=mb // 2, size=5 * mb, connections=4)
    yield Row("b4-5mb-acks-0", "4 × 5 MB at 0.5 MB/s, acks=0, a new connection per request", "large", limit=mb // 2,
              size=5 * mb, connections=4, acks=0, mode="reconnect", offer=5)  # fmt: skip
    yield Row("b1-100mb", "1 × 100 MB at 5 MB/s (20 s each), persistent", "large", limit=5 * mb, size=100 * mb, offer=3)
    yield Row("b2-100mb-reconnect", "2 × 100 MB at 5 MB/s, a new connection per request", "large", limit=5 * mb,
              size=100 * mb, connections=2, mode="reconnect", offer=3)  # fmt: skip


def _issue() -> Iterator[Row]:
    """Those that were measured first, with their own numbers; more is offered than to the others."""
    kb, mb = 1000, 1_000_000
    yield Row("i-1mb", "1 MB at 1 MB/s, a new connection per request", "first", limit=mb, size=mb, mode="reconnect",
              offer=20)  # fmt: skip
    yield Row("i-1mb-acks-0", "the same with acks=0", "first", limit=mb, size=mb, mode="reconnect", acks=0, offer=20)
    yield Row("i-20mb", "20 MB at 1 MB/s, a new connection per request", "first", limit=mb, size=20 * mb,
              mode="reconnect", offer=20)  # fmt: skip
    for acks in (1, 0):
        yield Row(f"i-4-acks-{acks}", f"4 × 100 kB at 200 kB/s, acks={acks}, a new connection per request", "first",
                  limit=200 * kb, connections=4, acks=acks, mode="reconnect", offer=20)  # fmt: skip
    yield Row("i-20mb-200s", "20 MB at 0.1 MB/s (200 s each), persistent", "first", size=20 * mb, offer=100,
              one_at_least=False)  # fmt: skip
    yield Row("i-4-5mb", "4 × 5 MB at 0.1 MB/s, persistent", "first", size=5 * mb, connections=4, offer=100,
              one_at_least=False)  # fmt: skip
    yield Row("i-200", "200 × 100 kB at 0.1 MB/s, persistent", "first", connections=200, offer=100, one_at_least=False)
    yield Row("i-oauth-5s", "1 × 100 kB at 0.1 MB/s, OAUTHBEARER with tokens of 5 s, logging in again and again",
              "first", door="sasl", counter="user", mechanism="OAUTHBEARER", token_s=5.0, relogin="piped",
              offer=30)  # fmt: skip


def _sasl() -> Iterator[Row]:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        short = mechanism.lower().replace("scram-sha-", "scram")
        yield Row(f"s1-{short}-again", f"1 × 50 kB, {mechanism}, a login between requests", "sasl", size=50_000,
                  door="sasl", counter="user", mechanism=mechanism, relogin="again")  # fmt: skip
        yield Row(f"s4-{short}", f"4 × 50 kB, {mechanism}, a new connection and login per request", "sasl", size=50_000,
                  connections=4, door="sasl", counter="user", mechanism=mechanism, mode="reconnect")  # fmt: skip
    # Kerberos' clients have one user here, so these two have a client-id each.
    yield Row("s1-gssapi-again", "1 × 50 kB, GSSAPI, a login between requests", "sasl", size=50_000, door="kerberos",
              counter="user+client-id", mechanism="GSSAPI", relogin="again")  # fmt: skip
    yield Row("s4-gssapi", "4 × 50 kB, GSSAPI, a new connection and login per request", "sasl", size=50_000,
              connections=4, door="kerberos", counter="user+client-id", mechanism="GSSAPI",
              mode="reconnect")  # fmt: skip
    yield Row("s4-oauth-5s", "4 × 50 kB, OAUTHBEARER with tokens of 5 s, a login between requests", "sasl", size=50_000,
              connections=4, door="sasl", counter="user", mechanism="OAUTHBEARER", token_s=5.0,
              relogin="again")  # fmt: skip
    yield Row("s1-oauth-5s-piped", "1 × 50 kB, OAUTHBEARER with tokens of 5 s, the next login sent behind the requests",
              "sasl", size=50_000, door="sasl", counter="user", mechanism="OAUTHBEARER", token_s=5.0,
              relogin="piped")  # fmt: skip
    yield Row("s4-other", "4 × 50 kB, PLAIN, another user's login after each request", "sasl", size=50_000,
              connections=4, door="sasl", counter="user", relogin="other")  # fmt: skip
    yield Row("s2-token", "2 × 50 kB, delegation tokens, renewed and logged in with again", "sasl", size=50_000,
              connections=2, door="sasl", counter="user", mechanism="SCRAM-SHA-256", relogin="renew")  # fmt: skip
    yield Row("s4-impatient", "4 × 50 kB, PLAIN, closed before the answer", "sasl", size=50_000, connections=4,
              door="sasl", counter="user", mode="impatient")  # fmt: skip
    yield Row("n-client-ids", "a client-id per request; a `<default>` client-id entry alone", "names", flavour="names",
              size=50_000, connections=2, mode="reconnect", bounded=False)  # fmt: skip
    yield Row("n-user", "a client-id per request; a user entry", "names", flavour="names", size=50_000, connections=2,
              mode="reconnect", door="sasl", counter="user")  # fmt: skip
    yield Row("n-user-client-ids", "a client-id per request; a user + `<default>` client-id entry", "names",
              flavour="names", size=50_000, connections=2, mode="reconnect", door="sasl", counter="user+client-id",
              bounded=False)  # fmt: skip


def _fetch() -> Iterator[Row]:
    for version in range(4, 18):
        yield Row(f"f1-v{version}", f"Fetch {version}, 1 connection", "fetch", "fetch", version=version)
    for mode, words in (
        ("impatient", "a new connection per request, closed before the answer"),
        ("half-close", "a new connection per request, half closed"),
    ):
        for version in (4, 17):
            yield Row(f"f30-v{version}-{mode}", f"Fetch {version}, 30 connections, {words}", "fetch", "fetch",
                      version=version, connections=30, mode=mode)  # type: ignore[arg-type]  # fmt: skip
    for version in range(4, 18):
        yield Row(f"f30-v{version}-persistent", f"Fetch {version}, 30 connections, persistent", "fetch30", "fetch",
                  version=version, connections=30)  # fmt: skip
        yield Row(f"f30-v{version}-reconnect", f"Fetch {version}, 30 connections, a new one per request", "fetch30",
                  "fetch", version=version, connections=30, mode="reconnect")  # fmt: skip
    yield Row("f1-absurd", "Fetch 4, asking for 2 GB, a new connection per request", "fetch", "fetch", version=4,
              size=2_000_000_000, connections=4, mode="reconnect")  # fmt: skip
    for version in (7, 12, 17):
        yield Row(f"f1-session-v{version}", f"Fetch {version} with a session", "fetch", "fetch", version=version,
                  flavour="session")  # fmt: skip
        yield Row(f"f4-session-v{version}", f"Fetch {version}, a new session and connection per request", "fetch",
                  "fetch", version=version, flavour="session", connections=4, mode="reconnect")  # fmt: skip
    yield Row("h1-share", "ShareFetch, persistent", "fetch", "share", size=50_000)
    yield Row("h4-share", "ShareFetch, 4 × a new connection per request", "fetch", "share", size=50_000, connections=4,
              mode="reconnect")  # fmt: skip
    yield Row("h4-share-impatient", "ShareFetch, 4 × a new connection per request, closed before the answer", "fetch",
              "share", size=50_000, connections=4, mode="impatient")  # fmt: skip


def _members() -> Iterator[Row]:
    """On a connection with a group's heartbeats mutes are short, so what a request costs must be longer."""
    words: dict[Member, str] = {
        "joins": "JoinGroup with a session of 1 ms before each",
        "beats": "ten Heartbeats before each",
        "consumer": "ConsumerGroupHeartbeat before each",
        "member": "of group members",
        "leaves": "between JoinGroup and LeaveGroup",
    }
    ways: tuple[tuple[int, Mode, str], ...] = (
        (1, "persistent", "persistent"),
        (30, "persistent", "persistent"),
        (30, "reconnect", "a new connection per request"),
    )
    kb = 1000
    for member, said in words.items():
        for connections, mode, how in ways:
            name = f"{connections}-{member}" + ("-reconnect" if mode == "reconnect" else "")
            size = 400 * kb if connections == 1 else 100 * kb
            yield Row(f"g{name}", f"{connections} × {size // kb} kB, {said}, {how}", "members", size=size,
                      connections=connections, mode=mode, member=member)  # fmt: skip
            version = {"persistent": 4 if connections == 1 else 12, "reconnect": 17}[mode]
            yield Row(f"gf{name}", f"Fetch {version}, {connections} × {said}, {how}", "members", "fetch",
                      size=10 * size, version=version, connections=connections, mode=mode,
                      member=member)  # fmt: skip
    yield Row("g4-joins-pipelined", f"4 × 100 kB, 10 in flight, {words['joins']}", "members", connections=4, depth=10,
              member="joins")  # fmt: skip
    yield Row("g30-joins-acks-0", f"30 × 100 kB, acks=0, {words['joins']}", "members", connections=30, acks=0,
              member="joins")  # fmt: skip
    yield Row("g30-joins-impatient", f"30 × 100 kB, {words['joins']}, closed before the answer", "members",
              connections=30, mode="impatient", member="joins")  # fmt: skip
    yield Row("g4-joins-idempotent", f"4 × 100 kB, idempotent, {words['joins']}", "members", connections=4, acks=-1,
              flavour="idempotent", member="joins")  # fmt: skip
    yield Row("g4-joins-5mb", f"4 × 5 MB at 0.5 MB/s, {words['joins']}", "members", limit=500 * kb, size=5000 * kb,
              connections=4, member="joins")  # fmt: skip
    yield Row("gf1-joins-session", f"Fetch 12 with a session, {words['joins']}", "members", "fetch", size=4000 * kb,
              version=12, flavour="session", member="joins")  # fmt: skip
    yield Row("gh4-joins-share", f"ShareFetch, 4 connections, {words['joins']}", "members", "share", size=50 * kb,
              connections=4, member="joins")  # fmt: skip


def _requests() -> Iterator[Row]:
    # A delay of the request quota is at most one sample (1 s), so that a request of more than limit * 1 s is never paid
    # for by Kafka's definition. These take some milliseconds, and 50 ms/s are allowed.
    ways: tuple[tuple[int, Mode], ...] = ((1, "persistent"), (30, "persistent"), (4, "reconnect"), (4, "impatient"))
    for connections, mode in ways:
        words = {
            "persistent": "persistent",
            "reconnect": "a new connection per request",
            "impatient": "a new connection per request, closed before the answer",
        }[mode]
        yield Row(f"r{connections}-{mode}", f"request time: {connections} × DescribeConfigs, {words}", "requests",
                  "requests", limit=5.0, size=1, connections=connections, mode=mode, offer=60)  # fmt: skip
    yield Row("r4-small", "request time: 4 × Metadata of no topics, persistent", "requests", "requests", limit=2.0,
              size=1, connections=4, flavour="small", offer=500)  # fmt: skip
    yield Row("r4-validate", "request time: 4 × CreateTopics with validate_only, a new connection per request",
              "requests", "requests", limit=5.0, size=1, connections=4, mode="reconnect", flavour="validate",
              offer=60)  # fmt: skip


def _mutations() -> Iterator[Row]:
    for connections, mode in ((1, "persistent"), (4, "reconnect")):
        words = {"persistent": "persistent", "reconnect": "a new connection per request"}[mode]
        yield Row(f"m{connections}-strict", f"CreateTopics 7: {connections} × one topic, {words}", "mutations",
                  "mutations", limit=1.0, size=1, connections=connections, mode=mode)  # fmt: skip
        yield Row(f"m{connections}-old", f"CreateTopics 4 (permissive): {connections} × one topic, {words}",
                  "mutations", "mutations", limit=1.0, size=1, connections=connections, mode=mode,
                  flavour="old")  # fmt: skip
    yield Row("m4-impatient", "CreateTopics 4: 4 × one topic, closed before the answer", "mutations", "mutations",
              limit=1.0, size=1, connections=4, mode="impatient", flavour="old")  # fmt: skip
    yield Row("m2-validate", "CreateTopics 7 with validate_only before each, 2 connections", "mutations", "mutations",
              limit=1.0, size=1, connections=2, flavour="validate")  # fmt: skip
    yield Row("m2-ids", "CreateTopics 7 and DeleteTopics 6 by topic id, 2 × a new connection per request", "mutations",
              "mutations", limit=2.0, size=1, connections=2, mode="reconnect", flavour="ids")  # fmt: skip
    yield Row("m1-twenty", "CreateTopics 4 (permissive): 20 topics in each request, persistent", "mutations",
              "mutations", limit=1.0, size=20, flavour="old")  # fmt: skip
    asked: tuple[tuple[str, Flavour], ...] = (
        ("CreatePartitions 3", "partitions"),
        ("CreatePartitions 1 (permissive)", "partitions-old"),
        ("DeleteTopics 5", "delete"),
        ("DeleteTopics 4 (permissive)", "delete-old"),
        ("Metadata 12 of a missing topic", "metadata"),
        ("Metadata 1 of a missing topic", "metadata-old"),
    )
    for words, flavour in asked:
        yield Row(f"m4-{flavour}", f"{words}: 4 × one partition, a new connection per request", "mutations",
                  "mutations", limit=1.0, size=1, connections=4, mode="reconnect", flavour=flavour)  # fmt: skip


ROWS: tuple[Row, ...] = (*_produce(), *_sasl(), *_fetch(), *_members(), *_requests(), *_mutations())
FIRST: tuple[Row, ...] = tuple(_issue())
"""With the numbers of those that were found first; their offers load the machine, so they are asked for by name."""
BATCHES: tuple[tuple[str, ...], ...] = (
    ("produce", "names"),
    ("sasl", "large", "mutations"),
    ("fetch", "requests"),
    ("fetch30", "first"),
    ("members",),
)
"""What runs at the same time."""


def chosen(names: list[str]) -> list[Row]:
    """Rows by name or by batch; without names all of them.

    Raises:
        ValueError: there is no such row.
    """
    every = (*ROWS, *FIRST)
    if not names:
        return list(every)
    found = [row for row in every if row.name in names or row.batch in names]
    known = {row.name for row in every} | {row.batch for row in every}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"no row and no batch {', '.join(unknown)}; `--list` shows what there is")
    return found
