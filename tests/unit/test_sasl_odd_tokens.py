"""Names in odd login messages: where a name is ambiguous there is no user, and the login gets no further.

A broker reads the same bytes with other libraries (Java's decoders, Jackson, jose4j), some of which forgive more than
others. A name is taken from what all of them read alike. What only some of them read is not a login here, even if the
broker has accepted it: otherwise a client could leave its own limit by a byte order mark.
"""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core.auth.sasl import Login
from proxy.core.errors import CloseReason, SessionError
from proxy.core.wire import sasl as wire
from quota.ledger import Ledger
from tests.support.sasl_tools import HEAD, authenticate, authenticate_response, bearer, jws, listen, log_in, raw
from tests.support.session_tools import from_broker, from_client, ledger, session
from tests.support.turns import Watch, growth

ALICE = b'{"sub":"alice","exp":4102444800}'  # the year 2100: names of tests must not depend on the time
FAULTY = {
    "byte order mark": b"\xef\xbb\xbf" + ALICE,
    "UTF-16": ALICE.decode().encode("utf-16"),
    "UTF-16 without a mark": ALICE.decode().encode("utf-16-be"),
    "trailing object": ALICE + b'{"sub":"bob"}',
    "trailing zero byte": ALICE + b"\0",
    "Latin-1": '{"sub":"jos\u00e9"}'.encode("latin-1"),
    "Latin-1 elsewhere": '{"sub":"alice","name":"jos\u00e9"}'.encode("latin-1"),
    "half a character in UTF-8": b'{"sub":"a\xed\xa0\x80"}',
    "overlong": b'{"sub":"\xc0\xaf"}',
    "cut off": ALICE[:-1],
    "a comment": b'{/**/"sub":"alice"}',
    "single quotes": b"{'sub':'alice'}",
    "a line break in the name": b'{"sub":"al\nice"}',
    "too deep": b'{"sub":"alice","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of 10 000 digits": b'{"sub":"alice","x":' + b"1" * 10_000 + b"}",
    "blanks, then a byte order mark": b" " * 5000 + b"\xef\xbb\xbf" + ALICE,
    "null": b'{"sub":null}',
    "true": b'{"sub":true}',
    "a number after a string": b'{"sub":"alice","sub":7}',
    "blank": b'{"sub":" \\t\\n\\u0000 "}',
    "half a pair of surrogates": b'{"sub":"al\\ud800ice"}',
    "the other half": b'{"sub":"al\\udc00ice"}',
}
TOKEN = jws(ALICE).encode()
AUTH = b"auth=Bearer " + TOKEN
GOOD = b"n,,\1" + AUTH + b"\1\1"
FAULT = "names no user, and its login ends the connection"
OPAQUE = None  # they may be accepted; the user is `identity.sasl.unknown_user`, or what the next source knows
URL = base64.urlsafe_b64encode(b"https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect").decode()
FALSE_ESCAPES = (b"=", b"==", b"=2", b"=2c", b"=3d", b"=41", b"=2C=", b"=3D=3", b"a=b")
OTHER_NAMES = (b"", b",", b"\xc3\xa9", b"\xe9", b"a\0b")
TAILS = (b"\0", b"\n", b",", b",x", b",x=", b",x=y\0", b" ", b"\xff")


@pytest.mark.parametrize(
    ("message", "name"),
    [
        *((bearer(jws(claims)), FAULT) for claims in FAULTY.values()),
        *(
            (bearer(jws(claims)), name)
            for claims, name in (
                (ALICE, "alice"),
                (b" \r\n\t" + ALICE + b" \n", "alice"),  # blanks are JSON's own
                (b'{"sub":"bob","sub":"alice"}', "alice"),  # of two the last one: Jackson; jose4j refuses the token
                (b'{"sub":7,"sub":"alice"}', "alice"),
                (b'{"x":{"sub":"bob"},"sub":"alice"}', "alice"),
                ('{"sub":"jos\u00e9"}'.encode(), "jos\u00e9"),
                (b'{"sub":"jos\\u00e9"}', "jos\u00e9"),
                (b'{"sub":"\\ud83d\\ude00"}', "\U0001f600"),
                (b'{"s\\u0075b":"alice"}', "alice"),
                (b'{"sub":" alice\\u0000 "}', "alice"),  # as String.trim does it
                (b'{"sub":"\\u00a0alice\\u2003"}', "\u00a0alice\u2003"),  # which these are no blanks for
                (b'{"sub":"true"}', "true"),
            )
        ),
        *((bearer(token), OPAQUE) for token in ("opaque", "a.b", "a.b.c", "a.b.c.d.e", "..", URL)),  # five parts: a JWE
        *((bearer(jws(claims)), OPAQUE) for claims in (b"[1]", b'"alice"', b"null", b"\xef\xbb\xbf[1]", b"{}")),
        (bearer(jws(b'{"azp":"web"}')), OPAQUE),  # no such claim
        *((bearer(f"{HEAD}.{claims}"), OPAQUE) for claims in ("W" * 40_000 + ".x", "~~~~.", "A.")),
        *((start + GOOD, FAULT) for start in (b" ", b"\xef\xbb\xbf")),
        *((start + AUTH + b"\1\1", FAULT) for start in (b"y,,\1", b"p=tls-unique,,\1", b"n,\1", b"n,,", b"n,,\1\1")),
        *((b"n," + to + b",\1" + AUTH + b"\1\1", FAULT) for to in (b"a=", b"a=al,ice", b"a=al=2cice", b"b=alice")),
        *((b"n,,\1" + AUTH + rest, FAULT) for rest in (b"\1\1host=x\1\1", b"\1host=\1\1", b"\1h0st=x\1\1")),
        *((b"n,,\1" + AUTH + rest, FAULT) for rest in (b" \1\1", b"\1")),
        (b"n,,\1" + AUTH + b"\1host=caf\xc3\xa9\1\1", FAULT),
        *((b"n,,\1auth=" + scheme + TOKEN + b"\1\1", FAULT) for scheme in (b"Bearer", b"Bearer\t", b"Basic ")),
        *((message, FAULT) for message in (b"n,,\1host=x\1\1", GOOD.replace(b"\1", b"\0"), b"", b"\1", b"n,,\1\1")),
        (b"n,a=alice,\1" + AUTH + b"\1\1", "alice"),
        (b"n,a=O=3Dx=2Cy,\1" + AUTH + b"\1\1", "alice"),  # refused by the broker: it is not the principal
        (b"n,,\1AUTH=x\1auth=bEARER    " + TOKEN + b"\1\1", "alice"),
        (b"n,,\1host=a=b \t\r\n\1" + AUTH + b"\1\1", "alice"),
        (b"n,,\1" + AUTH + b"c2ln\1host=x\1\1", "alice"),
        (b"n,,\1auth=Bearer " + jws(b'{"sub":"bob"}').encode() + b"\1" + AUTH + b"\1\1", "alice"),  # the last one
    ],
)
def test_first_messages_of_oauthbearer(message: bytes, name: str | None) -> None:
    found, fault = wire.oauth_claim(message, "sub")
    assert found == (None if name == FAULT else name)
    assert (fault is not None) == (name == FAULT)
    assert "alice" not in (fault or "")


def test_another_claim_can_be_the_name() -> None:
    assert wire.oauth_claim(bearer(jws(b'{"sub":"id","client_id":"orders"}')), "client_id")[0] == "orders"


def test_either_alphabet_and_padding_at_the_end_of_the_token() -> None:
    """Kafka's reader of unsecured tokens takes `+` and `/`, those of signed ones `-` and `_`."""
    claims = '{"sub":"~~~\u00ff?>\u00fb\u00ef"}'.encode()
    tokens = {jws(claims), jws(claims, standard=True)}
    assert len(tokens) == 2
    assert {wire.oauth_claim(bearer(token), "sub")[0] for token in tokens} == {"~~~\u00ff?>\u00fb\u00ef"}
    one = b'{"sub":"alice1"}'
    assert len(one) % 3 == 1
    padded = [jws(one, padding=pad) for pad in ("", "==", "=", "====")] + [jws(one) + "=="]
    names_of = [wire.oauth_claim(bearer(token), "sub")[0] for token in padded]
    assert names_of == ["alice1", None, None, None, "alice1"]  # equals signs belong to the whole token


def test_plain_messages_that_name_no_user() -> None:
    ambiguous = (b"\0alice\0pw\0", b"\0\0alice\0pw", b"\0alice\0\0pw", b"\0alice", b"\0\0pw", b"")
    for message in (*ambiguous, b"\0jos\xe9\0pw", b"\0al\xed\xa0\x80ice\0pw", b"\0\xc0\xaf\0pw"):
        assert wire.plain_name(message) is None


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (b"n,a=alice,n=alice,r=nonce", ("alice", False)),
        (b"n,,n=tokenid,r=nonce,tokenauth=true", ("tokenid", True)),
        (b"n,,n=tokenid,r=nonce,tokenauth=TRUE,x=y", ("tokenid", True)),
        (b"n,,n=tokenid,r=nonce,tokenauth=true,tokenauth=false", ("tokenid", False)),
        (b"n,,n=alice,r=nonce,m=n=bob", ("alice", False)),
        (b"n,,m=ext,n=alice,r=nonce", ("alice", False)),
        (b"n,,n==3D2C=2C2C,r=nonce", ("=2C,2C", False)),  # unescaped once
        (b"y,,n=alice,r=nonce", None),  # channel binding
        (b"n,,n=alice", None),
        (b"", None),
        *((b"n,,n=alice,r=nonce" + tail, None) for tail in TAILS),
        *((b"n,,n=" + name + b",r=nonce", None) for name in FALSE_ESCAPES + OTHER_NAMES),
    ],
)
def test_scram_messages(message: bytes, name: tuple[str, bool] | None) -> None:
    assert wire.scram_name(message) == name


@pytest.mark.parametrize("version", [-1, 0, 2])
@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        *(
            ("OAUTHBEARER", bearer(jws(FAULTY[case])))
            for case in ("byte order mark", "trailing object", "true", "Latin-1")
        ),
        ("OAUTHBEARER", GOOD + b"\0"),
        ("PLAIN", b"\0jos\xe9\0pw-secret"),
        ("PLAIN", b"\0alice\0pw-secret\0"),
    ],
)
def test_a_broker_that_accepts_one_all_the_same_is_left(mechanism: str, message: bytes, version: int) -> None:
    of: Ledger = ledger()
    one = session(of, login_expected=True)
    result = listen(one)
    log_in(one, mechanism, (), version=version)
    sent = raw(message) if version < 0 else authenticate(message, version)
    assert from_client(one, sent) == sent
    answer = raw(b"") if version < 0 else authenticate_response(0, b"", version)
    with pytest.raises(SessionError) as caught:
        from_broker(one, answer)
    assert (caught.value.reason, caught.value.kind) == (CloseReason.CLIENT_MALFORMED, "sasl_name")
    assert mechanism in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("alice", "pw-secret", HEAD))
    assert result == []
    assert not list(of.accounts())


def test_the_fault_of_one_login_is_not_that_of_the_next() -> None:
    one = session(ledger())
    result = listen(one)
    log_in(one, "OAUTHBEARER", [(bearer(jws(FAULTY["null"])), b'{"status":"invalid_token"}')])
    log_in(one, "OAUTHBEARER", [(GOOD, b"")])
    log_in(one, "OAUTHBEARER", [(bearer("opaque"), b"")])
    log_in(one, "SCRAM-SHA-256", [(b"n,,n=jos\xc3\xa9,r=abc", b"r=abcdef,s=c2FsdA==,i=4096"), (b"c=biws", b"v=c2ln")])
    assert result == [Login("alice"), Login(None), Login(None)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON, others=st.dictionaries(st.text(max_size=5), JSON, max_size=3), ascii_only=st.booleans())
def test_only_a_string_claim_is_a_name(value: Any, others: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(others | {"sub": value}, ensure_ascii=ascii_only)
    name, fault = wire.oauth_claim(bearer(jws(text.encode())), "sub")
    blanks = "".join(map(chr, range(33)))
    expected = value.strip(blanks) or None if isinstance(value, str) else None
    assert name == expected
    assert (fault is None) == (name is not None)


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30))
@example(name="\ufeffalice")
@example(name=" a\r\nb \ufffd")
def test_any_name_by_plain(name: str) -> None:
    """PlainSaslServer takes nothing away from them; the password may be of any bytes."""
    assert wire.plain_name(b"\0" + name.encode() + b"\0\xff\xe9") == name
    # A broker refuses another authorization id; were it accepted, authcid would be the principal.
    assert wire.plain_name(b"bob\0" + name.encode() + b"\0") == name


@given(name=st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=30))
def test_any_name_by_scram(name: str) -> None:
    escaped = name.replace("=", "=3D").replace(",", "=2C").encode()
    assert wire.scram_name(b"n,,n=" + escaped + b",r=nonce") == (name, False)


LARGE: list[Callable[[int], bytes]] = [
    lambda size: b"n,,n=" + b"a" * size + b",r=x",
    lambda size: b"n,,n=" + b"=2C" * size + b",r=x,",
    lambda size: b"n,,n=a,r=x" + b",a=b" * size,
    lambda size: b"n,,n=a,r=x" + b",a=b" * size + b",",
    lambda size: b"n,,\1" + b"a=b\1" * size + b"\1",
    lambda size: bearer(jws(b'{"a":[' + b"[]," * size + b"1]}")),
    lambda size: b"n,,\1auth=bearer a." + b"~" * size + b".c\1\1",
    lambda size: b"n,,\1auth=bearer " + b" " * size + b"\1\1",
]


@pytest.mark.parametrize("large", LARGE)
def test_large_messages_are_read_in_time_in_proportion(large: Callable[[int], bytes]) -> None:
    def read(size: int, watch: Watch) -> None:
        message = large(size)
        watch(lambda: (wire.scram_name(message), wire.oauth_claim(message, "sub")))

    assert growth(read, 3500) < 8
