"""`kquota webhook`: a mutating admission webhook that injects sidecars into pods, over HTTPS as Kubernetes requires.
Template and certificate may change at run time. When anything fails, the API server applies the webhook's failure
policy; nothing here turns an error into "allowed"."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from deploy.kubernetes import own_quotas
from deploy.kubernetes.cluster import ApiServerError, Cluster
from deploy.kubernetes.distribution import metadata_of, misunderstood
from deploy.kubernetes.distributor import Distributor
from deploy.kubernetes.own_certificate import Pair, keep, set_authority
from deploy.kubernetes.review import ReviewError, Template, answered, request_of, review
from proxy.app.common import logs
from proxy.app.sources.follow import Aside, StuckError
from proxy.net.files import in_memory, read_file
from proxy.net.listen.listeners import bind
from proxy.net.tls.contexts import MAX_PEM_BYTES

log = structlog.get_logger("kquota.webhook")

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""etcd stores objects of up to 1.5 MiB; a review contains up to two of them, and more."""
CERTIFICATE_POLL_S: Final = 5.0
TRUSTED_AFTER_S: Final = 3.0
"""After this time every API server uses the authority it was given: a certificate is not served before."""
TRUST_LIMIT_S: Final = 10.0
GRACE_S: Final = 5.0
RETRY_S: Final = 2.0
NO_ANSWER: Final = "API server request for the certificate failed, retrying"
MAX_TEMPLATE_BYTES: Final = 1024 * 1024
"""As much as a ConfigMap can hold."""


def read_template(path: Path) -> Template:
    """The template as its file is now. Raises OSError."""
    try:
        return Template.parse(read_file(path, MAX_TEMPLATE_BYTES))
    except ValueError as error:
        raise OSError(f"{path}: {error}") from error


def of_files(cert: Path, key: Path, authority: Path | None = None) -> Pair:
    """Certificate, key and authority as their files are now; there may be no file of an authority. Raises OSError."""
    trusted = None
    if authority is not None:
        with suppress(FileNotFoundError):
            trusted = read_file(authority, MAX_PEM_BYTES) or None
    return Pair(read_file(cert, MAX_PEM_BYTES), read_file(key, MAX_PEM_BYTES), trusted)


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Load exactly what was checked: OpenSSL reads files only, and could block on whatever has replaced them since."""
    with in_memory(pair.certificate) as certificate_path, in_memory(pair.key) as key_path:
        context.load_cert_chain(certificate_path, key_path)


class _Https(HypercornConfig):
    def __init__(self, context: ssl.SSLContext, host: str, port: int) -> None:
        super().__init__()
        self._context = context
        self.bind = [f"fd://{bind(host, port).detach()}"]
        self.graceful_timeout = GRACE_S
        self.include_server_header = False
        self.errorlog = None
        self.accesslog = None

    @property
    def ssl_enabled(self) -> bool:
        return True

    def create_ssl_context(self) -> ssl.SSLContext:
        return self._context


class WebhookApp:
    """/mutate, /validate and /namespaces for the API server, /healthz for the kubelet, /metrics for Prometheus."""

    def __init__(self, template: Path, distributor: Distributor) -> None:
        self._template = template
        self._distributor = distributor
        self._aside = Aside()
        self.asgi = Starlette(
            routes=[
                Route("/mutate", self._mutate, methods=["POST"]),
                Route("/validate", self._validate, methods=["POST"]),
                Route("/namespaces", self._namespaces, methods=["POST"]),
                Route("/healthz", self._healthz),
                Route("/metrics", self._metrics),
            ]
        )

    async def _healthz(self, request: Request) -> Response:
        try:
            await self._aside.run(read_template, self._template)
        except OSError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ok\n")

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._distributor.metrics(), media_type="text/plain; version=0.0.4")

    async def _mutate(self, request: Request) -> Response:
        try:
            decision = review(await _body(request), await self._aside.run(read_template, self._template))
        except ReviewError as error:
            return _invalid(error)
        except OSError as error:
            log.error("template cannot be used", error=str(error))
            return PlainTextResponse(f"{error}\n", 500)
        injected = decision.skipped is None and decision.refused is None
        if injected:
            self._distributor.pod_of(decision.namespace)
        log.info(
            "pod reviewed", pod=decision.pod, injected=injected, skipped=decision.skipped, refused=decision.refused
        )
        return JSONResponse(decision.answer)

    async def _validate(self, request: Request) -> Response:
        """Quotas of a namespace: refused here, and so by `kubectl apply`, if they would not come in force."""
        try:
            asked = request_of(await _body(request), "ConfigMap")
            namespace = str(asked.get("namespace"))
            before, after = ((asked.get(key) or {}).get("data") or {} for key in ("oldObject", "object"))
            refused = None
            if asked.get("oldObject") is None or before != after:  # never in the way of a finalizer or a label
                refused = await self._distributor.judge(namespace, after.get(own_quotas.KEY))
        except (ReviewError, AttributeError) as error:
            return _invalid(error)
        except ApiServerError as error:
            log.warning(
                "cannot check quotas of a namespace before they are stored", namespace=namespace, error=str(error)
            )
            return PlainTextResponse(f"{error}\n", 500)
        if refused is not None:
            log.info("quotas refused", namespace=namespace, refused=refused)
        return JSONResponse(answered(asked, refused))

    async def _namespaces(self, request: Request) -> Response:
        """Labels of a namespace: warned of where they do nothing; a namespace is never refused."""
        try:
            asked = request_of(await _body(request), "Namespace")
            before, after = (metadata_of(asked.get(key) or {}) for key in ("oldObject", "object"))
            name = str(asked["object"]["metadata"]["name"])
        except (ReviewError, AttributeError, KeyError, TypeError) as error:
            return _invalid(error)
        warnings = [] if before == after else list(misunderstood(name, after, self._distributor.settings))
        return JSONResponse(answered(asked, None, warnings))


class _TooLargeError(ReviewError):
    """The body is larger than any review."""


async def _body(request: Request) -> bytes:
    """Raises ReviewError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _TooLargeError(f"expected a body of at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _invalid(error: Exception) -> Response:
    status = 413 if isinstance(error, _TooLargeError) else 400
    log.warning("invalid admission request, answered with an HTTP error", status=status, error=str(error))
    return PlainTextResponse(f"{error}\n", status)


class _Certificate:
    """The certificate that is served, as its Secret or its files are, once the API server trusts it."""

    def __init__(self, cluster: Cluster, configuration: str, look: Callable[[], Awaitable[Pair]]) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        self._cluster = cluster
        self._configuration = configuration
        self._look = look
        self._served: Pair | None = None
        self._problem = ""

    async def begin(self) -> None:
        """Serve the first one, when the API server has answered. Raises OSError (ssl.SSLError) if it is invalid."""
        while True:
            try:
                pair = await self._look()
                break
            except ApiServerError as error:
                self._complain(NO_ANSWER, error)
            await trio.sleep(RETRY_S)
        self._serve(pair)
        with trio.move_on_after(TRUST_LIMIT_S):  # pods are answered also where the API server does not answer
            await self._trust(pair)

    async def follow(self) -> None:
        """Replace the certificate that is served whenever it changes. Failed steps are retried, and logged once."""
        while True:
            await trio.sleep(CERTIFICATE_POLL_S)
            try:
                pair = await self._look()
                await self._trust(pair)
                if pair != self._served:
                    self._serve(pair)
                    log.info("webhook certificate reloaded")
            except StuckError:
                continue
            except ApiServerError as error:
                self._complain(NO_ANSWER, error)
            except (OSError, ValueError) as error:  # ssl.SSLError among them
                self._complain("certificate refused, the last good one stays in use", error)

    def _serve(self, pair: Pair) -> None:
        """Raises OSError (ssl.SSLError), and keeps the old one, when certificate and key do not belong together."""
        # A trial first: a certificate without its key must not replace the good pair.
        _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), pair)
        _load(self.context, pair)
        self._served = pair

    async def _trust(self, pair: Pair) -> None:
        """Make the API server trust its authority, and wait until all of its instances know. Raises ValueError."""
        if pair.authority is None:
            return
        try:
            changed = await set_authority(self._cluster, self._configuration, pair.authority)
        except ApiServerError as error:
            self._complain("cannot update the CA bundle of the webhook configuration, retrying", error)
            return
        self._problem = ""
        if changed:
            log.info("CA bundle of the webhook configuration updated", configuration=self._configuration)
            await trio.sleep(TRUSTED_AFTER_S)

    def _complain(self, what: str, error: Exception) -> None:
        if str(error) != self._problem:
            log.warning(what, error=str(error))
        self._problem = str(error)


async def _serve(
    template: Path, files: tuple[Path, Path, Path | None] | None, host: str, port: int, account: Path
) -> None:
    """Raises OSError."""
    settings = read_template(template).distribution
    async with Cluster.of_this_pod(account) as cluster, trio.open_nursery() as nursery:
        distributor = Distributor(cluster, settings)
        app = WebhookApp(template, distributor)

        async def asked_to_end() -> None:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    nursery.cancel_scope.deadline = trio.current_time() + GRACE_S + 1  # whatever it waits for
                    return

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve(app.asgi, config, shutdown_trigger=asked_to_end, task_status=task_status)  # type: ignore[arg-type]
            log.info("stopped")
            nursery.cancel_scope.cancel()

        if files is not None:
            look: Callable[[], Awaitable[Pair]] = partial(Aside().run, of_files, *files)
        elif settings.secret is not None:
            look = partial(keep, cluster, settings)
        else:
            raise OSError("--cert and --key are missing, and the template names no Secret for a certificate")
        certificate = _Certificate(cluster, settings.configuration, look)
        await certificate.begin()
        nursery.start_soon(certificate.follow)
        nursery.start_soon(distributor.run)
        config = _Https(certificate.context, host, port)
        log.info("webhook is up", addresses=await nursery.start(run), port=port)


def main(template: Path, files: tuple[Path, Path, Path | None] | None, host: str, port: int, account: Path) -> int:
    """Run `kquota webhook`: 0 after SIGTERM, 1 with one line when it cannot run. `files`: certificate, key and
    authority; None: its own."""
    logs.configure("info")
    try:
        trio.run(_serve, template, files, host, port, account)
    except (OSError, BaseExceptionGroup) as error:
        reason: BaseException = error
        while isinstance(reason, BaseExceptionGroup) and len(reason.exceptions) == 1:
            reason = reason.exceptions[0]
        if not isinstance(reason, OSError):
            raise
        log.error("cannot run", error=str(reason))
        return 1
    return 0
