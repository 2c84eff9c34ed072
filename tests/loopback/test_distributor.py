"""What the webhook asks the API server for, and what it does when that refuses: a scripted one, over HTTPS."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from deploy.kubernetes.cluster import CONFIGURATIONS, ApiServerError, Cluster
from deploy.kubernetes.distributor import Distributor
from deploy.kubernetes.own_certificate import Pair, keep, tell
from tests.support.scripted_api import ScriptedApi, scripted_api
from tests.support.scripted_broker import until
from tests.support.webhook_tools import TOLD

BASE = 'upstream: {bootstrap: ["kafka:9092"]}\nquotas:\n- {client-id: <default>, producer_byte_rate: 2M}\n'
HOOKS = f"{CONFIGURATIONS}/kquota-webhook.platform"
COPY = "/api/v1/namespaces/orders/configmaps/kquota"
QUOTAS = "/api/v1/namespaces/orders/configmaps/kquota-quotas"
SECRET = "/api/v1/namespaces/platform/secrets/kquota-webhook-certificate"
HOST = TOLD.host


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ScriptedApi]:
    with scripted_api(tmp_path) as running:
        running.put("/api/v1/namespaces/platform/configmaps/kquota", data={"kquota.yaml": BASE})
        running.put("/api/v1/namespaces/orders", metadata={"labels": {"kquota.io/injection": "enabled"}})
        running.put("/api/v1/namespaces/web")
        running.put(HOOKS, webhooks=[{"name": "fail", "clientConfig": {}}, {"name": "ignore", "clientConfig": {}}])
        yield running


async def rounds(api: ScriptedApi, number: int = 1) -> Distributor:
    async with Cluster(api.url, api.account) as cluster:
        distributor = Distributor(cluster, TOLD)
        for _ in range(number):
            await distributor.round()
        return distributor


async def test_copies_are_made_and_then_left_alone(api: ScriptedApi) -> None:
    await rounds(api, 3)
    assert api.objects[COPY]["data"] == {"kquota.yaml": BASE}
    assert api.objects[COPY]["metadata"]["ownerReferences"][0]["uid"] == "uid of kquota-webhook.platform"
    assert [one for one in api.asked if one[0] != "GET"] == [("PATCH", COPY)]
    assert not [path for path in api.objects if path.startswith("/api/v1/namespaces/web/")]


async def test_a_refusal_is_one_event_and_one_line_until_it_changes(api: ScriptedApi) -> None:
    too_much = "quotas: [{client-id: <default>, producer_byte_rate: 3M}]"
    api.put(QUOTAS, data={"quotas.yaml": too_much})
    with structlog.testing.capture_logs() as lines:
        await rounds(api, 3)
    events = [one for path, one in api.objects.items() if "/events/" in path]
    assert [one["reason"] for one in events] == ["QuotasRefused"]
    assert events[0]["message"].startswith(
        "The former quotas stay in force. ConfigMap kquota-quotas, quotas.yaml: user any"
    )
    assert [line["namespace"] for line in lines if line["log_level"] == "warning"] == ["orders"]
    assert api.objects[COPY]["data"] == {"kquota.yaml": BASE}


async def test_a_message_that_is_too_long_for_an_event_is_cut(api: ScriptedApi) -> None:
    wrong = "quotas:\n" + "".join(f"- {{client-id: c{n}, producer_byte_rat: 1}}\n" for n in range(60))
    api.put(QUOTAS, data={"quotas.yaml": wrong})
    await rounds(api)
    (event,) = [one for path, one in api.objects.items() if "/events/" in path]
    assert len(event["message"]) < 1024
    assert event["message"].endswith("…")


async def test_one_namespace_that_cannot_be_written_disturbs_no_other(api: ScriptedApi) -> None:
    api.put("/api/v1/namespaces/another", metadata={"labels": {"kquota.io/injection": "enabled"}})
    api.refuse = lambda method, path: 403 if (method, "/another/" in path) == ("PATCH", True) else None
    with structlog.testing.capture_logs() as lines:
        await rounds(api, 2)
    assert COPY in api.objects
    (told,) = [line for line in lines if line["log_level"] == "warning"]
    assert told["namespace"] == "another"
    assert "scripted: 403" in told["error"]


async def test_a_pod_of_a_new_namespace_is_not_kept_waiting_for_ten_seconds(api: ScriptedApi) -> None:
    async with Cluster(api.url, api.account) as cluster, trio.open_nursery() as nursery:
        distributor = Distributor(cluster, TOLD)
        nursery.start_soon(distributor.run)
        with trio.fail_after(8):
            await until(lambda: COPY in api.objects)
            api.put("/api/v1/namespaces/fresh", metadata={"labels": {"kquota.io/injection": "enabled"}})
            distributor.pod_of("fresh")
            await until(lambda: "/api/v1/namespaces/fresh/configmaps/kquota" in api.objects)
        nursery.cancel_scope.cancel()


async def test_what_the_api_server_says_is_passed_on(api: ScriptedApi, tmp_path: Path) -> None:
    async with Cluster(api.url, api.account) as cluster:
        with pytest.raises(ApiServerError, match=r"GET /api/v1/none: /api/v1/none not found") as missing:
            await cluster.ask("GET", "/api/v1/none")
        assert missing.value.status == 404
        assert await cluster.get("/api/v1/none") is None
        (api.account / "token").write_text("renewed, but wrong")
        with pytest.raises(ApiServerError, match="Unauthorized"):
            await cluster.get("/api/v1/none")
    async with Cluster("https://127.0.0.1:1", api.account) as cluster:
        with pytest.raises(ApiServerError) as away:
            await cluster.ask("GET", "/")
        assert away.value.status == 0


# --- the certificate


async def kept(api: ScriptedApi) -> Pair:
    async with Cluster(api.url, api.account) as cluster:
        return await keep(cluster, "platform", "kquota-webhook-certificate", HOST, {}, TOLD.configuration)


async def test_the_certificate_is_made_once_and_the_api_server_told_once(api: ScriptedApi) -> None:
    first, second = await kept(api), await kept(api)
    assert first == second
    assert api.objects[SECRET]["metadata"]["ownerReferences"][0]["name"] == "kquota-webhook.platform"
    async with Cluster(api.url, api.account) as cluster:
        assert await tell(cluster, TOLD.configuration, first.authority)
        assert not await tell(cluster, TOLD.configuration, first.authority)
    bundles = {one["clientConfig"]["caBundle"] for one in api.objects[HOOKS]["webhooks"]}
    assert bundles == {base64.b64encode(first.authority).decode()}


async def test_of_two_replicas_that_begin_together_one_takes_the_others_certificate(api: ScriptedApi) -> None:
    other: list[Pair] = []

    def faster(method: str, path: str) -> int | None:
        """Just before our Secret would be made, the other replica has made it."""
        if method == "POST" and not other:
            api.refuse = lambda method, path: None
            other.append(trio.run(kept, api))
        return None

    api.refuse = faster
    assert await kept(api) == other[0]


async def test_a_secret_that_was_spoilt_is_put_right(api: ScriptedApi) -> None:
    before = await kept(api)
    data: dict[str, Any] = api.objects[SECRET]["data"]
    data["tls.crt"] = base64.b64encode(b"nonsense").decode()
    after = await kept(api)
    assert after.authority == before.authority
    assert after.certificate != before.certificate
