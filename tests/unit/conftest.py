"""The unit room: no processes, no network, no waiting. A test that does any of it fails (`tests.support.room`)."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.room import Guard

GUARD = Guard()
HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures of modules are watched as well: they are set up within the first test that wants them."""
    if HERE not in item.path.parents:  # pytest asks for tests of all folders
        return (yield)
    with GUARD.watching(item.nodeid):
        return (yield)


@pytest.fixture(autouse=True)
def nothing_was_refused() -> Iterator[None]:
    """What the code under test swallowed, or a thread of it met, fails the test all the same."""
    yield
    if refused := GUARD.take():
        pytest.fail("\n".join(refused), pytrace=False)
