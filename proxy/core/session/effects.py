"""What a session wants after an event: every door of `proxy.core.session.session` fills one `Effects`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from proxy.core.session.outgoing import Outgoing

if TYPE_CHECKING:
    from proxy.core.auth.sasl import Login
    from proxy.core.errors import CloseReason, SessionError
    from proxy.core.interceptors.intercept import Wait

NEVER: Final = inf
_NEVER: Final = NEVER


class Effects:
    """One for all sessions of an event loop. It holds, and the views in it, until the next door of any of them is used.

    The shell carries it out in the order of the attributes below.
    """

    def __init__(self) -> None:
        self.to_broker = Outgoing()
        self.to_client = Outgoing()
        self.begin()

    def begin(self) -> None:
        """A door is used: forget what the last one wanted."""
        up, down = self.to_broker, self.to_client
        up.start = up.end = down.start = down.end = 0
        up.buffers = down.buffers = None
        self.identified: Login | None = None
        """A login that the broker has accepted: find its user before anything is sent, then call `on_identity`."""
        self.connect = False
        """Dial the broker, keep `to_broker` until then, and call `on_connected`."""
        self.ask: Wait | None = None
        """Start this; call `on_decision` with what it decides."""
        self.read_client = False
        """More may be read from the client."""
        self.read_broker = True
        """More may be read from the broker."""
        self.splice_up = self.splice_down = 0
        """So many of the next bytes from the client, and from the broker, may be moved unseen. Those that were are
        reported by `on_client_moved` and `on_broker_moved`."""
        self.more = False
        """Not everything has been done: call `on_turn`, after others have been served."""
        self.yields = False
        """This door took a whole turn: serve others before the next one."""
        self.wake_at_ms = _NEVER
        """Call `on_deadline` at this time."""
        self.ended: CloseReason | None = None
        """Close the connection for this reason once all that is above has been sent."""
        self.close: SessionError | None = None
        """Close it at once: what either side sent, or a fault of ours, ends it."""
