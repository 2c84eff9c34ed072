"""Sessions under traffic that hypothesis makes up: recorded frames, some of them changed, cut anywhere, in any order.

The invariants are those of `tests.fuzz.targets.session`: nothing but SessionError, bounded memory, bounded output.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import seeds
from tests.fuzz.targets import _step, client_stream, session
from tests.support.examples import examples

SMALL = [each for each in seeds.exchanges() if len(each.request) + len(each.response) < 1500]

numbers = st.sampled_from([0, -1, 1, 2**31 - 1, -(2**31), 1000])


@st.composite
def frames(draw: st.DrawFn, which: str) -> bytes:
    """A recorded request or response, perhaps with bytes changed, a number in it replaced, or its end missing."""
    frame = bytearray(getattr(draw(st.sampled_from(SMALL)), which))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(frame)))
        how = draw(st.integers(0, 3))
        if how == 0:
            frame[at : at + 1] = draw(st.binary(max_size=2))
        elif how == 1:
            frame[at : at + 4] = draw(numbers).to_bytes(4, "big", signed=True)
        elif how == 2:
            del frame[at:]
        else:
            frame[at:at] = frame[at : at + 20]
    return bytes(frame)


steps = st.one_of(
    st.builds(_step, st.just(0), frames("request"), st.integers(0, 255)),
    st.builds(_step, st.just(1), frames("response"), st.integers(0, 255)),
    st.builds(lambda ms: b"\x02\0" + ms.to_bytes(2, "big"), st.integers(0, 65_535)),  # that much later
)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Questions and their own answers, so that more than the first one is understood, and anything in between."""
    parts = []
    for each in draw(st.lists(st.sampled_from(SMALL), max_size=4)):
        parts.append(_step(0, each.request, draw(st.integers(0, 40))))
        parts += draw(st.lists(steps, max_size=1))
        parts.append(_step(1, each.response, draw(st.integers(0, 40))))
    return b"".join(parts)


@given(st.integers(0, 7), st.lists(steps, max_size=6))
@settings(max_examples=examples(150))
def test_anything_in_any_order(mode: int, script: list[bytes]) -> None:
    session(bytes((mode,)) + b"".join(script))


@given(st.integers(0, 7), conversations())
@settings(max_examples=examples(150))
def test_conversations_with_something_wrong_in_them(mode: int, script: bytes) -> None:
    session(bytes((mode,)) + script)


@given(st.integers(1, 255), st.lists(frames("request"), min_size=1, max_size=5))
@settings(max_examples=examples(150))
def test_what_a_client_says_means_the_same_however_it_is_cut(cut: int, said: list[bytes]) -> None:
    client_stream(bytes((cut,)) + b"".join(said))
