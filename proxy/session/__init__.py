"""One connection pair as a state machine, without I/O: frames, both directions, requests in flight, logins."""
