"""What is fuzzed, and what must hold whatever the bytes are."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from kio.static.constants import EntityType

from config.load import load_bytes, warnings_of
from config.overlay import parse_overlay
from config.problems import MAX_DEPTH, ConfigError, Problem
from config.source import parse
from config.table import to_table
from proxy.core.errors import SessionError
from proxy.core.interceptors.intercept import (
    AdminRequest,
    Answer,
    Ask,
    Forward,
    Interceptors,
    Outcome,
    Wait,
    Work,
)
from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.interceptors.quota_admin import QuotaAdmin, read_described
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.session.sizes import SizeLimits
from proxy.core.telemetry.observer import Counters
from proxy.core.wire import apis, responses, schema, throttle
from proxy.core.wire.apis import ALTER_CLIENT_QUOTAS, API_VERSIONS, DESCRIBE_CLIENT_QUOTAS, FETCH, PRODUCE
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.proxy_header import ProxyHeader, ProxyHeaderError
from proxy.core.wire.walk import Short
from quota import compiled
from quota.admin import AdminError, Changes
from quota.entity import DEFAULT
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.fuzz import seeds as recorded
from tests.support.pair_script import BROKER, CLIENT, PASS, STEP, Pure, play, step
from tests.support.session_tools import Authority, Driven, encode
from tests.support.wire_tools import kio_class, kio_versions, sample

MAX_FRAME_BYTES = 1 << 20
SMALL_HELD_BYTES = 256 * 1024
"""More than a session may hold of anything but administrators' requests and responses that are rewritten."""

MOST_CPU_S = 0.5
"""Of any input: first imports, a collection of the interpreter."""
CPU_PER_BYTE_S = 100e-6
"""Ten times what the slowest target takes, as the instrumented code is slower. A kilobyte has 0.1 s."""
SLICE_CPU_S = 0.2
"""Of one slice of an interceptor's work, of which the first one imports the schema of its message."""


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    max_bytes: int

    def write_seeds(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(self.seeds()):
            (folder / f"{number:04}").write_bytes(seed[: self.max_bytes])


TARGETS: dict[str, Target] = {}


def _timed(run: Callable[[bytes], None], most_cpu_s: float, data: bytes) -> None:
    """Run a target: it may take a certain CPU time for each byte of its input, however the bytes are put together."""
    began_s = time.thread_time()
    run(data)
    took_s = time.thread_time() - began_s
    assert took_s <= most_cpu_s + CPU_PER_BYTE_S * len(data), f"{took_s:.3f} s of CPU for {len(data)} bytes"


def target(
    name: str, seeds: Callable[[], Iterable[bytes]], max_bytes: int = 4096, *, most_cpu_s: float = MOST_CPU_S
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    def register(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[name] = Target(partial(_timed, run, most_cpu_s), seeds, max_bytes)
        return run

    return register


@cache
def _table(rate: float, percentage: float | None) -> QuotaTable:
    limits = {"producer_byte_rate": rate, "consumer_byte_rate": rate, "controller_mutation_rate": 1.0}
    return QuotaTable([Entry(client_id=DEFAULT, request_percentage=percentage, **limits)])


def _ledger(rate: float | None = None, percentage: float | None = None) -> Ledger:
    return _unlimited() if rate is None else Ledger(_table(rate, percentage))


@cache
def _unlimited() -> Ledger:
    return Ledger(QuotaTable([]), max_clients=100)


def _translate(nodes: Sequence[responses.NodeAddress], complete: bool) -> list[tuple[str, int] | None]:
    return [None if one.node_id % 8 == 7 else ("sidecar", 19_000 + one.node_id % 1000) for one in nodes]


def _session(
    of: Ledger, *, interceptors: Interceptors | None = None, rewrite: bool = True, reserved: ReservedTopic | None = None
) -> Driven:
    return Driven(
        of,
        Counters(),
        user="u",
        translate=_translate if rewrite else None,
        sizes=SizeLimits(max_frame_bytes=MAX_FRAME_BYTES),
        interceptors=interceptors or {},
        reserved=reserved,
    )


def _pieces(data: bytes, cut: int) -> Iterator[bytes]:
    """The whole for 0, else in pieces of up to `cut` bytes."""
    if cut == 0:
        yield data
        return
    for at in range(0, len(data), cut):
        yield data[at : at + cut]


def _held(session: Driven) -> int:
    return sum(side.reader.kept_bytes() for side in (session.requests, session.responses))


def _feed(session: Driven, data: bytes, cut: int) -> tuple[bytes, str | None]:
    """What goes to the broker, and the reason of the end if there is one."""
    try:
        for piece in _pieces(data, cut):
            session.client_sends(piece, 0.0)
            assert _held(session) <= SMALL_HELD_BYTES + len(piece)
            if session.must_wait:
                break
    except SessionError as error:
        return session.taken(), f"{error.reason} {error.kind}"
    return session.taken(), None


def _requests() -> list[bytes]:
    return [each.request for each in recorded.exchanges()]


def _client_streams() -> list[bytes]:
    pairs = [b"\x07" + first + second for first, second in zip(_requests()[::2], _requests()[1::2], strict=False)]
    return pairs + [b"\x21" + stream.from_client[:1000] for stream in recorded.streams()]


def _proxy_headers() -> Iterator[bytes]:
    yield b"PROXY TCP4 10.0.0.7 10.0.8.1 50000 9092\r\n\0\0\0\x11"
    yield b"PROXY TCP6 2001:db8::7 ::1 50000 9092\r\n"
    yield b"PROXY UNKNOWN\r\n"
    begin = b"\r\n\r\n\0\r\nQUIT\n"
    yield begin + b"\x21\x11\0\x0f" + bytes((10, 0, 0, 7, 10, 0, 8, 1, 195, 80, 35, 132)) + b"\4\0\0" + b"\0\0\0\x11"
    yield begin + b"\x21\x21\0\x24" + bytes(36)
    yield begin + b"\x20\0\0\0"


def _proxy_header_in_pieces(data: bytes, size: int) -> object:
    found, taken = ProxyHeader(), 0
    try:
        while taken < len(data) and not found.done:
            count = found.feed(data[taken : taken + size])
            assert 1 <= count <= size
            taken += count
    except ProxyHeaderError as error:
        return str(error)
    return taken, found.done, found.client


@target("proxy_header", _proxy_headers, max_bytes=256)
def proxy_header(data: bytes) -> None:
    """The header of a balancer, whole and in pieces: the same client, and not a byte behind it is taken."""
    sizes = (1, 5, max(len(data), 1))
    assert len({_proxy_header_in_pieces(data, size) for size in sizes}) == 1


@target("requests", _client_streams, max_bytes=1024)
def client_stream(data: bytes) -> None:
    """What a client sends, whole and in pieces of a size that the first byte says: the broker gets the same."""
    if len(data) < 2:
        return
    stream = data[1:]
    undivided = _session(_ledger())
    whole = _feed(undivided, stream, 0)
    parts = _feed(_session(_ledger()), stream, max(data[0], len(stream) // 64) or 1)
    complete = sum(map(len, recorded.frames_of(stream))) == len(stream)
    # Of a frame that is not there as a whole, more may be held when it comes in pieces.
    assert parts[1] == whole[1] or (parts[1] is None and not complete)
    if whole[1] is None:
        assert parts[0] == whole[0] if complete else whole[0].startswith(parts[0])
    assert len(parts[0]) <= len(stream)
    if whole[1] is None:
        _same_but_fetch_versions(stream, whole[0], all_of_it=not undivided.must_wait)


def _same_but_fetch_versions(received: bytes, sent: bytes, *, all_of_it: bool) -> None:
    """Without quotas a request is changed in one thing: the version of a Fetch whose response would have addresses."""
    at = from_there = 0
    while at < len(received):
        size = 4 + int.from_bytes(received[at : at + 4], "big")
        frame = bytearray(received[at : at + size])
        at += size
        if len(frame) < 8:
            break
        key, version = struct.unpack_from(">hh", frame, 4)
        if key == API_VERSIONS and not apis.is_known(key, version):
            continue  # answered here
        if key == FETCH:
            struct.pack_into(">h", frame, 6, responses.fetch_version_upstream(version))
        there = sent[from_there : from_there + len(frame)]
        assert there == frame[: len(there)]
        assert len(there) == len(frame) or at >= len(received) or not all_of_it  # the last one's head may still be held
        from_there += len(frame)


MAX_SCRIPT_BYTES = 3000


def streams_as_scripts(flags: bytes, cut: int = 0) -> Iterator[bytes]:
    """What real clients sent, in pieces, and were answered."""
    for stream in recorded.streams():
        script, answers = flags, recorded.frames_of(stream.from_broker)
        for request, answer in zip(recorded.frames_of(stream.from_client), answers, strict=False):
            if len(script) + len(request) + len(answer) > MAX_SCRIPT_BYTES:
                break
            script += step(CLIENT, request, cut) + step(BROKER, answer)
        yield script


def _scripts() -> Iterator[bytes]:
    for each in recorded.exchanges():
        if len(each.request) + len(each.response) < MAX_SCRIPT_BYTES:
            yield b"\x01" + step(CLIENT, each.request) + step(BROKER, each.response, 5)
    yield from streams_as_scripts(b"\x03")


@target("session", _scripts, max_bytes=3072)
def session(data: bytes) -> None:
    """Both peers send what they like, in any order, while time passes, with and without quotas."""
    if not data:
        return
    ledger = _ledger(1000.0, 5.0) if data[0] & 1 else _ledger()
    handlers = _interceptors(ledger) if data[0] & 2 else None
    reserved = ReservedTopic("t", {}, lambda: bytes(15) + b"\7") if data[0] & 8 else None
    one = _session(ledger, interceptors=handlers, rewrite=not data[0] & 4, reserved=reserved)
    at, now_ms, sent, got = 1, 0.0, 0, 0
    try:
        while at + 4 <= len(data):
            kind, cut, length = STEP.unpack_from(data, at)
            piece = data[at + 4 : at + 4 + length]
            at += 4 + length
            if kind % 4 == PASS:
                now_ms += length
                continue
            for part in _pieces(piece, cut):
                if kind % 4 == BROKER:
                    one.broker_sends(part, now_ms)
                elif one.must_wait or one.has_backlog or one.mute_until_ms > now_ms:
                    now_ms = max(now_ms, one.mute_until_ms)
                    one.carry_out(one.on_deadline(now_ms), now_ms)
                else:
                    one.client_sends(part, now_ms)
                sent += len(one.taken()) + len(one.seen())
                got += len(part)
                assert _held(one) <= SMALL_HELD_BYTES
                assert len(one.exchange) <= 1025
                assert one.mute_until_ms - now_ms <= 60_000
    except SessionError:
        pass
    one.close(now_ms)
    assert sent <= 64 * got + 4096  # an answer made here (an empty Fetch) is longer than the request at most so much


def _pair_scripts() -> Iterator[bytes]:
    """Produce and Fetch in all versions that were recorded, alone, and as real clients sent them."""
    for number, each in enumerate(recorded.exchanges()):
        if each.api_key in (PRODUCE, FETCH) and len(each.request) + len(each.response) < MAX_SCRIPT_BYTES:
            first = step(CLIENT, each.request) + step(BROKER, each.response)
            yield bytes((number % 256,)) + first + STEP.pack(PASS, 0, 5) + first
    yield from streams_as_scripts(b"\x01", 90)


@cache
def _pure() -> Pure:
    return Pure()


@target("connection_io", _pair_scripts, max_bytes=3072)
def both_ways(data: bytes) -> None:
    """Both directions of a pair: peers send what they like, in pieces. What is seen after each step is compared with
    the Python code's."""
    if compiled.WHY_NOT:
        play(data)
    else:
        _pure().compare(data)


_CORRELATION = 7


@cache
def _asking(api_key: int, version: int) -> bytes:
    body = b"\0\0\0\1" + b"\xff\xff\0\1" + bytes(40)
    return framed(request_header(api_key, version, _CORRELATION, "c") + body)


def _through_a_session(api_key: int, version: int, frame: bytes, cut: int, incomplete: bool) -> None:
    found = []
    for pieces in (0, cut):
        one = _session(_ledger())
        _feed(one, _asking(api_key, version), 0)
        if not one.exchange:
            return  # ended already, or answered here
        verdict = None
        try:
            for piece in _pieces(frame, pieces):
                one.broker_sends(piece, 1.0)
                assert _held(one) <= len(frame)
        except SessionError as error:
            verdict = str(error.reason)
        out = one.seen()
        found.append((out, verdict))
        assert len(out) <= 2 * len(frame) + 16
    (whole, verdict), (parts, cut_verdict) = found
    if incomplete:  # more may be held when it comes in pieces
        assert cut_verdict in (None, verdict)
        return
    assert verdict == cut_verdict
    if verdict is None:
        assert parts == whole
        assert len(whole) >= 4 + int.from_bytes(whole[:4], "big")


def _as_a_function(api_key: int, version: int, frame: bytes, missing: int) -> None:
    def rewritten(end: int) -> object:
        try:
            return responses.rewrite(api_key, version, frame, 0, end, _translate)
        except WireError as error:
            return error.reason

    end = min(len(frame), 4 + int.from_bytes(frame[:4], "big"))
    whole, part = rewritten(end), rewritten(max(end - missing, 8))
    if isinstance(whole, responses.Rewritten):
        assert whole.consumed <= end
        assert len(whole.head) <= 2 * whole.consumed + 16
        assert (
            int.from_bytes(whole.head[:4], "big") - int.from_bytes(frame[:4], "big") == len(whole.head) - whole.consumed
        )
    assert part == whole or isinstance(part, responses.NeedMore)
    reply = throttle.read_throttle(frame, 0, end, api_key, version)
    patched = bytearray(frame)
    if throttle.patch_throttle(patched, 0, end, api_key, version, 0x7FFF_FFFF):
        changed = [at for at in range(len(frame)) if frame[at] != patched[at]]
        assert not changed or changed[-1] - changed[0] < 4
        assert reply == 0 or changed or reply == 0x7FFF_FFFF


def _response_target(api_key: int) -> None:
    first, last = schema.APIS[api_key][1], schema.APIS[api_key][2]

    def seeds() -> list[bytes]:
        return [
            bytes((version - first, cut)) + each.response[8:]
            for each in recorded.exchanges()
            if each.api_key == api_key and first <= (version := min(each.version, last))
            for cut in (0, 3)
        ]

    def run(data: bytes) -> None:
        if len(data) < 3:
            return
        version = first + data[0] % (last - first + 1)
        size_lie = data[1] >> 6  # 2: the size says one byte more than there are, 3: one less
        frame = struct.pack(">ii", len(data) - 2 + 4 + (0, 0, 1, -1)[size_lie], _CORRELATION) + data[2:]
        if data[1] & 1:
            _through_a_session(api_key, version, frame, max(data[1] & 62, len(frame) // 64, 1), size_lie == 2)
        else:
            _as_a_function(api_key, version, frame, data[1] & 62)

    name = "response_" + "".join(
        ("_" if c.isupper() and n else "") + c.lower() for n, c in enumerate(apis.api_name(api_key))
    )
    target(name, seeds, max_bytes=1024)(run)


for _key in sorted({*schema.ADDRESS_WALKS, API_VERSIONS}):
    _response_target(_key)


def _described_seeds() -> list[bytes]:
    return [b"\0" + each.response[4:] for each in recorded.exchanges() if each.api_key in (3, 18)] + [
        b"\1\0\0\0\0\0\0\1\2\2\5user\2a\2\2\5rate\x40\0\0\0\0\0\0\0\0\0\0"
    ]


@target("own_questions", _described_seeds)
def own_questions(data: bytes) -> None:
    """What a broker answers to the sidecar itself: its brokers, its versions, its quotas."""
    if not data:
        return
    frame = framed(data[1:])
    try:
        if data[0] == 1:
            read_described(1, data[1:])
        elif len(frame) >= 8:
            responses.read_cluster(data[0] % 14, frame)
    except (WireError, AdminError):
        pass
    if len(frame) >= 8:
        try:
            responses._offered(frame, 0, len(frame), data[0] % 5)
        except (WireError, Short):
            return


class _Authority(Authority):
    def apply(self, user: str, changes: Changes, done: Callable[[str | None], None]) -> None:
        done(None)


@cache
def _admin() -> QuotaAdmin:
    return QuotaAdmin(_Authority("apply", QuotaTable(), principals=("u",)))


def _interceptors(ledger: Ledger) -> Interceptors:
    return {
        DESCRIBE_CLIENT_QUOTAS: _admin(),
        ALTER_CLIENT_QUOTAS: _admin(),
        **dict.fromkeys(MUTATION_APIS, MutationQuota(ledger)),
    }


def _finished(result: Any) -> Any:
    """An interceptor's result, once its work is done slice by slice."""
    while isinstance(result, Work):
        began_s = time.thread_time()
        done = result.advance(1.0)
        took_s = time.thread_time() - began_s
        assert took_s < SLICE_CPU_S, f"{took_s:.3f} s of CPU in one slice"
        result = result if done is None else done
    return result


ADMIN_APIS = (DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS, *sorted(MUTATION_APIS))
"""In the order in which the first byte of an input names them."""


def _admin_seeds() -> Iterator[bytes]:
    """API, version, where the answer begins, request body and answer body, made by an independent encoder."""
    known = set(kio_versions(EntityType.request))
    for index, key in enumerate(ADMIN_APIS):
        first, last = schema.APIS[key][1], schema.APIS[key][2]
        for version in range(first, last + 1):
            if (key, version) not in known:
                continue
            for seed, answered_by in enumerate(((key, version), (apis.METADATA, 9))):
                rng = random.Random(seed)
                body = encode(sample(kio_class(key, version, EntityType.request), rng, repeat=1))
                answer = encode(sample(kio_class(*answered_by), rng, repeat=1))
                if len(body) + len(answer) < 4000:
                    split = -(-255 * len(body) // (len(body) + len(answer)))
                    yield bytes((index, version - first, split)) + body + answer


@target("administration", _admin_seeds)
def administration(data: bytes) -> None:
    """Bodies that handlers decode whole, and what a broker answers to them: arrays may claim what they like."""
    if len(data) < 4:
        return
    ledger = _ledger(1000.0)
    api_key = ADMIN_APIS[data[0] % len(ADMIN_APIS)]
    first, last = schema.APIS[api_key][1], schema.APIS[api_key][2]
    version = first + data[1] % (last - first + 1)
    split = 3 + data[2] * (len(data) - 3) // 255
    body, answer = data[3:split], data[split:]
    account = ledger.account("u", "c")
    if data[2] & 1:
        ledger.charge_mutation(account, 1000, False, 0.0)  # over the quota: refused topics are put into answers
    handler = _interceptors(ledger)[api_key]
    try:
        outcome = _finished(handler.request(AdminRequest(api_key, version, "u", account, body), 0.0))
        for _ in range(4):
            if not isinstance(outcome, Ask):
                break
            outcome = _finished(outcome.then(answer, 1.0))
        if isinstance(outcome, Wait):
            decided: list[Outcome] = []
            outcome.start(decided.append)
            (outcome,) = decided
        if isinstance(outcome, Answer):
            assert len(outcome.body) <= 600 * len(body) + 4096
        elif isinstance(outcome, Forward):
            assert outcome.body is None or len(outcome.body) <= len(body) + 64
            if outcome.on_response is not None:
                _finished(outcome.on_response(answer, 2.0))
    except WireError:
        return


def _said(file: str, problems: Sequence[Problem]) -> None:
    assert problems
    for problem in problems:
        assert problem.expected
        assert problem.line is None or problem.line >= 1
        assert str(problem).startswith(file)
        assert len(str(problem)) < 2000


@target("configuration", recorded.configurations)
def configuration(data: bytes) -> None:
    """Whatever is in the file: it loads, or every problem says where and what was expected."""
    try:
        config = load_bytes("q.yaml", data)
    except ConfigError as error:
        _said("q.yaml", error.problems)
        return
    for warning in warnings_of(config):
        assert len(str(warning)) < 2000
    to_table(config)


def _overlays() -> list[bytes]:
    return [
        b"quotas:\n- {user: alice, producer_byte_rate: 1000}\n",
        b"",
        b"quotas:\n- {client-id: <default>, request_percentage: 5}\n",
        b"quotas: [{user: {name: [a]}, producer_byte_rate: 1}]",
        b"quotas: [{? {a: b} : c}]",
        b"quotas: [{user: &a [*a]}]",
    ]


@target("overlay", _overlays, max_bytes=512)
def overlay(data: bytes) -> None:
    """The overlay file that AlterClientQuotas writes, edited by hand."""
    try:
        parse_overlay("o.yaml", data)
    except ConfigError as error:
        _said("o.yaml", error.problems)


_OPENING = b'[~{~- ~? ~{a: ~[{a: ~&a [~!!seq [~[[],~\n- ~? - ~"a": [~[? ~-\n~'
_OTHER = b"]~}~a~: ~,~\n~ ~*a~<<: ~| \n~\"~'~#~%TAG !a! b\n~\n--- ~1:"
OPENERS = tuple((_OPENING + _OTHER).split(b"~"))
"""What is repeated: it opens, closes or fills something."""
_MAX_TEXT_BYTES = 150_000
"""50 000 brackets ended the process."""


def _nested_seeds() -> list[bytes]:
    return [bytes((opener, 255)) + bytes((14, 255)) for opener in range(len(OPENERS))] + [bytes((4, 31, 16, 0, 15, 31))]


@target("nesting", _nested_seeds, max_bytes=64, most_cpu_s=5.0)
def nesting(data: bytes) -> None:
    """How deep a file nests. Pairs of bytes: what opens, closes or fills something, and how often (up to 65 536)."""
    text = bytearray()
    for which, count in zip(data[::2], data[1::2], strict=False):
        text += OPENERS[which % len(OPENERS)] * (count * count + 1)
        if len(text) > _MAX_TEXT_BYTES:
            break
    del text[_MAX_TEXT_BYTES:]
    with suppress(ConfigError):
        load_bytes("q.yaml", bytes(text))
    with suppress(ConfigError):
        assert _depth(parse("q.yaml", bytes(text)).values) <= MAX_DEPTH
    with suppress(ConfigError):
        parse_overlay("o.yaml", bytes(text))


def _depth(value: object) -> int:
    """Of lists and mappings in each other; aliases may have put them together, so the whole may be large."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


from tests.fuzz import identity_targets, tls_targets  # noqa: E402, F401 - they need what is above
