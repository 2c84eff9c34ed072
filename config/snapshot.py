"""What `kquota ui` uses of a sidecar's `/snapshot`, which may come from another program or version: one that is wrong
must not hide the others."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from config.visible import visible


class _Part(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class _Fleet(_Part):
    share: float
    why: str


class _Delayed(_Part):
    since: str
    earlier: bool
    last_minute: float


class _Trial(_Part):
    limit: float | None
    utilisation: float | None
    throttled: int


class _Counter(_Part):
    kind: str
    user: str | None
    client_id: str | None
    limit: float | None
    level: str | None
    observed: float


class _Quota(_Counter):
    mode: str | None
    utilisation: float | None
    throttled_for_ms: float
    owed_ms: float
    delayed: _Delayed | None
    waiting: int
    paced: bool
    fleet: _Fleet | None
    shadow: _Trial | None
    candidate: _Trial | None


class _Standing(_Part):
    muted_ms: float
    wait_ms: float
    share: float
    paced: bool
    delayed: _Delayed | None
    debt_ms: float
    waiting: int
    next_ms: float
    fleet: _Fleet | None


class _Throttled(_Counter):
    setting: str
    set_in: str | None
    now: _Standing


class _Decision(_Part):
    at: str
    kind: str
    user: str
    client_id: str
    api: str | None
    delay_ms: float
    why: str


class _Connection(_Part):
    peer: str
    broker: str
    user: str
    client_ids: list[str]
    software: str | None
    in_flight: int
    muted_for_ms: float
    client_bytes: float
    broker_bytes: float
    idle_s: float
    waiting_for: str | None
    waited_ms: float


class _Library(_Part):
    library: str
    version: str
    mutes: int
    mute_ms: float
    ignored: int
    ignored_ms: float


class _Quotas(_Part):
    groups: list[_Quota]
    total: int


class _AllThrottled(_Part):
    throttled: list[_Throttled]
    decisions: list[_Decision]
    total: int


class _Connections(_Part):
    connections: list[_Connection]
    states: dict[str, int]
    total: int


class _Libraries(_Part):
    libraries: list[_Library]


class _About(_Part):
    version: str
    config_loaded: str


class _Snapshot(_Part):
    sidecar: _About
    not_ready: list[str]
    quotas: _Quotas
    throttled: _AllThrottled
    connections: _Connections
    libraries: _Libraries


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, without what the page does not use. Raises OSError."""
    try:
        return _Snapshot.model_validate(answer).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise OSError(
            visible(f"unexpected answer, {place}: {first['msg']}; is this a kquota of this version?")
        ) from None
