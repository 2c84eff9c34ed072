"""The user of a connection, and what becomes of a session whose client logs in."""

from __future__ import annotations

import pytest

from proxy.core.auth.identity import IdentityPolicy
from quota.entity import Identity
from tests.support.sasl_tools import PLAIN_STEPS, log_in
from tests.support.session_tools import from_broker, from_client, identified, ledger, produce, produce_response


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


def test_identify_charges_later_requests_to_new_user() -> None:
    accounts = ledger(produce_rate=1_000_000)
    one = identified(accounts)
    from_client(one, produce(1, 100))
    from_broker(one, produce_response(1))
    before = accounts.known("ANONYMOUS", "c")
    assert before is not None
    assert before.connections == 1
    log_in(one, "PLAIN", PLAIN_STEPS)
    assert (one.user, before.connections) == ("alice", 0)
    from_client(one, produce(2, 300))
    from_broker(one, produce_response(2))
    after = accounts.known("alice", "c")
    assert after is not None
    assert after.connections == 1
    assert [sum(account.requests.values()) for account in (before, after)] == [1, 1]
    assert one.client_ids == ["c"]
    one.close(0.0)
    assert after.connections == 0
    assert after.identity == Identity("alice", "c")
