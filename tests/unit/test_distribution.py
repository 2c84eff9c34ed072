"""Which namespace gets which configuration, from what there is; and the webhook's own certificate, by a clock."""

import dataclasses
import datetime
import ssl
from typing import Any

import pytest

from deploy.kubernetes.distribution import Distribution, NamespacePlan, Observed, misunderstood, plans
from deploy.kubernetes.own_certificate import AUTHORITY_DAYS, CERTIFICATE_DAYS, FORMER, bundled, renewed
from tests.support.webhook_tools import SETTINGS

BASE = 'upstream: {bootstrap: ["kafka:9092"]}\nquotas:\n- {client-id: <default>, producer_byte_rate: 2M}\n'
ENABLED = {"kquota.io/injection": "enabled"}
OWNER = {"kind": "MutatingWebhookConfiguration", "name": "w", "uid": "1"}
FOR_WEB = dataclasses.replace(SETTINGS, only=frozenset({"web"}))


def seen(**given: Any) -> Observed:
    one: dict[str, Any] = {"namespaces": {"orders": ENABLED}, "copies": {}, "quotas": {}, "policies": {}}
    return Observed(**(one | {"base": BASE, "owner": OWNER} | given))


def only(settings: Distribution = SETTINGS, **given: Any) -> NamespacePlan:
    (plan,) = plans(seen(**given), settings, {})
    return plan


def copy(**given: Any) -> dict[str, Any]:
    body = only(**given).body
    assert body is not None
    return body


def own(text: str) -> dict[str, dict[str, Any]]:
    return {"orders": {"metadata": {"name": "kquota-quotas"}, "data": {"quotas.yaml": text}}}


@pytest.mark.parametrize(
    ("labels", "settings", "said"),
    [
        ({"failure-policy": "Ignore", "namespace-quotas": "any"}, SETTINGS, []),
        ({"injection": "true"}, SETTINGS, ['kquota.io/injection: expected "enabled" or "disabled", got "true"']),
        ({"failure-policy": "ignore"}, SETTINGS, ['expected "Fail" or "Ignore", got "ignore"']),
        ({"namespace-quotas": "all"}, SETTINGS, ['got "all": quotas of the namespace are refused']),
        ({}, FOR_WEB, ["webhook.namespaces of the chart does not name"]),
    ],
)
def test_labels_of_namespaces_that_do_nothing(labels: dict[str, str], settings: Distribution, said: list[str]) -> None:
    labels = ENABLED | {f"kquota.io/{name}": value for name, value in labels.items()}
    found = misunderstood("orders", labels, settings)
    assert all(part in one for part, one in zip(said, found, strict=True))


def test_labelled_namespace_gets_copy_owned_by_webhook() -> None:
    body = copy()
    assert body["data"] == {"kquota.yaml": BASE}
    assert body["metadata"] == {
        "name": "kquota",
        "namespace": "orders",
        "labels": {"app.kubernetes.io/name": "kquota"},
        "annotations": {"kquota.io/copy-of": "platform/kquota"},
        "ownerReferences": [OWNER],
    }
    again = only(copies={"orders": body})
    assert (again.body, again.refused, again.problem) == (None, None, None)
    left_over = body | {"data": {"kquota.yaml": BASE, "quotas.yaml": "left over"}}
    other_owner = body | {"metadata": body["metadata"] | {"ownerReferences": [{**OWNER, "uid": "of a former install"}]}}
    for changed in (left_over, other_owner):
        assert copy(copies={"orders": changed}) == body, "put right"


def test_labelled_and_former_namespaces_take_part() -> None:
    everywhere = {"orders": ENABLED, "platform": ENABLED, "web": {}, "former": {}}
    found = list(plans(seen(namespaces=everywhere, copies={"former": copy()}), SETTINGS, {}))
    assert [plan.namespace for plan in found] == ["former", "orders"], "pods of former times run where a copy is"
    assert list(plans(seen(), FOR_WEB, {})) == []


def test_a_config_map_of_another_owner_is_left_alone() -> None:
    theirs = {"metadata": {"name": "kquota", "namespace": "orders"}, "data": {"a": "b"}}
    plan = only(copies={"orders": theirs})
    assert plan.body is None
    assert (plan.problem or "").startswith("ConfigMap kquota exists and is not kquota's")


LOWER = "quotas: [{client-id: <default>, producer_byte_rate: 1M}]"
HIGHER = "quotas: [{client-id: <default>, producer_byte_rate: 3M}]"


def test_refused_quotas_leave_the_former_ones_in_force() -> None:
    good = copy(quotas=own(LOWER))
    assert "producer_byte_rate: 1M" in good["data"]["kquota.yaml"]
    assert good["data"]["quotas.yaml"] == LOWER
    refused: dict[str, Any] = {"quotas": own(HIGHER), "copies": {"orders": good}}
    plan = only(**refused)
    assert plan.body is None
    assert "would get producer_byte_rate 3000000" in (plan.refused or "")
    assert (plan.refused or "").startswith("The former quotas stay in force. ConfigMap kquota-quotas")
    later = copy(base=BASE + "max_mute: 10s\n", **refused)["data"]["kquota.yaml"]
    assert "max_mute: 10s" in later, "the chart's changes still come through"
    assert "producer_byte_rate: 1M" in later
    stricter = BASE.replace("2M", "500k")
    assert copy(base=stricter, **refused)["data"] == {"kquota.yaml": stricter}, "they do not fit any more"
    plan = only(base=stricter, **refused)
    assert (plan.refused or "").startswith("The chart's quotas alone are in force. ConfigMap kquota-quotas")


@pytest.mark.parametrize(
    ("label", "chart", "taken"),
    [
        (None, "any", True),
        (None, "lower", False),
        ("any", "none", True),
        ("lower", "any", False),
        ("none", "any", False),
        ("Any", "any", False),  # a typing mistake allows nothing
    ],
)
def test_namespace_label_sets_the_quota_policy(label: str | None, chart: Any, taken: bool) -> None:
    labels = ENABLED | ({} if label is None else {"kquota.io/namespace-quotas": label})
    plan = only(dataclasses.replace(SETTINGS, policy=chart), namespaces={"orders": labels}, quotas=own(HIGHER))
    assert (plan.refused is None) is taken


NOW = datetime.datetime(2026, 11, 24, 12, tzinfo=datetime.UTC)


def days(number: float) -> datetime.datetime:
    return NOW + datetime.timedelta(days=number)


def made(former: dict[str, bytes], now: datetime.datetime = NOW) -> dict[str, bytes]:
    found = renewed(former, SETTINGS.host, now)
    assert found is not None
    return found


def test_a_certificate_is_made_once_and_renewed_by_its_authority() -> None:
    first = made({})
    assert renewed(first, SETTINGS.host, days(CERTIFICATE_DAYS * 2 / 3 - 1)) is None
    second = made(first, days(CERTIFICATE_DAYS * 2 / 3 + 1))
    assert (second["ca.crt"], second["ca.key"]) == (first["ca.crt"], first["ca.key"]), "no change at the API server"
    assert second["tls.crt"] != first["tls.crt"]
    ssl.create_default_context(cadata=second["ca.crt"].decode())


def test_new_and_former_authorities_are_trusted() -> None:
    then = days(AUTHORITY_DAYS * 2 / 3 + 1)
    former = made({})
    old, new = former["ca.crt"], made(former, then)["ca.crt"]
    assert bundled(new, old, then) == new + old
    assert bundled(old, new + old, then) is None
    assert bundled(old, b"nonsense", then) == old
    assert bundled(new, old, days(AUTHORITY_DAYS + 1)) == new
    trusted = b""
    for _ in range(FORMER + 2):
        latest = made({})["ca.crt"]
        trusted = bundled(latest, trusted, NOW) or b""
        assert trusted.startswith(latest)
    assert trusted.count(b"-----BEGIN") == 1 + FORMER
    oldest = b"-----BEGIN" + trusted.rpartition(b"-----BEGIN")[2]
    assert (bundled(oldest, trusted, NOW) or b"").startswith(oldest), "in use again, so it is not the next to go"
