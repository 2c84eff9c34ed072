"""`kquota run`: the parts put together, started in order and stopped in order."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
import trio
from prometheus_client.core import Metric

from config.load import load_bytes, warnings_of
from config.model import Config
from config.parts import Fingerprint, fingerprint
from config.problems import refused
from config.settings import new_ledger, proxy_settings
from config.types import HostPort
from proxy.app.admin.app import AdminApp, not_ready
from proxy.app.admin.guard import Hosts
from proxy.app.admin.history import History
from proxy.app.admin.server import AdminServer
from proxy.app.common import logs
from proxy.app.common.gc_tuning import give_back, in_steps, is_computing, settle, share_fairly
from proxy.app.common.start import HANDLED, release
from proxy.app.common.version import kquota_version
from proxy.app.export.exporter import new_exporter, place_of
from proxy.app.fleet.member import Member, new_member
from proxy.app.metrics import own
from proxy.app.metrics.gather import Exposition
from proxy.app.sources.known_ports import keep_ports, ports_before
from proxy.app.sources.quota_cluster import ClusterSource
from proxy.app.sources.quota_file import FileSource
from proxy.app.sources.quota_source import QuotaSource
from proxy.app.sources.security import load_security
from proxy.app.sources.watch import ReloadState, Watcher
from proxy.app.throttle_log import ThrottleLog
from proxy.core.errors import CloseReason
from proxy.core.interceptors.intercept import Interceptors
from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.interceptors.quota_admin import QuotaAdmin
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from proxy.net.io import host
from proxy.net.io.loop import EventLoop
from proxy.net.listen.listeners import bind
from proxy.net.listen.server import Proxy
from proxy.net.listen.spare_fd import raise_limit
from proxy.net.tls import channel
from quota import compiled
from quota.entity import Kind
from quota.table import QuotaTable

log = structlog.get_logger("kquota")

EXPIRE_INTERVAL_S: Final = 60.0
WARN_INTERVAL_S: Final = 60.0


def read(path: Path) -> tuple[Config, Fingerprint]:
    """The configuration and its file's fingerprint. Raises ConfigError."""
    found = fingerprint(path)
    if found.data is None:
        raise refused(str(path), f"cannot be read: {found.error}")
    return load_bytes(str(path), found.data), found


def now_ms() -> float:
    """The data path's clock: monotonic milliseconds."""
    return trio.current_time() * 1000.0


class Sidecar:
    """The parts of one running sidecar, for code that inspects it: tests, the demo."""

    def __init__(self, path: Path, config: Config, found: Fingerprint, loop: EventLoop | None = None) -> None:
        self.path = path
        self.config = config
        self.security = load_security(config)
        self.source = self._source_of(path, config)
        self.ledger = new_ledger(config, self.source.table)
        self.source.swap = self.ledger.swap
        self.ledger.when_grown(gc.freeze)  # no collection visits accounts: 20 000 of them would take 50 ms
        self.ledger.counters.on_overflow = self._overflowed
        self.member: Member | None = None
        """The fleet's member, while the sidecar runs; created in `serve`, inside the event loop, for its clock."""
        self._overflow_logged_s = -math.inf
        quota_admin = QuotaAdmin(self.source)
        interceptors: Interceptors = {
            DESCRIBE_CLIENT_QUOTAS: quota_admin,
            ALTER_CLIENT_QUOTAS: quota_admin,
            **dict.fromkeys(MUTATION_APIS, MutationQuota(self.ledger)),
        }
        reserved = None if config.fleet is None else ReservedTopic(config.fleet.topic, interceptors, self._topic_id)
        self.proxy = Proxy(
            proxy_settings(config, **self.security.settings),
            self.ledger,
            interceptors=interceptors if reserved is None else reserved.interceptors,
            reserved=reserved,
            loop=loop,
            known_ports=ports_before(config.listen.state_file),
        )
        self.history = History(self.ledger, self.proxy.counters)
        self.reloads = ReloadState()
        self.exporter = new_exporter(config, self.ledger, kquota_version(), security=self.security.producer_settings)
        self._alterations, self._reserved = quota_admin.requests, reserved
        self.metrics = Exposition(self.ledger, self.proxy.counters, config.metrics.max_groups, self._own_families)
        self.watcher = Watcher(path, config, found, self.reloads, self._apply)
        self.admin_port: int | None = None
        """The port of the admin listener: the one that `run` was given, if any, and once bound the real one."""
        self.interrupted = False

    def _source_of(self, path: Path, config: Config) -> QuotaSource:
        if config.quota_settings.source == "file":
            return FileSource(path.absolute(), config)
        return ClusterSource(
            config, lambda: [*config.upstream.bootstrap, *self.proxy.cluster.addresses()], self.security.upstream_tls
        )

    @property
    def port(self) -> int:
        """The real bootstrap port."""
        return self.proxy.port

    def _topic_id(self) -> bytes | None:
        return None if self.member is None else self.member.exchange.topic_id

    def drain(self) -> None:
        """Stop accepting, let requests in flight finish, then end."""
        if self.member is not None:
            self.member.leave()
        self.proxy.drain()

    def _own_families(self) -> Iterator[Metric]:
        yield from own.source_families(self.source.state, self._alterations)
        if self.exporter is not None:
            yield from own.export_families(self.exporter)
        yield from own.broker_families(self.proxy)
        yield from own.security_families(self.security, self.proxy.counters)
        yield from own.fleet_families(self.member, self._reserved, self.config.metrics.max_groups)
        ready = not not_ready(self.proxy, self.source)
        yield from own.own_families(self.proxy, self.reloads, self.ledger, ready=ready)

    def _about(self) -> dict[str, Any]:
        names = place_of(self.config.export, os.environ)
        names["cluster_id"] = names["cluster_id"] or ", ".join(map(str, self.config.upstream.bootstrap[:1])) or None
        loaded = datetime.fromtimestamp(self.reloads.success_at_s, UTC).isoformat(timespec="seconds")
        return {"version": kquota_version(), "mode": self.config.mode, **names, "config_loaded": loaded}

    async def _apply(self, config: Config, table: QuotaTable) -> None:
        await self.source.reload(config, table)
        logs.configure(config.log.level, config.log.format)
        await trio.to_thread.run_sync(give_back)

    async def serve(
        self, *, handle_signals: bool, task_status: trio.TaskStatus[Sidecar] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until drained. Raises OSError (perhaps inside exception groups) when a port cannot be bound."""
        config = self.config
        scope: AbstractContextManager[AsyncIterator[int] | None]
        scope = trio.open_signal_receiver(*HANDLED) if handle_signals else nullcontext()
        with scope as signals:
            if signals is not None:
                release()
            async with trio.open_nursery() as nursery:
                if config.admin is not None:
                    listener = bind(config.admin.host, self.admin_port or config.admin.port, " (admin)")
                    self.admin_port = int(listener.getsockname()[1])
                    own = (socket.gethostname(), os.environ.get("KQUOTA_POD_NAME", ""), config.admin.host)
                    hosts = Hosts(config.admin.allowed_hosts, own)
                    app = AdminApp(
                        self.ledger, self.proxy, self.metrics, now_ms, self.source, self.history, hosts, self._about
                    )
                    nursery.start_soon(AdminServer(listener, app.asgi, on_evict=self._evicted).serve)
                if signals is not None:
                    nursery.start_soon(self._handle_signals, signals, nursery.cancel_scope)
                nursery.start_soon(self._work, nursery.cancel_scope, task_status)

    async def _work(self, scope: trio.CancelScope, task_status: trio.TaskStatus[Sidecar]) -> None:
        """The proxy and its helpers; the admin port outlives them, so that probes see the drain."""
        async with trio.open_nursery() as helpers:
            self.member = new_member(self.config, self.ledger, self.security, now_ms)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.proxy.serve)
                helpers.start_soon(self.watcher.run)
                helpers.start_soon(self.security.follower.run)
                helpers.start_soon(self.source.run)
                helpers.start_soon(self._expire)
                helpers.start_soon(ThrottleLog(self.ledger).run)
                if self.config.listen.state_file is not None:
                    helpers.start_soon(keep_ports, Path(self.config.listen.state_file), self.proxy)
                if self.exporter is not None:
                    helpers.start_soon(self.exporter.run)
                if self.member is not None:
                    helpers.start_soon(self.member.run)
                if self.config.admin is not None:
                    helpers.start_soon(self.history.run)
                admin, port = self.config.admin, self.admin_port
                log.info(
                    "kquota is up",
                    version=kquota_version(),
                    data_path=compiled.description(),
                    **({"tls": channel.DESCRIPTION} if self.security.sides else {}),
                    port=self.port,
                    admin=None if admin is None or port is None else f"http://{HostPort(admin.host, port)}",
                    config=str(self.path),
                )
                task_status.started(self)
            if self.exporter is not None:
                await self.exporter.finish()
            if self.member is not None:
                await self.member.finish()
            helpers.cancel_scope.cancel()
        if count := self.proxy.counters.connections.closed[CloseReason.DRAIN_TIMEOUT]:
            log.warning("connections closed with requests in flight", count=count)
        log.info("stopped")
        scope.cancel()

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_INTERVAL_S)
            try:
                forgotten = await self.metrics.expire(now_ms())
            except Exception:  # housekeeping must not end the traffic
                log.exception("idle clients not dropped: internal error")
                continue
            if forgotten:
                log.debug("dropped idle clients and groups", count=forgotten)

    async def _handle_signals(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        drained = False
        async for number in signals:
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                log.info("reloading", signal=name)
                self.watcher.force()
            elif not drained:
                drained = True
                log.info("shutting down, requests in flight may finish", signal=name)
                self.drain()
            else:
                log.warning("shutting down at once", signal=name)
                self.interrupted = True
                scope.cancel()

    def _overflowed(self, kind: Kind) -> None:
        now_s = trio.current_time()
        if now_s - self._overflow_logged_s >= WARN_INTERVAL_S:
            self._overflow_logged_s = now_s
            log.warning(
                "more clients than limits.max_clients: new ones share one counter per quota entry",
                kind=kind.value,
                max_clients=self.config.limits.max_clients,
            )

    def _evicted(self) -> None:
        self.metrics.admin_evicted += 1


async def run_sidecar(
    config_path: Path | str,
    *,
    handle_signals: bool = False,
    loaded: tuple[Config, Fingerprint] | None = None,
    loop: EventLoop | None = None,
    admin_port: int | None = None,
    task_status: trio.TaskStatus[Sidecar] = trio.TASK_STATUS_IGNORED,
) -> Sidecar:
    """Run a sidecar until it is drained; `task_status` gets it once its ports are bound. `loaded`: the result of
    `read`; `loop`: the host of trio's run (`proxy.net.io.host`). Raises ConfigError, and OSError (perhaps inside
    exception groups) when a port cannot be bound or a file cannot be used."""
    config, found = loaded or read(Path(config_path))
    sidecar = Sidecar(Path(config_path), config, found, loop)
    sidecar.admin_port = admin_port
    for warning in warnings_of(config):
        log.warning("configuration warning", warning=str(warning))
    for side in sidecar.security.sides:
        if side.not_valid is not None:
            log.warning("certificate not valid", setting=f"{side.setting}.certificate_file", error=side.not_valid)
    config.forget_file()
    await sidecar.serve(handle_signals=handle_signals, task_status=task_status)
    return sidecar


class _SettleWhenUp:
    """Tunes the garbage collector when the ports are bound and the start is over."""

    def started(self, value: Sidecar | None = None) -> None:
        settle()


def main(path: Path, admin_port: int | None = None) -> int:
    """`kquota run`: 0 after a drain, 1 if it cannot run; `admin_port` replaces the file's. Raises ConfigError."""
    share_fairly()
    with in_steps():
        loaded = read(path)
    logs.configure(loaded[0].log.level, loaded[0].log.format)
    if raised := raise_limit():
        log.info("limit of open files raised", before=raised[0], now=raised[1])

    loop = EventLoop()

    async def go() -> Sidecar:
        up = _SettleWhenUp()
        return await run_sidecar(
            path, handle_signals=True, loaded=loaded, loop=loop, admin_port=admin_port, task_status=up
        )

    try:
        sidecar = host.run(go, loop)
    except (OSError, BaseExceptionGroup) as error:
        reasons = list(_os_errors(error))
        if not reasons:
            raise
        for reason in reasons:
            log.error("cannot run", error=reason)
        return 1
    code = 1 if sidecar.interrupted else 0
    # A file is being loaded, and its values are no longer needed; or kafka-python would wait for records at its exit.
    if is_computing() or (sidecar.exporter is not None and sidecar.exporter.delivering):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _os_errors(error: BaseException) -> Iterable[str]:
    """The messages of OSErrors in an error; nothing if it contains any other error, which is a bug and must be seen."""
    if isinstance(error, BaseExceptionGroup):
        parts = [list(_os_errors(inner)) for inner in error.exceptions]
        return [text for part in parts for text in part] if all(parts) else []
    return [error.strerror or str(error)] if isinstance(error, OSError) else []
