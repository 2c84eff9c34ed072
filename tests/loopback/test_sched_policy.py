"""While only the rest of large responses is to come, the event loop's thread interrupts no other; else as ever."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable

import pytest
import trio
from structlog.testing import capture_logs

from proxy.net.io import sched_policy
from proxy.net.io.reactor import take
from proxy.net.io.sched_policy import QUIET_S, SchedPolicy
from tests.loopback.test_reactor import Reader, in_trio, pair, serving
from tests.support.scripted_broker import proxy_before
from tests.support.session_tools import FETCH, fetch_body, produce, produce_response, request, response

LARGE_BYTES = 8_000_000
PART_BYTES = 4_000
"""A large response comes in many of these; each wakes the event loop."""
MAX_PARTS = 1_500
LIMIT_S = 15.0
STEP_S = 0.005


class Kernel:
    """Notes which policies it was asked for; refuses them if told to."""

    def __init__(self, policy: int = os.SCHED_OTHER) -> None:
        self.policy = policy
        self.asked: list[int] = []
        self.error: OSError | None = None

    def set_policy(self, policy: int) -> None:
        self.asked.append(policy)
        if self.error is not None:
            raise self.error
        self.policy = policy

    def sched_policy(self) -> SchedPolicy:
        return SchedPolicy(self.set_policy, lambda: self.policy)


def test_gives_way_only_while_large_rests_are_to_come() -> None:
    kernel = Kernel()
    polite = kernel.sched_policy()
    polite.before_wait(1.0)
    assert kernel.asked == []  # nothing large is under way
    polite.halfway = 2
    polite.quick_s = 1.0
    polite.before_wait(1.0 + 0.9 * QUIET_S)
    assert kernel.asked == []  # a small request came a moment ago
    polite.before_wait(1.01 + QUIET_S)
    polite.before_wait(1.02 + QUIET_S)
    assert kernel.asked == [os.SCHED_BATCH]  # asked once, not for each wait
    polite.quick_s = 1.03 + QUIET_S
    polite.before_wait(1.03 + QUIET_S)
    assert kernel.asked == [os.SCHED_BATCH, os.SCHED_OTHER]
    polite.before_wait(9.0)
    polite.halfway = 0
    polite.before_wait(9.1)
    assert kernel.asked == [os.SCHED_BATCH, os.SCHED_OTHER] * 2


@pytest.mark.parametrize("policy", [os.SCHED_BATCH, os.SCHED_IDLE, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK])
def test_a_policy_that_was_chosen_stays(policy: int) -> None:
    kernel = Kernel(policy)
    polite = kernel.sched_policy()
    polite.halfway = 1
    polite.before_wait(1.0)
    assert (kernel.asked, polite.gives_way) == ([], False)


def test_says_once_that_the_kernel_refuses_the_policy() -> None:
    kernel = Kernel()
    kernel.error = OSError(errno.EPERM, "Operation not permitted")
    polite = kernel.sched_policy()
    polite.halfway = 1
    with capture_logs() as logs:
        polite.before_wait(1.0)
        polite.before_wait(2.0)
    assert (kernel.asked, polite.gives_way) == ([os.SCHED_BATCH], False)
    (line,) = logs
    assert "cannot set the scheduling policy" in line["event"]
    assert "Operation not permitted" in line["error"]


def test_a_kernel_that_does_not_tell_is_left_alone() -> None:
    kernel = Kernel()

    def unknown() -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    polite = SchedPolicy(kernel.set_policy, unknown)
    polite.halfway = 1
    polite.before_wait(1.0)
    assert kernel.asked == []


def test_kernel_changes_policy_of_an_ordinary_thread() -> None:
    seen: list[int] = []

    def change() -> None:
        polite = SchedPolicy()
        for wanted in (True, False):
            polite.give_way(wanted)
            seen.append(sched_policy.policy_now())

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert seen == [os.SCHED_BATCH, os.SCHED_OTHER]


class Broker:
    """Answers a fetch with a large response, in small parts until the event loop gives way."""

    def __init__(self, listener: socket.socket, policy: Callable[[], int]) -> None:
        self.listener = listener
        self.policy = policy
        self.token = trio.lowlevel.current_trio_token()
        self.seen: list[int] = []
        """The event loop's policy after each part."""
        self.of_tasks: int | None = None
        """What a task of the event loop found while it gave way otherwise."""

    def serve(self) -> None:
        self.listener.settimeout(LIMIT_S)
        while True:
            peer, _ = self.listener.accept()
            with peer:
                peer.settimeout(LIMIT_S)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                head = peer.recv(4096)
                if head[4:6] == b"\0\1":
                    self.answer(peer)
                    return  # whatever else was connected was the sidecar's own question

    def answer(self, peer: socket.socket) -> None:
        """A large response, then a small one."""
        data = response(FETCH, 11, 1, bytes(LARGE_BYTES))
        at = 0
        while at < MAX_PARTS * PART_BYTES:
            peer.sendall(data[at : at + PART_BYTES])
            at += PART_BYTES
            self.seen.append(self.policy())
            if self.seen[-1] == os.SCHED_BATCH:
                self.of_tasks = trio.from_thread.run_sync(self.policy, trio_token=self.token)
                break
            threading.Event().wait(0.002)
        peer.sendall(data[at:])
        peer.recv(4096)
        peer.sendall(produce_response(2))
        peer.recv(1)


def client(port: int, policy: Callable[[], int]) -> int:
    """Fetches and produces through the sidecar; the policy of its thread after that."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.sendall(request(FETCH, 11, 1, fetch_body(11, partitions={0: 0})))
        left = len(response(FETCH, 11, 1, bytes(LARGE_BYTES)))
        while left:
            left -= len(connection.recv(left))
        connection.sendall(produce(2, 100))
        assert connection.recv(4096) == produce_response(2)
        return policy()


async def test_loop_gives_way_during_large_response_only() -> None:
    loop_thread = threading.get_native_id()

    def policy() -> int:
        return os.sched_getscheduler(loop_thread)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = Broker(listener, policy)
        thread = threading.Thread(target=broker.serve, daemon=True)
        thread.start()
        proxy = proxy_before(listener.getsockname()[:2], splice_min_bytes=32_768)
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(proxy.serve)
                afterwards = await trio.to_thread.run_sync(client, proxy.port, policy)
                await trio.to_thread.run_sync(thread.join)
                proxy.drain()
    assert broker.seen[0] == os.SCHED_OTHER  # the head was just there
    assert broker.seen[-1] == os.SCHED_BATCH, f"not within {len(broker.seen)} parts"
    assert (broker.of_tasks, afterwards, policy()) == (os.SCHED_OTHER,) * 3


def test_with_something_else_about_everything_is_as_usual() -> None:
    async def main() -> None:
        loop_thread = threading.get_native_id()
        async with trio.open_nursery() as nursery:
            with serving(nursery, nested=True) as reactor, pair() as (large, to_large), pair() as (small, to_small):
                readers = [Reader(sock, reactor.watch(sock)) for sock in (large, small)]
                for reader in readers:
                    nursery.start_soon(take, reader.watch, reader.turn)

                def drive() -> tuple[set[int], bool]:
                    """Both for twice the time after which the loop would give way, then the large one alone."""
                    with_both = set()
                    for _ in range(int(2 * QUIET_S / STEP_S)):
                        to_small.sendall(b"a request")
                        to_large.sendall(b"a part")
                        threading.Event().wait(STEP_S)
                        with_both.add(os.sched_getscheduler(loop_thread))
                    for _ in range(int(LIMIT_S / STEP_S)):
                        to_large.sendall(b"a part")
                        threading.Event().wait(STEP_S)
                        if os.sched_getscheduler(loop_thread) == os.SCHED_BATCH:
                            return with_both, True
                    return with_both, False

                await trio.sleep(0.01)
                readers[0].watch.expect_rest()
                readers[0].watch.expect_rest()  # once more changes nothing
                assert reactor.sched_policy.halfway == 1
                assert await trio.to_thread.run_sync(drive) == ({os.SCHED_OTHER}, True)
                for reader in readers:
                    reader.watch.close()  # in the middle of it
                assert reactor.sched_policy.halfway == 0
                nursery.cancel_scope.cancel()

    in_trio(main)
