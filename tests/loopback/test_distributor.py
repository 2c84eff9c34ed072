"""What the webhook asks the API server for, and what it does when that refuses: a scripted one, over HTTPS."""

import base64
import dataclasses
import hashlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from config.parts import read_config
from deploy.kubernetes.cluster import CONFIGURATIONS, ApiServerError, Cluster
from deploy.kubernetes.distribution import Distribution
from deploy.kubernetes.distributor import Distributor
from deploy.kubernetes.own_certificate import Pair, keep, set_authority
from tests.support.scripted_api import ScriptedApi, scripted_api
from tests.support.scripted_broker import until
from tests.support.webhook_tools import SETTINGS

BASE = 'upstream: {bootstrap: ["kafka:9092"]}\nquotas:\n- {client-id: <default>, producer_byte_rate: 2M}\n'
HOOKS = f"{CONFIGURATIONS}/kquota-webhook.platform"
COPY = "/api/v1/namespaces/orders/configmaps/kquota"
QUOTAS = "/api/v1/namespaces/orders/configmaps/kquota-quotas"
SECRET = "/api/v1/namespaces/platform/secrets/kquota-webhook-certificate"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ScriptedApi]:
    with scripted_api(tmp_path) as running:
        running.put("/api/v1/namespaces/platform/configmaps/kquota", data={"kquota.yaml": BASE})
        labelled(running, "orders")
        running.put("/api/v1/namespaces/web")
        running.put(HOOKS, webhooks=[{"name": "fail", "clientConfig": {}}, {"name": "ignore", "clientConfig": {}}])
        yield running


def labelled(api: ScriptedApi, name: str, **labels: str) -> None:
    api.put(f"/api/v1/namespaces/{name}", metadata={"labels": {"kquota.io/injection": "enabled"} | labels})


def events(api: ScriptedApi) -> list[dict[str, Any]]:
    return [one for path, one in sorted(api.objects.items()) if "/events/" in path]


async def rounds(api: ScriptedApi, number: int = 1, settings: Distribution = SETTINGS) -> Distributor:
    async with Cluster(api.url, api.account) as cluster:
        distributor = Distributor(cluster, settings)
        for _ in range(number):
            await distributor.round()
        return distributor


async def test_copies_are_made_and_then_left_alone(api: ScriptedApi) -> None:
    await rounds(api, 3)
    assert api.objects[COPY]["data"] == {"kquota.yaml": BASE}
    assert api.objects[COPY]["metadata"]["ownerReferences"][0]["uid"] == "uid of kquota-webhook.platform"
    assert [one for one in api.asked if one[0] != "GET"] == [("PATCH", COPY)]
    assert not [path for path in api.objects if path.startswith("/api/v1/namespaces/web/")]


async def test_a_new_namespace_is_told_which_secrets_it_needs(api: ScriptedApi) -> None:
    await rounds(api, 3, dataclasses.replace(SETTINGS, secrets=("regcred", "kquota-fleet")))
    (event,) = events(api)
    assert (event["type"], event["reason"], event["metadata"]["namespace"]) == ("Normal", "SecretsNeeded", "orders")
    assert event["message"].endswith("which need Secrets: regcred, kquota-fleet.")


async def test_refusal_is_one_event_and_one_log_line(api: ScriptedApi) -> None:
    too_much = "quotas: [{client-id: <default>, producer_byte_rate: 3M}" + ", {user: u}" * 60 + "]"
    api.put(QUOTAS, data={"quotas.yaml": too_much})
    with structlog.testing.capture_logs() as lines:
        distributor = await rounds(api, 3)
    assert distributor.metrics().splitlines()[2:] == ['kquota_webhook_namespace_problem{namespace="orders"} 1']
    (event,) = events(api)
    assert event["reason"] == "QuotasRefused"
    assert event["message"].startswith("The chart's quotas alone are in force. ConfigMap kquota-quotas, quotas.yaml:")
    assert len(event["message"]) < 1024
    assert event["message"].endswith("…")
    assert [line["namespace"] for line in lines if line["log_level"] == "warning"] == ["orders"]
    assert api.objects[COPY]["data"] == {"kquota.yaml": BASE}


@pytest.mark.parametrize(
    ("text", "allowed", "said"),
    [
        ("quotas: [{client-id: <default>, producer_byte_rate: 1M}]", "lower", None),
        ("quotas: [{client-id: <default>, producer_byte_rate: 3M}]", "lower", "would get producer_byte_rate 3000000"),
        ("quotas: [{client-id: <default>, producer_byte_rate: 3M}]", "any", None),
        ("quotas: [{client-id: a, producer_byte_rat: 1M}]", "lower", "producer_byte_rat"),
        (None, "lower", "no key quotas.yaml"),
    ],
)
async def test_judges_quotas_before_storing(api: ScriptedApi, text: str | None, allowed: str, said: str | None) -> None:
    labelled(api, "orders", **{"kquota.io/namespace-quotas": allowed})
    async with Cluster(api.url, api.account) as cluster:
        distributor = Distributor(cluster, SETTINGS)
        refused = await distributor.judge("orders", text)
        assert await distributor.judge(SETTINGS.namespace, "nonsense") is None, "the release's own is left alone"
    assert (refused is None) if said is None else (said in (refused or ""))


async def test_limits_the_admin_port_where_no_other_policy_is(api: ScriptedApi) -> None:
    """Policies add up: ours would open what the namespace's own close."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"protocol": "UDP", "port": 1}]}]}
    settings = dataclasses.replace(SETTINGS, network_policy=spec)
    folder = "/apis/networking.k8s.io/v1/namespaces/orders/networkpolicies"
    api.put(f"{folder}/egress", spec={"podSelector": {}, "policyTypes": ["Egress"]})

    async def changes() -> list[tuple[str, str]]:
        del api.asked[:]
        await rounds(api, 1, settings)
        return [one for one in api.asked if one[0] != "GET"]

    assert ("PATCH", f"{folder}/kquota") in await changes()
    assert api.objects[f"{folder}/kquota"]["spec"] == spec
    assert await changes() == []
    api.put(f"{folder}/closed", spec={"podSelector": {}})
    assert await changes() == [("DELETE", f"{folder}/kquota"), ("POST", "/api/v1/namespaces/orders/events")]
    (event,) = events(api)
    assert event["message"].startswith("NetworkPolicy kquota is deleted: the namespace has its own (closed).")
    assert await changes() == []
    del api.objects[f"{folder}/closed"]
    assert await changes() == [("PATCH", f"{folder}/kquota")]


async def test_brings_many_quotas_compressed(api: ScriptedApi, tmp_path: Path) -> None:
    """From the parts of the chart, when all are of one version, into one ConfigMap."""
    entries = [f"- {{client-id: client-{n}, producer_byte_rate: 1M}}\n" for n in range(20_000)]
    whole = BASE.partition("quotas:")[0] + "quotas:\n" + "".join(entries)
    half = len(whole) // 2
    place = "/api/v1/namespaces/platform/configmaps/kquota"
    header = f"# kquota.io/parts: 2 sha256:{hashlib.sha256(whole.encode()).hexdigest()}\n"
    api.put(place, data={"kquota.yaml": header + whole[:half]})
    api.put(f"{place}-2", data={"kquota.yaml.2": "of the former version"})
    with pytest.raises(ApiServerError, match="belong to two revisions"):
        await rounds(api)
    assert COPY not in api.objects
    api.put(f"{place}-2", data={"kquota.yaml.2": whole[half:]})
    await rounds(api, 2)
    assert [one for one in api.asked if one[1] == COPY] == [("PATCH", COPY)]
    packed = base64.b64decode(api.objects[COPY]["binaryData"]["kquota.yaml"])
    assert len(packed) < 200_000
    (tmp_path / "kquota.yaml").write_bytes(packed)
    assert read_config(tmp_path / "kquota.yaml") == whole.encode()


async def test_replaces_an_immutable_copy(api: ScriptedApi) -> None:
    await rounds(api)
    api.objects[COPY] |= {"immutable": True, "data": {"kquota.yaml": "of former times"}}
    await rounds(api)
    assert (api.objects[COPY]["data"], api.objects[COPY].get("immutable")) == ({"kquota.yaml": BASE}, None)
    assert [one for one in api.asked if one[1] == COPY] == [("PATCH", COPY), ("DELETE", COPY), ("PATCH", COPY)]


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError()])
@pytest.mark.parametrize("place", ["own_quotas.combined", "distribution._copy", "distributor._config_map"])
async def test_no_exception_of_one_namespace_reaches_another(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
) -> None:
    labelled(api, "evil")
    evil = "quotas: [{client-id: evil, producer_byte_rate: 1M}]"
    api.put("/api/v1/namespaces/evil/configmaps/kquota-quotas", data={"quotas.yaml": evil})
    module, name = place.split(".")
    usual = getattr(importlib.import_module(f"deploy.kubernetes.{module}"), name)

    def throw(*given: Any) -> Any:
        if "evil" in str(given):
            raise error
        return usual(*given)

    monkeypatch.setattr(f"deploy.kubernetes.{place}", throw)
    with structlog.testing.capture_logs() as lines:
        distributor = await rounds(api, 2)
        assert api.objects[COPY]["data"] == {"kquota.yaml": BASE}
        (event,) = events(api)
        assert event["metadata"]["namespace"] == "evil"
        assert f"internal error, please report it: {type(error).__name__}" in event["message"]
        assert {line["namespace"] for line in lines if line["log_level"] in ("warning", "error")} == {"evil"}
        monkeypatch.undo()
        api.put("/api/v1/namespaces/evil/configmaps/kquota-quotas", data={"quotas.yaml": evil + "\n"})
        async with Cluster(api.url, api.account) as cluster:
            distributor.cluster = cluster
            await distributor.round()
    assert "evil" in api.objects["/api/v1/namespaces/evil/configmaps/kquota"]["data"]["kquota.yaml"]
    assert "evil" not in distributor.metrics()


async def test_failed_round_is_followed_by_others(api: ScriptedApi) -> None:
    """The release's own ConfigMap lost its key: the process lives, says so, and goes on when it is back."""
    original = api.objects["/api/v1/namespaces/platform/configmaps/kquota"]["data"]
    text = original.pop("kquota.yaml")
    with structlog.testing.capture_logs() as lines:
        async with Cluster(api.url, api.account) as cluster, trio.open_nursery() as nursery:
            distributor = Distributor(cluster, SETTINGS)
            nursery.start_soon(distributor.run)
            with trio.fail_after(8):
                await until(lambda: 'namespace=""' in distributor.metrics())
                original["kquota.yaml"] = text
                distributor.pod_of("orders")
                await until(lambda: COPY in api.objects)
                labelled(api, "fresh")
                distributor.pod_of("fresh")  # which does not wait for the next look
                await until(lambda: "/api/v1/namespaces/fresh/configmaps/kquota" in api.objects)
            nursery.cancel_scope.cancel()
    assert "KeyError" in next(line["error"] for line in lines if line["log_level"] == "warning")


async def test_passes_on_api_server_errors(api: ScriptedApi, tmp_path: Path) -> None:
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


async def kept(api: ScriptedApi) -> Pair:
    async with Cluster(api.url, api.account) as cluster:
        return await keep(cluster, SETTINGS)


def bundles(api: ScriptedApi) -> set[bytes]:
    return {base64.b64decode(one["clientConfig"]["caBundle"]) for one in api.objects[HOOKS]["webhooks"]}


async def test_publishes_new_certificate_once(api: ScriptedApi) -> None:
    first, second = await kept(api), await kept(api)
    assert first == second
    assert api.objects[SECRET]["metadata"]["ownerReferences"][0]["name"] == "kquota-webhook.platform"
    async with Cluster(api.url, api.account) as cluster:
        assert await set_authority(cluster, SETTINGS.configuration, first.authority)
        assert not await set_authority(cluster, SETTINGS.configuration, first.authority)
    assert bundles(api) == {first.authority}
    del api.objects[SECRET]
    other = await kept(api)
    async with Cluster(api.url, api.account) as cluster:
        assert await set_authority(cluster, SETTINGS.configuration, other.authority)
        assert not await set_authority(cluster, SETTINGS.configuration, first.authority), "asked of replicas too"
    assert bundles(api) == {other.authority + first.authority}


async def test_replica_takes_the_first_certificate_and_repairs_it(api: ScriptedApi) -> None:
    other: list[Pair] = []

    def faster(method: str, path: str) -> int | None:
        """Just before our Secret would be made, the other replica has made it."""
        if method == "POST" and not other:
            api.refuse = lambda method, path: None
            other.append(trio.run(kept, api))
        return None

    api.refuse = faster
    assert await kept(api) == other[0]
    api.objects[SECRET]["data"]["tls.crt"] = base64.b64encode(b"nonsense").decode()
    after = await kept(api)
    assert after.authority == other[0].authority
    assert after.certificate != other[0].certificate
