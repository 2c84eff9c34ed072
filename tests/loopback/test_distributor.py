"""What the webhook asks the API server for, and what it does when that refuses: a scripted one, over HTTPS."""

from __future__ import annotations

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


async def test_a_new_namespace_is_told_which_secrets_it_needs(api: ScriptedApi) -> None:
    async with Cluster(api.url, api.account) as cluster:
        distributor = Distributor(cluster, dataclasses.replace(TOLD, secrets=("regcred", "kquota-fleet")))
        for _ in range(3):
            await distributor.round()
    (event,) = [one for path, one in api.objects.items() if "/events/" in path]
    assert (event["type"], event["reason"], event["metadata"]["namespace"]) == ("Normal", "SecretsNeeded", "orders")
    assert event["message"].endswith("They need the Secrets regcred, kquota-fleet here.")


async def test_refusal_is_one_event_and_one_log_line(api: ScriptedApi) -> None:
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


JUDGED = {
    "lower": ("quotas: [{client-id: <default>, producer_byte_rate: 1M}]", {}, None),
    "higher": ("quotas: [{client-id: <default>, producer_byte_rate: 3M}]", {}, "would get producer_byte_rate 3000000"),
    "higher where it may": (
        "quotas: [{client-id: <default>, producer_byte_rate: 3M}]",
        {"kquota.io/namespace-quotas": "any"},
        None,
    ),
    "a mistake": ("quotas: [{client-id: a, producer_byte_rat: 1M}]", {}, "producer_byte_rat"),
    "another key": (None, {}, "there is no quotas.yaml in it"),
}


@pytest.mark.parametrize("case", JUDGED)
async def test_judges_quotas_before_they_are_stored(api: ScriptedApi, case: str) -> None:
    text, labels, said = JUDGED[case]
    api.put("/api/v1/namespaces/orders", metadata={"labels": {"kquota.io/injection": "enabled"} | labels})
    async with Cluster(api.url, api.account) as cluster:
        distributor = Distributor(cluster, TOLD)
        refused = await distributor.judge("orders", text)
        assert await distributor.judge(TOLD.namespace, "nonsense") is None, "the release's own is left alone"
    assert (refused is None) if said is None else (said in (refused or ""))


async def test_limits_the_admin_port_where_no_other_policy_is(api: ScriptedApi) -> None:
    """Policies add up: ours would open what the namespace's own close."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"protocol": "UDP", "port": 1}]}]}
    told = dataclasses.replace(TOLD, network_policy=spec)
    folder = "/apis/networking.k8s.io/v1/namespaces/orders/networkpolicies"
    api.put(f"{folder}/egress", spec={"podSelector": {}, "policyTypes": ["Egress"]})

    async def changes() -> list[tuple[str, str]]:
        del api.asked[:]
        async with Cluster(api.url, api.account) as cluster:
            await Distributor(cluster, told).round()
        return [one for one in api.asked if one[0] != "GET"]

    assert ("PATCH", f"{folder}/kquota") in await changes()
    assert api.objects[f"{folder}/kquota"]["spec"] == spec
    assert await changes() == []
    api.put(f"{folder}/closed", spec={"podSelector": {}})
    assert await changes() == [("DELETE", f"{folder}/kquota"), ("POST", "/api/v1/namespaces/orders/events")]
    (event,) = [one for path, one in api.objects.items() if "/events/" in path]
    assert event["message"].startswith("NetworkPolicy kquota is deleted: the namespace has its own (closed).")
    assert await changes() == []
    del api.objects[f"{folder}/closed"]
    assert await changes() == [("PATCH", f"{folder}/kquota")]


async def test_truncates_long_event_messages(api: ScriptedApi) -> None:
    wrong = "quotas:\n" + "".join(f"- {{client-id: c{n}, producer_byte_rat: 1}}\n" for n in range(60))
    api.put(QUOTAS, data={"quotas.yaml": wrong})
    await rounds(api)
    (event,) = [one for path, one in api.objects.items() if "/events/" in path]
    assert len(event["message"]) < 1024
    assert event["message"].endswith("…")


async def test_brings_many_quotas_compressed(api: ScriptedApi, tmp_path: Path) -> None:
    """From the parts of the chart, when all are of one version, into one ConfigMap."""
    entries = [f"- {{client-id: client-{n}, producer_byte_rate: 1M}}\n" for n in range(20_000)]
    whole = BASE.partition("quotas:")[0] + "quotas:\n" + "".join(entries)
    half = len(whole) // 2
    place = "/api/v1/namespaces/platform/configmaps/kquota"
    header = f"# kquota.io/parts: 2 sha256:{hashlib.sha256(whole.encode()).hexdigest()}\n"
    api.put(place, data={"kquota.yaml": header + whole[:half]})
    api.put(f"{place}-2", data={"kquota.yaml.2": "of the former version"})
    with pytest.raises(ApiServerError, match="of two versions"):
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


EVIL = {
    "310 digits": "quotas: [{client-id: a, producer_byte_rate: %s}]" % ("9" * 310),
    "310 digits of a count": "quotas: [{user: a, max_connections: %s}]" % ("9" * 310),
    "no number": "quotas: [{client-id: a, producer_byte_rate: 190:20:30}]",
    "a tag": "quotas: !!python/object/apply:os.system ['true']",
    "a NUL": 'quotas: [{user: "\\0another", producer_byte_rate: 1}]',
    "nesting": "quotas: " + "[" * 100_000,
    "a megabyte": "quotas:\n" + "- {client-id: c, mode: shadow}\n" * 35_000,
    "another alphabet": "\ud800",
}


def labelled(api: ScriptedApi, *namespaces: str) -> None:
    for name in namespaces:
        api.put(f"/api/v1/namespaces/{name}", metadata={"labels": {"kquota.io/injection": "enabled"}})


def events(api: ScriptedApi) -> list[tuple[str, str]]:
    return [
        (one["metadata"]["namespace"], one["message"])
        for path, one in sorted(api.objects.items())
        if "/events/" in path
    ]


@pytest.mark.parametrize("case", EVIL)
async def test_quotas_of_one_namespace_are_its_own_event(api: ScriptedApi, case: str) -> None:
    """Another namespace, whose name comes later, gets its configuration all the same."""
    labelled(api, "evil")
    api.put("/api/v1/namespaces/evil/configmaps/kquota-quotas", data={"quotas.yaml": EVIL[case]})
    api.put(QUOTAS, data={"quotas.yaml": "quotas: [{client-id: a, producer_byte_rate: 1M}]"})
    with structlog.testing.capture_logs() as lines:
        distributor = await rounds(api, 2)
    assert "producer_byte_rate: 1M" in api.objects[COPY]["data"]["kquota.yaml"]
    assert api.objects["/api/v1/namespaces/evil/configmaps/kquota"]["data"] == {"kquota.yaml": BASE}
    ((namespace, message),) = events(api)
    assert (namespace, message.split(", quotas.yaml")[0]) == (
        "evil",
        "The former quotas stay in force. ConfigMap kquota-quotas",
    )
    assert [line["namespace"] for line in lines if line["log_level"] == "warning"] == ["evil"]
    assert distributor.metrics().splitlines()[2:] == ['kquota_webhook_namespace_problem{namespace="evil"} 1']


@pytest.mark.parametrize(
    "error", [OverflowError("int too large"), RecursionError("deep"), MemoryError(), KeyError("quotas")]
)
@pytest.mark.parametrize("place", ["own_quotas.combined", "distribution._copy", "distributor._config_map"])
async def test_no_exception_of_one_namespace_reaches_another(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, error: Exception, place: str
) -> None:
    """Whatever is thrown, wherever: in its quotas, in its copy, or when that is written."""
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
        ((namespace, message),) = events(api)
        assert namespace == "evil"
        assert f"a fault of kquota, please report it: {type(error).__name__}" in message
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
            distributor = Distributor(cluster, TOLD)
            nursery.start_soon(distributor.run)
            with trio.fail_after(8):
                await until(lambda: 'namespace=""' in distributor.metrics())
                original["kquota.yaml"] = text
                distributor.pod_of("orders")
                await until(lambda: COPY in api.objects)
            nursery.cancel_scope.cancel()
    assert "KeyError" in next(line["error"] for line in lines if line["log_level"] == "warning")


async def test_pod_of_new_namespace_does_not_wait_for_poll(api: ScriptedApi) -> None:
    async with Cluster(api.url, api.account) as cluster, trio.open_nursery() as nursery:
        distributor = Distributor(cluster, TOLD)
        nursery.start_soon(distributor.run)
        with trio.fail_after(8):
            await until(lambda: COPY in api.objects)
            api.put("/api/v1/namespaces/fresh", metadata={"labels": {"kquota.io/injection": "enabled"}})
            distributor.pod_of("fresh")
            await until(lambda: "/api/v1/namespaces/fresh/configmaps/kquota" in api.objects)
        nursery.cancel_scope.cancel()


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


# --- the certificate


async def kept(api: ScriptedApi) -> Pair:
    async with Cluster(api.url, api.account) as cluster:
        return await keep(cluster, "platform", "kquota-webhook-certificate", HOST, {}, TOLD.configuration)


async def test_publishes_new_certificate_once(api: ScriptedApi) -> None:
    first, second = await kept(api), await kept(api)
    assert first == second
    assert api.objects[SECRET]["metadata"]["ownerReferences"][0]["name"] == "kquota-webhook.platform"
    async with Cluster(api.url, api.account) as cluster:
        assert await tell(cluster, TOLD.configuration, first.authority)
        assert not await tell(cluster, TOLD.configuration, first.authority)
    bundles = {one["clientConfig"]["caBundle"] for one in api.objects[HOOKS]["webhooks"]}
    assert bundles == {base64.b64encode(first.authority).decode()}
    del api.objects[SECRET]
    other = await kept(api)
    async with Cluster(api.url, api.account) as cluster:
        assert await tell(cluster, TOLD.configuration, other.authority)
        assert not await tell(cluster, TOLD.configuration, first.authority), "replicas that have it are asked too"
    bundles = {one["clientConfig"]["caBundle"] for one in api.objects[HOOKS]["webhooks"]}
    assert bundles == {base64.b64encode(other.authority + first.authority).decode()}


async def test_second_replica_takes_the_first_certificate(api: ScriptedApi) -> None:
    other: list[Pair] = []

    def faster(method: str, path: str) -> int | None:
        """Just before our Secret would be made, the other replica has made it."""
        if method == "POST" and not other:
            api.refuse = lambda method, path: None
            other.append(trio.run(kept, api))
        return None

    api.refuse = faster
    assert await kept(api) == other[0]


async def test_repairs_spoilt_secret(api: ScriptedApi) -> None:
    before = await kept(api)
    data: dict[str, Any] = api.objects[SECRET]["data"]
    data["tls.crt"] = base64.b64encode(b"nonsense").decode()
    after = await kept(api)
    assert after.authority == before.authority
    assert after.certificate != before.certificate
