"""One connection pair as a state machine, without I/O: frames, both directions, requests in flight, logins."""

from quota.compiled import activate

activate(__path__, __name__)
