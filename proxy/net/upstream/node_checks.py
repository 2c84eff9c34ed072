"""Whether the broker at an address is the one that is dialled there (KIP-1242): where addresses are used again (pods, a
name that is pointed elsewhere), a connection to broker 1 may reach another broker, or another cluster, which takes the
records. Brokers from 4.4 on say which one they are not, when they are asked by ApiVersions 5.

The question has a connection of its own, made while the client's is. A broker with SASL looks at the ids only after a
login (seen with 4.4.0): the sidecar has to log in itself. Where it may not, it does not know the cluster's id either,
and nothing is asked."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio

from proxy.core.errors import UpstreamError
from proxy.net.upstream.cluster import Access, ClusterError, Node, OtherNodeError, check_node
from proxy.net.upstream.dial import Dialer

log = structlog.get_logger("kquota.proxy")

FRESH_S: Final = 5.0
"""How long an answer holds, unless a broker ends a connection: another one at its address needs longer to start."""
ASK_AGAIN_S: Final = 600.0
"""How long a broker that does not know is not asked again: it may be upgraded. Also once it could not be reached."""
LIMIT_S: Final = 2.0
"""How long an answer is waited for; then the connection is used without one."""
MAX_NODES: Final = 1000


class OtherBrokerError(UpstreamError):
    """The broker at the address is not the one that was dialled."""


class NodeChecks:
    """One for each sidecar."""

    def __init__(self, access: Access, dialer: Dialer, known: Callable[[], list[int]]) -> None:
        """`known()`: all node ids, another of which may be found at an address."""
        self._access = access._replace(timeout_s=LIMIT_S)
        self._dialer, self._counters = dialer, dialer.counters
        self._known = known
        self.cluster_id: str | None = None
        """The cluster's id, once it is known; before, nothing is asked."""
        self._until: dict[int, tuple[str, int, float, bool]] = {}
        """Node id -> its address, which need not be asked before this time, and whether it has confirmed the id."""
        self._under_way: dict[tuple[Node, str, int], _Check] = {}
        self._logged: dict[int, tuple[str, int, int | None]] = {}

    async def dial(self, node_id: int, host: str, port: int) -> socket.socket:
        """Dial this broker's address, and ask who is there at the same time, unless it was asked recently. Raises
        UpstreamError."""
        if not self._due(node_id, host, port):
            try:
                return await self._dialer.dial(host, port)
            except UpstreamError:
                self._until.pop(node_id, None)  # what is known of it is out of date
                raise
        check = self._asked(node_id, host, port)
        broker = await self._dialer.dial(host, port)
        try:
            await check.done.wait()
            if check.error is not None:
                raise OtherBrokerError(str(check.error))
        except BaseException:
            broker.close()
            raise
        return broker

    def suspect(self) -> None:
        """A broker has ended a connection: what brokers have confirmed may hold no longer."""
        self._until = {node_id: known for node_id, known in self._until.items() if not known[3]}

    def _due(self, node_id: int, host: str, port: int) -> bool:
        known = self._until.get(node_id)
        fresh = known is not None and known[:2] == (host, port) and trio.current_time() < known[2]
        return self.cluster_id is not None and not fresh

    def _asked(self, node_id: int, host: str, port: int) -> _Check:
        """The question under way, one for all that wait for it. Without an answer it has no error."""
        assert self.cluster_id is not None
        key = (Node(self.cluster_id, node_id), host, port)
        check = self._under_way.get(key)
        if check is None:
            check = self._under_way[key] = _Check()
            others = [number for number in self._known() if number != node_id]
            trio.lowlevel.spawn_system_task(self._run, key, others, check)  # no client that leaves ends it
        return check

    async def _run(self, key: tuple[Node, str, int], others: list[int], check: _Check) -> None:
        node, host, port = key
        result, holds_s = "unanswered", 0.0
        try:
            if await check_node(host, port, self._access, node, others):
                result, holds_s = "same", FRESH_S
                self._logged.pop(node.node_id, None)
            else:
                result, holds_s = "unknown", ASK_AGAIN_S
        except OtherNodeError as error:
            result, check.error = "other", error
            self._log(node, host, port, error)
        except ClusterError as error:
            log.debug("broker did not answer the identity check", broker=node.node_id, error=str(error))
        except Exception:  # an internal error must not end the traffic
            log.exception("check of a broker failed: internal error")
        finally:
            self._counters.node_checks[result] += 1
            self._note(node.node_id, host, port, holds_s, same=result == "same")
            del self._under_way[key]
            check.done.set()

    def _note(self, node_id: int, host: str, port: int, holds_s: float, *, same: bool) -> None:
        if len(self._until) >= MAX_NODES:  # ids may grow indefinitely
            self._until.clear()
            self._logged.clear()
        self._until[node_id] = (host, port, trio.current_time() + holds_s, same)

    def _log(self, node: Node, host: str, port: int, error: OtherNodeError) -> None:
        seen = (host, port, error.found)
        if self._logged.get(node.node_id) != seen:
            self._logged[node.node_id] = seen
            log.warning(
                "a broker's address leads to another broker: not used, asking the cluster again",
                broker=node.node_id,
                found="unknown, or of another cluster" if error.found is None else error.found,
                address=f"{host}:{port}",
                cluster_id=node.cluster_id,
            )


class _Check:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: OtherNodeError | None = None
