"""Limits cannot be escaped: the worst of `make evasion` in short."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.evasion import honest
from benchmarks.evasion.rows import BOUND, STRETCHES, Row, chosen
from benchmarks.evasion.run import in_words, run_batch
from benchmarks.evasion.stage import Stage, stage

pytestmark = pytest.mark.long

WINDOW_NUM = 3
HONEST_S, HONEST_LIMIT = 15.0, 400_000
"""sarama has up to 5 MB on its way, which takes 13 s at this limit."""
SECONDS = 30.0
SHORT_BOUND = BOUND + 0.05
"""Over 27 s a request of 20 kB more or less is 1.5 % of 50 kB/s, and a quarter of a second at each end 1.9 %."""
WORST = (
    "p4-reconnect", "p30-impatient", "p4-half-close", "p4-acks-0-reconnect", "p4-idempotent", "p8-addresses", "p4-tls",
    "p4-certificate", "p8-ipv6-addresses", "s4-plain", "s4-gssapi", "s1-oauth-5s-piped", "n-user", "m4-impatient",
    "m4-partitions", "m4-delete", "m4-metadata", "r4-reconnect", "h4-share", "f30-v4-reconnect", "f30-v17-half-close",
    "g30-joins", "g30-member", "g4-joins-pipelined", "gf30-beats", "gf30-consumer-reconnect",
)  # fmt: skip
# A debt outlives the longest mute (5 s here).
LONG_DEBT = Row("debt", "2 MB at 50 kB/s (40 s)", "large", limit=50_000, size=2_000_000, offer=50, one_at_least=False)


def short(row: Row) -> Row:
    """The same attack on a smaller limit with smaller requests."""
    if row.attack not in ("produce", "fetch", "share"):
        return row
    return replace(row, limit=50_000, size=20_000, title=f"{row.name}, smaller")


@pytest.fixture(scope="module")
def on() -> Iterator[Stage]:
    with stage(rows()) as made:
        yield made


def rows() -> list[Row]:
    return [*(short(row) for row in chosen(list(WORST))), LONG_DEBT]


@pytest.mark.timeout(300)
def test_no_attack_gets_more_than_its_limit(on: Stage) -> None:
    batch = run_batch(on, rows(), SECONDS, window_num=WINDOW_NUM, settings={"max_mute": "5s"})
    said = "\n".join(in_words(one) for one in batch.outcomes)
    print(said)
    assert not batch.unclean, batch.unclean
    for one in batch.outcomes:
        assert one.figures.total > 0, f"nothing arrived, so nothing was tried:\n{in_words(one)}"
        assert one.figures.achieved <= SHORT_BOUND, said
        if one.row.in_stretches:
            assert 0 < one.stretches[10.0] <= STRETCHES[10.0], said
        if one.charged is not None and one.row.attack == "produce":
            # What was charged and not yet in the log when the time was over: no more than is under way.
            assert one.charged >= 0.99 * one.figures.total, said


@pytest.mark.timeout(300)
def test_honest_clients_lose_no_record_during_attacks(on: Stage) -> None:
    """At 20 times their limit, with the timeouts that their libraries have by themselves."""
    found = honest.run(on, honest.NAMES, HONEST_S, print, chosen(list(honest.ATTACKS[:3])), limit=HONEST_LIMIT)
    said = "\n".join(honest.in_words(one) for one in found)
    for one in found:
        assert not one.missing, said
        assert one.acknowledged == one.sent > HONEST_S * HONEST_LIMIT / honest.RECORD_BYTES / 2, said
        assert (one.lost, one.repeated, one.errors) == (0, 0, []), said
