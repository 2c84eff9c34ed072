"""`kquota webhook` as the chart runs it: over HTTPS, with its certificate and template, asked as an API server asks."""

import base64
import copy
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest

from deploy.kubernetes.review import INJECTED_LABEL, ReviewError, ReviewResult, Template, review
from tests.lab.kafka.ports import free_ports
from tests.support.chart_tools import (
    CHART,
    FIRST_NATIVE,
    NAMESPACE,
    NEWEST,
    configuration,
    documents,
    injected,
    of_kind,
    render_text,
    sidecar_of,
)
from tests.support.command import LIMIT_S, kquota, started
from tests.support.namespaces import Namespace
from tests.support.waiting import until, until_serving
from tests.support.webhook_tools import (
    GENERATED,
    MANAGED,
    VALUES,
    Webhook,
    admission_review,
    rendered,
    service_account,
    sidecar_template,
    write_certificate,
)


def template_of(*args: Any, **changes: Any) -> Template:
    return Template.parse(sidecar_template(*args, **changes))


def unprotected(**changes: Any) -> Template:
    """Without webhook.networkPolicy, which keeps the admin port where it is."""
    found = template_of(**changes)
    return replace(found, distribution=replace(found.distribution, network_policy=None))


@pytest.fixture(scope="module")
def template() -> Template:
    return unprotected()


def _patched(asked: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The pod as the API server makes it of the answer; fails where the API server would."""
    request, response = asked["request"], answer["response"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (response["uid"], response["allowed"], response["patchType"]) == (request["uid"], True, "JSONPatch")
    pod = copy.deepcopy(request["object"])
    for step in json.loads(base64.b64decode(response["patch"])):
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at = pod
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list) and step["op"] == "add":
            at.insert(len(at) if last == "-" else int(last), step["value"])
            continue
        key = int(last) if isinstance(at, list) else last
        assert step["op"] == "add" or at[key] is not None
        if step["op"] == "remove":
            del at[key]
        else:
            at[key] = step["value"]
    return dict(pod)


def _review(asked: dict[str, Any], template: Template) -> ReviewResult:
    return review(json.dumps(asked).encode(), template)


def _decide(asked: dict[str, Any], template: Template) -> tuple[dict[str, Any], str | None]:
    decision = _review(asked, template)
    return _patched(asked, decision.answer), decision.skipped


def _pod(asked: dict[str, Any], template: Template) -> dict[str, Any]:
    """The pod with its sidecar."""
    pod, skipped = _decide(asked, template)
    assert skipped is None
    return pod


ADDRESS = {"name": "KAFKA_BOOTSTRAP_SERVERS", "value": "127.0.0.1:9092"}


@pytest.mark.parametrize("name", ["deployment", "job", "bare"])
def test_webhook_puts_the_sidecar_first(name: str, template: Template) -> None:
    asked = admission_review(name)
    pod = _pod(asked, template)
    before, after = asked["request"]["object"]["spec"], pod["spec"]
    for one in before.get("initContainers", []):
        one["env"] = [ADDRESS]
    for one in before["containers"]:
        one.setdefault("env", [ADDRESS])
    assert after["initContainers"] == [template.container, *before.get("initContainers", [])]
    assert after["initContainers"][0]["restartPolicy"] == "Always"
    assert after["containers"] == before["containers"], "the application gets the address and nothing else"
    assert after["volumes"] == [*before.get("volumes", []), *template.volumes]
    assert after["terminationGracePeriodSeconds"] == max(before.get("terminationGracePeriodSeconds", 30), 55)
    assert pod["metadata"]["labels"]["kquota.io/config"] == "shop-kquota"
    assert pod["metadata"]["labels"]["kquota.io/injected"] == "true"
    for key in ("labels", "annotations"):
        assert asked["request"]["object"]["metadata"].get(key, {}).items() <= pod["metadata"][key].items()
    pod["metadata"] = {"name": "one"} | {key: pod["metadata"][key] for key in ("labels", "annotations")}
    for version in (NEWEST, FIRST_NATIVE):
        kubernetes_validate.validate(pod, version, strict=True)
    (job,) = of_kind(documents(render_text(VALUES, "--set", "demo.enabled=true")), "Job")
    assert template.container == sidecar_of(job["spec"]["template"]["spec"]), "the one of the chart's own pods"


@pytest.mark.parametrize("kubernetes", [NEWEST, "1.28.0"])
@pytest.mark.parametrize("name", ["deployment", "bare"])
def test_redirect_rules_are_set_before_all_others(name: str, kubernetes: str) -> None:
    """In transparent mode, with native sidecars and with ordinary ones."""
    values = CHART / "ci/transparent-values.yaml"
    manifests = documents(render_text(values, "--set", "demo.enabled=false", kubernetes=kubernetes))
    template = Template.parse(json.dumps(injected(manifests)).encode())
    asked = admission_review(name)
    pod = _pod(asked, template)
    own = [one["name"] for one in asked["request"]["object"]["spec"].get("initContainers", [])]
    sidecars = ["kquota"] if kubernetes == NEWEST else []
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota-redirect", *sidecars, *own]
    assert [one["name"] for one in pod["spec"]["containers"]][1:] == ([] if sidecars else ["kquota"])
    asked["request"]["object"]["spec"]["containers"][0]["name"] = "kquota-redirect"
    refused = _review(asked, template).refused
    assert "container kquota-redirect: expected another name" in str(refused)


IN = {"kquota.io/inject": "true"}
OUT = {"kquota.io/inject": "false"}


def _annotated(**wishes: str) -> dict[str, Any]:
    """With these annotations, by the last part of their names."""
    given = {f"kquota.io/{name.replace('_', '-')}": value for name, value in wishes.items()}
    return admission_review("deployment", annotations=given)


OWN_SIDECAR = [{"name": "kquota", "image": "own", "restartPolicy": "Always"}]
SKIPPED = {
    "opted out": (admission_review("deployment", OUT), "opted-out"),
    "a sidecar of its own": (admission_review("deployment", initContainers=OWN_SIDECAR), "already-there"),
    "on the node's network": (admission_review("bare", hostNetwork=True), "host-network"),
    "on Windows": (admission_review("deployment", os={"name": "windows"}), "not-linux"),
    "on Windows nodes": (admission_review("deployment", nodeSelector={"kubernetes.io/os": "windows"}), "not-linux"),
    "a mirror pod": (admission_review("deployment", None, {"kubernetes.io/config.mirror": "false"}), "mirror-pod"),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_skipped_pods_have_the_reason_as_label(case: str, template: Template) -> None:
    asked, reason = SKIPPED[case]
    pod, skipped = _decide(asked, template)
    assert skipped == reason
    assert pod["metadata"]["labels"]["kquota.io/injection-skipped"] == reason
    assert pod["spec"] == asked["request"]["object"]["spec"]
    assert pod["metadata"].get("annotations") == asked["request"]["object"]["metadata"].get("annotations")


def test_a_job_is_skipped_where_it_would_not_end() -> None:
    pod, skipped = _decide(admission_review("job"), template_of(kubernetes="1.28.0"))
    assert skipped == "job-would-not-end"
    assert [one["name"] for one in pod["spec"]["containers"]] == ["app"]


def test_webhook_honours_opt_in() -> None:
    wanted = template_of(MANAGED)
    assert _decide(admission_review("deployment"), wanted)[1] == "not-opted-in"
    assert _decide(admission_review("deployment", IN), wanted)[1] is None


def test_ignores_a_pods_own_labels(template: Template) -> None:
    """Our labels and annotations win, and our volumes are mounted: no pod brings a configuration under our name."""
    labels = {"kquota.io/config": "mine", "kquota.io/injection-skipped": "no-need"}
    asked = admission_review("deployment", labels, {"kquota.io/restart-checksum": "0"})
    own = {"name": "kquota-config", "configMap": {"name": "mine"}}
    asked["request"]["object"]["spec"]["volumes"].append(own)
    pod = _pod(asked, template)
    assert pod["metadata"]["labels"]["kquota.io/config"] == "shop-kquota"
    assert "kquota.io/injection-skipped" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"].items() >= template.annotations.items()
    ours = {"name": "kquota-kquota-config", "configMap": {"name": "shop-kquota"}}
    assert [one for one in pod["spec"]["volumes"] if "configMap" in one] == [own, ours]
    mounts = {one["mountPath"]: one["name"] for one in pod["spec"]["initContainers"][0]["volumeMounts"]}
    assert mounts["/etc/kquota"] == ours["name"]


def test_neither_replaces_the_volumes_of_the_other() -> None:
    """A Secret of the sidecar has the name that the pod has for its own."""
    secret = {"name": "tls", "secret": {"secretName": "kafka-client"}}
    template = template_of(volumes=[secret])
    template.container["volumeMounts"] = [{"name": "tls", "mountPath": "/etc/kquota-tls"}]
    own = {"name": "tls", "secret": {"secretName": "app"}}
    spec = _pod(admission_review("bare", volumes=[own]), template)["spec"]
    assert spec["volumes"] == [own, secret | {"name": "kquota-tls"}]
    assert spec["initContainers"][0]["volumeMounts"][0]["name"] == "kquota-tls"
    again = _pod(admission_review("bare", volumes=[secret]), template)
    assert again["spec"]["volumes"] == [secret], "the same volume"


def test_admin_port_stays_the_protected_one() -> None:
    """webhook.networkPolicy restricts one port."""
    refused = _review(_annotated(admin_port="9405"), template_of(VALUES)).refused
    assert "expected 9404, the port that the chart's webhook.networkPolicy protects, got '9405'" in str(refused)


RESOURCES: dict[str, tuple[dict[str, str], dict[str, dict[str, str]]]] = {
    "all": (
        {"cpu_request": "250m", "memory_request": "200Mi", "memory_limit": "1Gi", "cpu_limit": "2"},
        {"requests": {"cpu": "250m", "memory": "200Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
    ),
    "a low CPU limit": ({"cpu_limit": "50m"}, {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}}),
    "a low memory limit": ({"memory_limit": "100Mi"}, {"requests": {"memory": "100Mi"}, "limits": {"memory": "100Mi"}}),
    "a high memory request": ({"memory_request": "1Gi"}, {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
    "a memory request below": ({"memory_request": ".2e9"}, {"requests": {"memory": ".2e9"}}),
    "as Kubernetes writes it": ({"cpu_request": ".5", "memory_limit": "1e9"}, {"limits": {"memory": "1e9"}}),
}


@pytest.mark.parametrize("case", RESOURCES)
def test_a_pod_sets_resources_and_image_of_its_sidecar(case: str, template: Template) -> None:
    """A request is never above its limit."""
    wishes, expected = RESOURCES[case]
    image = "registry.example/kquota:9"
    sidecar = _pod(_annotated(**wishes, image=image), template)["spec"]["initContainers"][0]
    resources = sidecar["resources"]
    for kind, found in expected.items():
        assert found.items() <= resources[kind].items()
    usual = template.container["resources"]
    untouched = {"cpu", "memory"} - {name.split("_")[0] for name in wishes}
    assert all(resources["requests"][name] == usual["requests"][name] for name in untouched)
    assert sidecar == template.container | {"image": image, "resources": resources}
    assert usual["limits"] == {"memory": "368Mi"}, "the template is not touched"


def test_resources_of_the_whole_pod_grow_by_the_sidecars(template: Template) -> None:
    level = {"requests": {"memory": "100Mi", "cpu": "1"}, "limits": {"memory": "1Gi", "cpu": "1500m"}}
    grown = {"requests": {"memory": "228Mi", "cpu": "1100m"}, "limits": {"memory": "1392Mi", "cpu": "1600m"}}
    assert _pod(admission_review("bare", resources=level), template)["spec"]["resources"] == grown


def test_the_secrets_that_namespaces_need_are_named() -> None:
    given = """
        imagePullSecrets: [{name: regcred}]
        config: {fleet: {id: shop}}
        fleetKey: {secret: fleet}
        extraVolumes:
        - {name: tls, secret: {secretName: kafka-client}}
        - {name: more, secret: {secretName: more, optional: true}}
        - {name: tmp, emptyDir: {}}
    """
    manifests = documents(render_text(VALUES, "--values", "-", stdin=given))
    assert injected(manifests)["distribution"]["secrets"] == ["regcred", "fleet", "kafka-client"]
    assert template_of().distribution.secrets == ()


def test_pods_get_the_pull_secrets_of_the_image(template: Template) -> None:
    regcred, own = {"name": "regcred"}, {"name": "own"}
    needing = template_of(imagePullSecrets=[regcred, own])
    assert _pod(admission_review("bare"), needing)["spec"]["imagePullSecrets"] == [regcred, own]
    pod = _pod(admission_review("bare", imagePullSecrets=[own]), needing)
    assert pod["spec"]["imagePullSecrets"] == [own, regcred]
    assert "imagePullSecrets" not in _pod(admission_review("bare"), template)["spec"]


OTHER = {"name": "OTHER", "value": "$(KAFKA_BOOTSTRAP_SERVERS)"}
DIRECT = {"name": "KAFKA_BOOTSTRAP_SERVERS", "value": "kafka:9092"}
NAMES = ("SPRING_KAFKA_BOOTSTRAP_SERVERS", "BROKERS")
ENVIRONMENTS: dict[str, tuple[dict[str, Any], dict[str, str], list[dict[str, Any]] | None]] = {
    "none": ({}, {}, [ADDRESS]),
    "others": ({"env": [OTHER]}, {}, [ADDRESS, OTHER]),
    "its own": ({"env": [DIRECT]}, {}, [DIRECT]),
    "from elsewhere": ({"envFrom": [{"configMapRef": {"name": "kafka"}}]}, {}, None),
    "opted out": ({}, {"bootstrap_variable": ""}, None),
    "other names": ({}, {"bootstrap_variable": ", ".join(NAMES)}, [ADDRESS | {"name": name} for name in NAMES]),
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_containers_get_the_sidecars_address(case: str, template: Template) -> None:
    container, wishes, expected = ENVIRONMENTS[case]
    asked = _annotated(**wishes)
    asked["request"]["object"]["spec"]["containers"] = [{"name": "app", "image": "own"} | container]
    assert _pod(asked, template)["spec"]["containers"][0].get("env") == expected
    without = _pod(asked, template_of(bootstrap=None))
    assert without["spec"]["containers"] == asked["request"]["object"]["spec"]["containers"]


def _with(annotations: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    return admission_review("bare", None, annotations, containers=[{"name": "app", "image": "own"} | container])


def _ports(*numbers: int, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return _with(annotations, ports=[{"containerPort": number} for number in numbers])


def _bootstrap(address: str) -> dict[str, Any]:
    return _with(env=[ADDRESS | {"value": address}])


ELSEWHERE = {"kquota.io/admin-port": "9405"}
BYPASS = "container app sets KAFKA_BOOTSTRAP_SERVERS to kafka:9092: this bypasses the sidecar at 127.0.0.1:9092"
WARNED: dict[str, tuple[dict[str, Any], str | None]] = {
    "another port": (_ports(8080, 19192), None),
    "the admin port": (
        _ports(9404),
        "container app declares port 9404, and the sidecar listens on 9404 (config.admin.port): only one of them can; "
        "annotation kquota.io/admin-port selects another",
    ),
    "another admin port": (
        _ports(9404, 9405, annotations=ELSEWHERE),
        "container app declares port 9405, and the sidecar listens on 9405 (config.admin.port)",
    ),
    "Kafka's": (_ports(9092), "listens on 9092 (config.listen.port): only one of them can"),
    "a broker's": (_ports(19191), "listens on 19092-19191 (config.listen.broker_ports)"),
    "past the sidecar": (_bootstrap("kafka:9092"), BYPASS),
    "partly past it": (_bootstrap("127.0.0.1:9092, kafka:9092"), "to 127.0.0.1:9092, kafka:9092: this bypasses"),
    "another local port": (_bootstrap("localhost:9999"), "to localhost:9999: this bypasses"),
    "to the sidecar": (_bootstrap("127.0.0.1:9092"), None),
    "by name": (_bootstrap("localhost:9092"), None),
    "annotation": (
        _annotated(memory_limits="1Gi"),
        "annotation kquota.io/memory-limits is unknown to kquota; did you mean kquota.io/memory-limit?",
    ),
    "a label as annotation": (
        _annotated(inject="false"),
        "annotation kquota.io/inject is unknown to kquota: set it as a label of the pod",
    ),
    **{
        value: (
            admission_review("deployment", {"kquota.io/inject": value}),
            f'label kquota.io/inject: expected "true" or "false", got "{value}": the pod gets a sidecar',
        )
        for value in ("False", "no", "disabled", "0")
    },
}


@pytest.mark.parametrize("case", WARNED)
def test_warns_of_what_clashes_or_has_no_meaning(case: str, template: Template) -> None:
    asked, said = WARNED[case]
    answer = _review(asked, template).answer["response"]
    assert answer["allowed"] is True
    warnings = answer.get("warnings", [])
    assert len(warnings) == (said is not None)
    assert all(one.startswith("kquota: ") and (said or "") in one for one in warnings)
    asked = copy.deepcopy(asked)
    asked["request"]["object"]["metadata"]["labels"] = OUT
    assert "warnings" not in _review(asked, template).answer["response"]


def test_keeps_a_pods_own_prometheus_annotations() -> None:
    ours = {"prometheus.io/scrape": "true", "prometheus.io/path": "/metrics", "prometheus.io/port": "9404"}
    asking = template_of(annotations=ours | {"other": "1"})
    assert _pod(admission_review("bare"), asking)["metadata"]["annotations"] == ours | {"other": "1"}
    own = {"prometheus.io/port": "8080"}
    asked = admission_review("bare", None, own)
    assert _pod(asked, asking)["metadata"]["annotations"] == own | {"other": "1"}
    (warning,) = _review(asked, asking).answer["response"]["warnings"]
    assert warning.startswith("kquota: the pod keeps its own prometheus.io/port")


def test_a_pod_selects_another_admin_port() -> None:
    template = unprotected(annotations={"prometheus.io/port": "9404"})
    pod = _pod(_ports(9404, annotations=ELSEWHERE), template)
    sidecar = pod["spec"]["initContainers"][0]
    assert sidecar["ports"] == [{"name": "kquota-metrics", "containerPort": 9405, "protocol": "TCP"}]
    assert {"name": "KQUOTA_ADMIN_PORT", "value": "9405"} in sidecar["env"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9405"


def test_adds_its_volume_to_those_that_are_safe_to_evict() -> None:
    name = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
    storing = template_of(annotations={name: "kquota-state"})
    for own, expected in ((None, "kquota-state"), ("a, b", "a,b,kquota-state"), ("kquota-state", "kquota-state")):
        asked = admission_review("bare", None, {} if own is None else {name: own})
        assert _pod(asked, storing)["metadata"]["annotations"][name] == expected


def test_injected_pods_have_one_configmap_of_many_parts() -> None:
    """The copy of their namespace; only the release's own has the original's parts."""
    parts = {"name": "kquota-config", "projected": {"sources": [{"configMap": {"name": "shop-kquota"}}]}}
    many = template_of(volumes=[parts])
    asked = admission_review("bare")
    assert _pod(asked, many)["spec"]["volumes"] == [{"name": "kquota-config", "configMap": {"name": "shop-kquota"}}]
    asked["request"]["namespace"] = NAMESPACE
    assert _pod(asked, many)["spec"]["volumes"] == [parts]


def test_pod_brings_own_configuration_where_allowed() -> None:
    pod = _pod(_annotated(config_map="checkout-quotas"), template_of(GENERATED))
    assert {"name": "kquota-config", "configMap": {"name": "checkout-quotas"}} in pod["spec"]["volumes"]


WRONG_ANNOTATIONS: dict[str, tuple[dict[str, str], str]] = {
    "memory": ({"memory_limit": "10Gb"}, "annotation kquota.io/memory-limit: expected memory as Kubernetes writes it,"),
    "milli": ({"memory_request": "128m"}, "such as 256Mi or 1G, got '128m'"),
    "contradiction": (
        {"memory_request": "2Gi", "memory_limit": "1Gi"},
        "annotation kquota.io/memory-request: expected at most 1Gi (annotation kquota.io/memory-limit), got '2Gi'",
    ),
    "cpu": ({"cpu_request": "half"}, "such as 250m or 1, got 'half'"),
    "image": ({"image": "kquota latest"}, "expected an image"),
    "port": ({"admin_port": "metrics"}, "annotation kquota.io/admin-port: expected a port from 1 to 65535"),
    "no port": ({"admin_port": "65536"}, "such as 9405, got '65536'"),
    "clients' port": ({"admin_port": "9092"}, "expected a port other than config.listen.port (9092), got '9092'"),
    "a broker's port": ({"admin_port": "19100"}, "than config.listen.broker_ports (19092-19191), got '19100'"),
    "variable": ({"bootstrap_variable": "A,=B"}, "names of environment variables, separated by commas, got '=B'"),
    "config": ({"config_map": "mine"}, "webhook.podsMaySet of the chart has no config"),
}


@pytest.mark.parametrize("case", WRONG_ANNOTATIONS)
def test_refuses_invalid_annotations(case: str, template: Template) -> None:
    """Not silently served otherwise: the ReplicaSet's event has the sentence."""
    wishes, said = WRONG_ANNOTATIONS[case]
    asked = _annotated(**wishes)
    decision = _review(asked, template)
    response = decision.answer["response"]
    assert (response["allowed"], response["status"]["code"], "patch" in response) == (False, 400, False)
    assert said in response["status"]["message"]
    assert decision.refused is not None
    asked["request"]["object"]["metadata"]["labels"]["kquota.io/inject"] = "false"
    assert _decide(asked, template)[1] == "opted-out"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"null", b"{}", b'{"kind": "AdmissionReview"}', b"\xff\xfe"),
        json.dumps(admission_review("bare") | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps(admission_review("bare") | {"request": {"uid": "1", "kind": {"kind": "Node"}}}).encode(),
        json.dumps(admission_review("bare", containers=7)).encode(),
    ],
)
def test_refuses_reviews_of_other_objects(body: bytes, template: Template) -> None:
    with pytest.raises(ReviewError, match="expected"):
        review(body, template)


def test_refuses_invalid_template() -> None:
    for data in (b"", b"{}", b'{"native": true}', sidecar_template()[:-1]):
        with pytest.raises(ValueError, match="expected the template"):
            Template.parse(data)


ENABLED = {"kquota.io/injection": "enabled"}
IGNORE, FAIL = ({"kquota.io/failure-policy": policy} for policy in ("Ignore", "Fail"))
ORDERS, WEB = ({"kubernetes.io/metadata.name": name} for name in ("orders", "web"))
NAMESPACES: dict[str, tuple[dict[str, str], Path, str | None]] = {
    "one label is enough": (ENABLED, VALUES, "Fail"),
    "no label": ({}, VALUES, None),
    "another value": ({"kquota.io/injection": "disabled"}, VALUES, None),
    "the other policy": (ENABLED | IGNORE, VALUES, "Ignore"),
    "the same policy": (ENABLED | FAIL, VALUES, "Fail"),
    "a typing mistake": (ENABLED | {"kquota.io/failure-policy": "ignore"}, VALUES, "Fail"),
    "a chart that ignores": (ORDERS | ENABLED, MANAGED, "Ignore"),
    "... but not here": (ORDERS | ENABLED | FAIL, MANAGED, "Fail"),
    "not listed": (ENABLED | WEB, GENERATED, None),
    "listed": (ENABLED | ORDERS, GENERATED, "Fail"),
    "listed, no label": (ORDERS, GENERATED, None),
}


@pytest.mark.parametrize("case", NAMESPACES)
def test_labels_of_a_namespace_choose_the_failure_policy(case: str) -> None:
    """Just one of the two webhooks is asked about each pod, or none."""
    labels, values, expected = NAMESPACES[case]
    (hooks,) = of_kind(rendered(values), "MutatingWebhookConfiguration")

    def selects(selector: dict[str, Any]) -> bool:
        """As the API server reads a label selector."""
        for one in selector["matchExpressions"]:
            inside = labels.get(one["key"]) in one["values"]
            if inside is not (one["operator"] == "In"):
                return False
        return selector["matchLabels"].items() <= labels.items()

    asked = [one["failurePolicy"] for one in hooks["webhooks"] if selects(one["namespaceSelector"])]
    assert asked == ([] if expected is None else [expected])


def test_webhook_role_has_least_privilege() -> None:
    """ConfigMaps by name alone (new ones have none where permissions are looked up), its own Secret and webhooks."""
    manifests = rendered(VALUES)
    (cluster,) = of_kind(manifests, "ClusterRole")
    for rule in cluster["rules"]:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        writes = set(rule["verbs"]) - {"get", "list"}
        assert "resourceNames" in rule or writes <= {"create"}, rule
        assert "secrets" not in rule["resources"]
        assert "pods" not in rule["resources"]
    (role,) = of_kind(manifests, "Role")
    assert {tuple(rule["resources"]) for rule in role["rules"]} == {("secrets",)}
    assert of_kind(rendered(MANAGED), "Role") == []


def test_network_policy_closes_admin_port_only() -> None:
    spec = template_of(VALUES).distribution.network_policy
    assert spec is not None
    assert set(spec["podSelector"]["matchLabels"]) == {INJECTED_LABEL}
    open_to_all = [rule for rule in spec["ingress"] if "from" not in rule]
    tcp = [port for rule in open_to_all for port in rule["ports"] if port["protocol"] == "TCP"]
    allowed = {number for one in tcp for number in range(one["port"], one.get("endPort", one["port"]) + 1)}
    assert set(range(1, 65_536)) - allowed == {9404}
    (closed,) = [rule for rule in spec["ingress"] if "from" in rule]
    assert [one["port"] for one in closed["ports"]] == [9404]


def test_cert_manager_makes_the_certificate_where_it_is_asked_to() -> None:
    manifests = rendered(MANAGED)
    (certificate,) = of_kind(manifests, "Certificate")
    name = certificate["metadata"]["name"]
    assert certificate["spec"]["dnsNames"] == [f"{name}.{NAMESPACE}.svc"]
    assert of_kind(manifests, "Secret") == []


@pytest.mark.parametrize("values", [VALUES, MANAGED, GENERATED])
def test_no_manifest_says_what_is_trusted(values: Path) -> None:
    """The webhook writes it, so that a switch of `webhook.certificates` leaves no field with two managers."""
    for hooks in of_kind(rendered(values), "MutatingWebhookConfiguration"):
        assert all("caBundle" not in one["clientConfig"] for one in hooks["webhooks"])
        assert "annotations" not in hooks["metadata"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Webhook]:
    """With the certificate that Helm makes, and an API server that does not answer: pods are answered nevertheless."""
    manifests = rendered(GENERATED)
    (own,) = [one for one in of_kind(manifests, "Deployment") if one["metadata"]["name"].endswith("-webhook")]
    (container,) = own["spec"]["template"]["spec"]["containers"]
    port, closed_port = free_ports(2)
    authority = write_certificate(manifests, tmp_path)
    (tmp_path / "sidecar.json").write_bytes(sidecar_template())
    arguments = [one.replace("/etc/kquota-tls", "/etc/kquota") for one in container["args"]]
    with (tmp_path / "log").open("w") as log:
        process = started(
            *(one.replace("/etc/kquota", str(tmp_path)) for one in arguments),
            *("--host=127.0.0.1", f"--port={port}", f"--service-account={service_account(tmp_path)}"),
            env={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(closed_port)},
            stdout=log,
            stderr=log,
        )
    found = Webhook(port, tmp_path, f"shop-kquota-webhook.{NAMESPACE}.svc", authority, process)
    try:
        until_serving(found.healthy, found.process)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        code, output = process.wait(LIMIT_S), (tmp_path / "log").read_text()
    assert code == 0, output
    assert "Traceback" not in output
    assert "namespace configuration is not up to date" in output


def test_pods_are_changed_over_https(running: Webhook, template: Template) -> None:
    for name in ("deployment", "job", "bare"):
        asked = admission_review(name)
        pod = _patched(asked, running.post(asked).raise_for_status().json())
        assert pod["spec"]["initContainers"][0] == template.container
    asked = admission_review("job", OUT)
    pod = _patched(asked, running.post(asked).raise_for_status().json())
    assert pod["metadata"]["labels"]["kquota.io/injection-skipped"] == "opted-out"
    metrics = httpx.get(f"https://127.0.0.1:{running.port}/metrics", verify=False).text
    assert "# TYPE kquota_webhook_namespace_problem gauge" in metrics


def test_unanswerable_review_is_an_http_error(running: Webhook) -> None:
    assert running.post(b"{}").status_code == 400
    assert running.post(b"x" * (9 * 1024 * 1024)).status_code == 413
    assert running.post(b"{}", path="/elsewhere").status_code == 404
    assert running.post(admission_review("bare"), path="/validate").status_code == 400
    quotas = admission_review("bare")
    quotas["request"] |= {"kind": {"kind": "ConfigMap"}, "object": {"kind": "ConfigMap", "data": {"quotas.yaml": ""}}}
    assert running.post(quotas, path="/validate").status_code == 500, "the API server applies the failure policy"
    (running.directory / "sidecar.json").write_text("{}")
    assert running.post(admission_review("bare")).status_code == 500
    assert not running.healthy()
    (running.directory / "sidecar.json").write_bytes(sidecar_template(optIn=True))  # a changed template counts at once
    pod = _patched(admission_review("bare"), running.post(admission_review("bare")).json())
    assert pod["metadata"]["labels"] == {"kquota.io/injection-skipped": "not-opted-in"}


def test_a_renewed_certificate_is_taken_over(running: Webhook) -> None:
    """As cert-manager renews it: same process, new authority. A broken pair on the way there changes nothing."""
    fresh = documents(render_text(GENERATED))
    (running.directory / "tls.crt").write_text("nonsense")
    until(lambda: "certificate refused" in (running.directory / "log").read_text())
    assert running.post(admission_review("bare")).status_code == 200
    authority = write_certificate(fresh, running.directory)
    until_serving(
        lambda: running.post(admission_review("bare"), authority=authority).status_code == 200, running.process
    )
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        running.post(admission_review("bare"))


@pytest.mark.parametrize(
    ("families", "answering"), [("IPv6", {"[fd00::5]", "127.0.0.1"}), ("IPv4 alone", {"127.0.0.1"})]
)
def test_probes_reach_webhook_and_sidecar(families: str, answering: set[str], tmp_path: Path) -> None:
    """With the hosts that the chart gives, in a network of its own; 127.0.0.1 is in every pod."""
    manifests = rendered(GENERATED)
    write_certificate(manifests, tmp_path)
    (tmp_path / "sidecar.json").write_bytes(sidecar_template())
    (tmp_path / "kquota.yaml").write_text(configuration(manifests))
    network = Namespace()
    if families == "IPv6":
        network.run("ip", "address", "add", "fd00::5/64", "dev", "lo", "nodad")
    else:
        network.run("sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
    tls = [f"--{name}={tmp_path}/{file}" for name, file in (("cert", "tls.crt"), ("key", "tls.key"))]
    account = f"--service-account={service_account(tmp_path)}"
    run = ["run", f"--config={tmp_path}/kquota.yaml"]
    api_server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    programs: dict[str, tuple[list[str], dict[str, str]]] = {
        "https://{}:8443/healthz": (["webhook", f"--template={tmp_path}/sidecar.json", *tls, account], api_server),
        "http://{}:9404/healthz": (run, {}),
        "http://{}:9405/healthz": (run, {"KQUOTA_ADMIN_PORT": "9405"}),
    }
    with network.inside():
        for url, (arguments, env) in programs.items():
            process = started(*arguments, env=env, stderr=subprocess.STDOUT)

            def found(url: str = url) -> set[str]:
                hosts = set()
                for host in ("127.0.0.1", "[fd00::5]"):
                    with suppress(httpx.HTTPError):
                        if httpx.get(url.format(host), verify=False, timeout=5).status_code == 200:
                            hosts.add(host)
                return hosts

            try:
                until_serving(found, process)
                assert found() == answering, url
            finally:
                process.kill()
                process.communicate()


@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.1", "none.crt"), ("", "KUBERNETES_SERVICE_HOST is not set: the webhook must run in a pod")],
)
def test_webhook_names_startup_errors(host: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sidecar.json").write_bytes(sidecar_template())
    files = {"template": "sidecar.json", "cert": "none.crt", "key": "none.key"}
    arguments = [f"--{name}={tmp_path}/{file}" for name, file in files.items()]
    account = f"--service-account={service_account(tmp_path)}"
    done = kquota("webhook", *arguments, account, KUBERNETES_SERVICE_HOST=host)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert said in done.stderr
