"""All orders in which three instances of a fleet may act, within bounds: what they hold never exceeds the capacity.

Explicit-state search, breadth first, over the real `Claim` and the real split; the rest is as in `quota.fleet.core`. An
instance reads any part of what it has not read, then publishes; or it stops at a record of its own. A record may be
lost, overtaken, or repeated; a reader may miss one; instances are stopped, killed and started, and demand changes.
Time is not modelled: whoever was killed is never forgotten, and a newcomer claims once it has heard all that publish.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from quota.fleet.claim import Claim, exact
from quota.fleet.split import CAPACITY, grant_of

DEMANDS = 0.125, 1.0


class Record(NamedTuple):
    """One record of the partition. A negative demand: its writer leaves."""

    member: int
    seq: int
    held: float
    claim: float
    demand: float


class Seen(NamedTuple):
    """A member's last record, as a reader has it."""

    member: int
    seq: int
    bound: float
    demand: float


class Node(NamedTuple):
    member: int
    demand: float
    held: float
    back: float | None
    sent: tuple[tuple[int, float], ...]
    view: tuple[Seen, ...]
    at: int  # how much of the log it has read
    seq: int


class State(NamedTuple):
    """The fleet, and what may still go wrong."""

    nodes: tuple[Node, ...]
    log: tuple[Record, ...]
    late: tuple[Record, ...]
    losses: int  # records that may still be lost, overtaken, repeated or missed
    restarts: int
    changes: int


@dataclass(frozen=True)
class Bounds:
    """How far the search goes."""

    actions: int = 8
    records: int = 4
    """Of one instance. All have read each other's first one when the search begins, and want more since."""
    losses: int = 1
    restarts: int = 1
    changes: int = 1


SEARCHES = {
    "no faults": Bounds(actions=8, records=3, losses=0, restarts=0, changes=0),
    "demand changes": Bounds(actions=6, losses=0, restarts=0),
    "one restart": Bounds(actions=6, losses=0, changes=0),
    "one loss": Bounds(actions=7, records=3, restarts=0, changes=0),
}
"""What `make world WORLD_ARGS=--search` explores."""


class ExceededError(Exception):
    """More than the capacity is held; the message has the way there."""


def search(bounds: Bounds, claim_type: type[Claim] = Claim) -> int:
    """How many states there are within the bounds. Raises ExceededError."""
    heard = [Seen(member, 0, 0.0, DEMANDS[0]) for member in range(3)]
    others = [tuple([seen for seen in heard if seen.member != one]) for one in range(3)]
    nodes = tuple([Node(one, DEMANDS[1], 0.0, 0.0, (), others[one], 0, 1) for one in range(3)])
    first = State(nodes, (), (), bounds.losses, bounds.restarts, bounds.changes)
    seen = {first}
    layer = {first: ""}
    for _ in range(bounds.actions):
        following: dict[State, str] = {}
        for state, way in layer.items():
            for name, after in _actions(state, bounds, claim_type):
                held = sum(node.held for node in after.nodes)
                if held > CAPACITY:
                    raise ExceededError(f"{held:.4f} is held after{way}{name}")
                after = _forgotten(after)
                if after not in seen:
                    seen.add(after)
                    following[after] = way + name
        layer = following
    return len(seen)


def _forgotten(state: State) -> State:
    """The same without the records that all have read."""
    least = min(node.at for node in state.nodes)
    if not least:
        return state
    nodes = tuple([node._replace(at=node.at - least) for node in state.nodes])
    return state._replace(nodes=nodes, log=state.log[least:])


def _actions(state: State, bounds: Bounds, claim_type: type[Claim]) -> Iterator[tuple[str, State]]:
    for number, record in enumerate(state.late):
        left = state.late[:number] + state.late[number + 1 :]
        yield f" late{record[:2]}", state._replace(log=(*state.log, record), late=left)
    for place, node in enumerate(state.nodes):
        for name, read, losses in _reads(state, node, claim_type):
            here = state._replace(nodes=_put(state.nodes, place, read), losses=losses)
            # Others' records may as well be read just before the next one is published: they only lower what is held.
            if read is not node and (losses < state.losses or state.log[read.at - 1].member == node.member):
                yield name, here
            if read.seq < bounds.records:
                after, record = _publish(here, read, claim_type)
                here = here._replace(nodes=_put(state.nodes, place, after))
                said = f"{name} {node.member}:{record.held:.2f}>{record.claim:.2f}"
                yield said, here._replace(log=(*here.log, record))
                if losses:
                    fewer = here._replace(losses=losses - 1)
                    yield said + "lost", fewer
                    yield said + "late", fewer._replace(late=(*here.late, record))
                    yield said + "twice", fewer._replace(log=(*here.log, record), late=(*here.late, record))
        if state.changes:
            other = node._replace(demand=DEMANDS[node.demand == DEMANDS[0]])
            yield (
                f" {node.member}:wants",
                state._replace(nodes=_put(state.nodes, place, other), changes=state.changes - 1),
            )
        if state.restarts and node.seq:
            new = Node(node.member + 3, node.demand, 0.0, None, (), (), len(state.log), 0)
            killed = state._replace(nodes=_put(state.nodes, place, new), restarts=state.restarts - 1)
            yield f" {node.member}:killed", killed
            end = Record(node.member, node.seq, 0.0, 0.0, -1.0)
            yield f" {node.member}:ends", killed._replace(log=(*state.log, end))


def _put(nodes: tuple[Node, ...], place: int, node: Node) -> tuple[Node, ...]:
    return (*nodes[:place], node, *nodes[place + 1 :])


def _reads(state: State, node: Node, claim_type: type[Claim]) -> Iterator[tuple[str, Node, int]]:
    """The node after it has read nothing, one record more, and so on; or one that it missed."""
    yield "", node, state.losses
    name, missed = "", []
    for record in islice(state.log, node.at, None):
        if state.losses and record.member != node.member:
            missed.append((f"{name} {node.member}misses", node._replace(at=node.at + 1)))
        node = _take(node, record, claim_type)
        name += f" {node.member}reads{record.member}"
        yield name, node, state.losses
    for name, node in missed:
        yield name, node, state.losses - 1


def _take(node: Node, record: Record, claim_type: type[Claim]) -> Node:
    """One record is read (`Fleet.read`, `View.take`, `Fleet.came_back`)."""
    node = node._replace(at=node.at + 1)
    if record.member == node.member:
        claim = _claim(node, claim_type)
        claim.came_back(record.seq, CAPACITY - sum([seen.bound for seen in node.view]))
        return _with(node, claim)
    before = next((seen for seen in node.view if seen.member == record.member), None)
    if before is not None and before.seq >= record.seq:
        return node
    bound = max(record.held, record.claim)
    view = (*[seen for seen in node.view if seen is not before], Seen(record.member, record.seq, bound, record.demand))
    node = node._replace(view=tuple(sorted(view)))
    if record.demand < 0:
        node = node._replace(view=tuple([seen for seen in node.view if seen.member != record.member]))
    claim = _claim(node, claim_type)  # `Fleet._settle_for_less`
    claim.lower(_target(node))
    return _with(node, claim)


def _publish(state: State, node: Node, claim_type: type[Claim]) -> tuple[Node, Record]:
    """The next record (`Fleet._use`)."""
    claim = _claim(node, claim_type)
    claim.lower(_target(node))
    room = CAPACITY - sum([seen.bound for seen in node.view])
    wanted = exact(min(_target(node), max(room, claim.held)))
    heard = {seen.member for seen in node.view}
    if any(one.seq and one.member not in heard for one in state.nodes if one.member != node.member):
        wanted = claim.held
    claim.sent(node.seq, wanted)
    record = Record(node.member, node.seq, claim.held, wanted, node.demand)
    return _with(node, claim)._replace(seq=node.seq + 1), record


def _target(node: Node) -> float:
    return grant_of(node.demand, [seen.demand for seen in node.view])


def _claim(node: Node, claim_type: type[Claim]) -> Claim:
    claim = claim_type()
    claim.held, claim._back = node.held, node.back
    claim._sent.extend(node.sent)
    return claim


def _with(node: Node, claim: Claim) -> Node:
    return node._replace(held=claim.held, back=claim._back, sent=tuple(claim._sent))
