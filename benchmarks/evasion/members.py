"""A connection of an attacker that the sidecar takes for one of a group's member."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections import deque

from benchmarks.evasion import frames
from benchmarks.evasion.rows import Member
from benchmarks.evasion.wire import RefusedError, Wire

FORGED_SESSION_MS, SESSION_MS = 1, 6000
"""A broker refuses the first; the second is the shortest that it accepts by default."""
BEATS = 10
JOIN_TIMEOUT_S = 60.0


class MemberWire(Wire):
    """Sends the requests of a member around each frame. Their answers are read and not shown."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._before = self._behind = b""
        self._around = (0, 0)
        """How many requests these are."""
        self._shown: deque[bool] = deque()
        """Which of the answers to come are shown."""

    async def join(self, member: Member, group: str, topic: str, client_id: str) -> None:
        """Be such a member from now on. Raises RefusedError if the group does not let it join."""
        forged = frames.join_group(group, FORGED_SESSION_MS, client_id)
        match member:
            case "joins":
                self._before, self._around = forged, (1, 0)
            case "beats":
                self._before, self._around = BEATS * frames.heartbeat(group, 1, "nobody", client_id), (BEATS, 0)
            case "consumer":
                name = str(uuid.uuid4())
                self._before = frames.consumer_heartbeat(f"{group}-new", name, topic, client_id)
                self._around = (1, 0)
            case "member":
                own = f"{group}-{uuid.uuid4()}"
                generation, name = await self._join(own, client_id)
                self._before, self._around = frames.heartbeat(own, generation, name, client_id), (1, 0)
            case "leaves":
                self._before, self._behind = forged, frames.leave_group(group, "nobody", client_id)
                self._around = (1, 1)

    async def _join(self, group: str, client_id: str) -> tuple[int, str]:
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            error, generation, name = frames.joined(await self.ask(frames.join_group(group, SESSION_MS, client_id)))
            if error:
                raise RefusedError(f"JoinGroup: error {error}")
            await self.ask(frames.sync_group(group, generation, name, client_id))
        return generation, name

    async def send(self, frame: bytes) -> None:
        """With the requests around it."""
        before, behind = self._around
        self._shown.extend((*[False] * before, True, *[False] * behind))
        await super().send(self._before + frame + self._behind)

    async def answer(self) -> bytes:
        """The next one that is shown."""
        while not self._shown.popleft():
            await super().answer()
        return await super().answer()
