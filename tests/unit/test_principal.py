"""Users: which source names them, what is read of certificates, and Kafka's mapping rules."""

import re
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from proxy.core.auth.identity import IdentityPolicy
from proxy.net.tls.certificates import CertificateError, subject, valid_s
from proxy.net.tls.cpu_limit import CpuLimitError, cpu_limit
from proxy.net.tls.principal import NoRuleError, PrincipalRules, RuleError
from tests.support.turns import Watch


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        # the documentation's own (Kafka, security, "Customizing SSL User Name")
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=serviceuser,OU=ServiceUsers,O=Unknown,C=Unknown", "serviceuser"),
        (
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "CN=adminUser,OU=Admin,O=U,L=U,ST=U,C=U",
            "adminuser@admin",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L, DEFAULT", "cn=Duke,ou=JavaSoft", "duke"),
        ("RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U", "cn=a,ou=b,dc=c,dc=d", "A@B"),
        # order: the first that matches the whole name
        ("RULE:CN=(a)/1/,RULE:CN=(a.*)/2/", "CN=ab", "2"),
        ("DEFAULT,RULE:.*/x/", "CN=ab", "CN=ab"),
        # commas and slashes inside a rule
        (r"RULE:^CN=([^,]+)(,.*|$)/$1/", "CN=x,OU=y", "x"),
        (r"RULE:^CN=a\/b$/c\/d/", "CN=a/b", "c/d"),
        # groups that there are not stay as they are written; so many digits as there are groups
        ("RULE:CN=(.)(.)/$1-$3-$12/", "CN=ab", "a-$3-a2"),
        (r"RULE:CN=(.)/\$1$0/", "CN=a", "$1CN=a"),
        ("RULE:CN=(?<first>.)(x)?/${first}$2/", "CN=a", "a"),
        # replaced wherever it is found: .* finds the name, and the nothing behind it
        ("RULE:(.*)/<$1>/", "CN=a", "<CN=a><>"),
        ("RULE:CN=(ß)/$1/U", "CN=ß", "SS"),
        ("RULE:(?i)cn=(.*+)/x/", "CN=a", "x"),
    ],
)
def test_maps_principals_as_a_broker(rules: str, subject: str, user: str) -> None:
    assert PrincipalRules(rules).user(subject) == user


def test_unmatched_principal_has_no_user() -> None:
    # a dot is not the same character in both languages
    for rules, name in (("RULE:CN=(a)/$1/", "CN=ab"), ("RULE:CN=.*/x/", "CN=a\u2028b")):
        with pytest.raises(NoRuleError):
            PrincipalRules(rules).user(name)


SAME = "the same meaning in Java and Python"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("", "at least one rule"),
        ("default", "not 'default'"),
        ("DEFAULT/L", "not 'DEFAULT/L'"),
        ("RULE:CN=(.*?),OU=ServiceUsers.*/$1", "not 'RULE:CN=(.*?)'"),
        ("RULE:^CN=(.*)$/$1/LU", "not 'RULE:"),
        ("RULE:CN=(/$1/", "a regular expression"),
        ("RULE:CN=a/$1/", "a pattern with a group, as the replacement '$1' uses $1"),
        ("RULE:CN=(a)/$x/", "a number or a name in braces after each $"),
        ("RULE:CN=(a)/${nobody}/", "a group named nobody"),
        *((f"RULE:{one}/x/", SAME) for one in (r"CN=\p{Alpha}", r"CN=\Qa\E", "CN=[a[b]]", "CN=[a-z&&[^b]]", "CN=[]a]")),
        *((f"RULE:{one}/x/", SAME) for one in ("(?>a)", "a(?i)b", "a$b")),
    ],
)
def test_rules_that_cannot_be_relied_on_are_refused(rules: str, expected: str) -> None:
    with pytest.raises(RuleError) as refused:
        PrincipalRules(rules)
    assert expected in str(refused.value)


def test_a_regular_expression_is_interrupted() -> None:
    watch = Watch()
    for limit_s in (0.002, 0.1):
        with pytest.raises(CpuLimitError), cpu_limit(limit_s):
            watch(lambda: re.fullmatch("(a*)*b", "a" * 100))  # without a limit: for longer than there are computers
    assert watch.took_s[0] < watch.took_s[1] / 2


def test_nothing_is_raised_after_the_block() -> None:
    before = signal.getsignal(signal.SIGALRM)
    for _ in range(200):
        with suppress(CpuLimitError), cpu_limit(0.0):
            pass
        assert signal.getsignal(signal.SIGALRM) is before
        sum(range(2000))


def test_another_timer_goes_on() -> None:
    before = signal.getsignal(signal.SIGALRM)
    handler = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    timer = signal.setitimer(signal.ITIMER_REAL, 30.0, 7.0)
    try:
        with cpu_limit(1.0):
            time.sleep(0.005)
        left_s, each_s = signal.getitimer(signal.ITIMER_REAL)
        assert (29.0 < left_s <= 30.0, each_s) == (True, 7.0)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize(
    ("sources", "static", "known", "expected"),
    [
        (("tls", "sasl", "static"), None, {}, ("ANONYMOUS", "anonymous")),
        (("tls", "sasl", "static"), "pod", {}, ("pod", "static")),
        (("tls", "sasl", "static"), "pod", {"sasl": "alice"}, ("alice", "sasl")),
        (("tls", "sasl", "static"), "pod", {"sasl": "alice", "tls": "CN=web"}, ("CN=web", "tls")),
        (("sasl", "tls"), "pod", {"sasl": "alice", "tls": "CN=web"}, ("alice", "sasl")),
        (("static", "sasl"), "pod", {"sasl": "alice"}, ("pod", "static")),
        (("static", "sasl"), None, {"sasl": "alice"}, ("alice", "sasl")),
        (("static",), None, {"sasl": "alice", "tls": "CN=web"}, ("ANONYMOUS", "anonymous")),
        (("sasl",), "pod", {"sasl": ""}, ("ANONYMOUS", "anonymous")),
    ],
)
def test_the_first_source_that_knows_a_name_wins(
    sources: tuple[str, ...], static: str | None, known: dict[str, str], expected: tuple[str, str]
) -> None:
    assert IdentityPolicy(sources, static).choose(**known) == expected


@pytest.mark.parametrize("year", [2030, 2049, 2050, 9999])
def test_reads_expiry_in_both_spellings(year: int) -> None:
    """Two digits of the year up to 2049 (UTCTime), four from 2050 on (GeneralizedTime)."""
    key, end = ec.generate_private_key(ec.SECP256R1()), datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    parts = ((NameOID.EMAIL_ADDRESS, "a@b"), (NameOID.COMMON_NAME, " x,y "))
    name = x509.Name([x509.NameAttribute(*part) for part in parts])
    built = x509.CertificateBuilder(name, name, key.public_key(), 1).not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
    signed = built.not_valid_after(end).sign(key, hashes.SHA256())
    assert valid_s(signed.public_bytes(Encoding.DER))[1] == end.timestamp()


def _der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    return bytes([tag, 0x82]) + len(content).to_bytes(2, "big") + content


def test_subjects_that_are_too_large_are_refused() -> None:
    """Of an attribute's type, the whole number has too many digits to be printed."""
    kind = _der(6, b"\x2b" + b"\xff" * 3000 + b"\x7f")
    name = _der(0x30, _der(0x31, _der(0x30, kind, _der(12, b"x"))))
    nothing = _der(0x30)
    with pytest.raises(CertificateError):
        subject(_der(0x30, _der(0x30, _der(2, b"1"), nothing, nothing, nothing, name, nothing)))
