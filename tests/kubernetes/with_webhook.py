"""Injection on a real node: pods of charts that know nothing of kquota, by one label of their namespace."""

import json

from tests.kubernetes import workloads
from tests.kubernetes.injected import ORDERS, ORDERS_POD, values
from tests.kubernetes.installed import RATE, Release
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import container, deployment, name_of_pod, statuses, throttled_s
from tests.support.chart_tools import manifest
from tests.support.waiting import until


def test_one_label_is_enough_for_the_chart_of_others(node: Node, webhook: Release, orders: Release) -> None:
    pod = orders.pod(ORDERS_POD)
    assert pod["metadata"]["labels"]["kquota.io/injected"]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota"]
    assert [one["name"] for one in pod["spec"]["containers"]] == ["orders"]
    until(lambda: throttled_s(node, pod) > 5, lambda: orders.sidecar_log(pod), 90)
    orders.settled_rate(pod, RATE)


def test_ten_thousand_quotas_reach_the_namespace(node: Node, webhook: Release, orders: Release) -> None:
    """More than a ConfigMap holds: in parts, in one compressed copy, and in force at once, without a restart."""
    pod = orders.pod(ORDERS_POD)
    many = values(3 * RATE)
    entry = {"producer_byte_rate": "1M", "consumer_byte_rate": "2500k"}
    names = ({"user": f"team-{n}-of-another-house", "client-id": f"service-{n}"} for n in range(10_000))
    many["quotas"] += [one | entry for one in names]
    webhook.helm("upgrade", many)
    orders.settled_rate(pod, 3 * RATE)
    url = f"http://{pod['status']['podIP']}:9404/explain"
    found = node.http(url, user="team-9999-of-another-house", client_id="service-9999").json()["kinds"]
    assert {one["kind"]: one["limit"] for one in found}["produce"] == 1_000_000, found
    webhook.helm("upgrade", values())
    orders.settled_rate(pod, RATE)
    after = orders.pod(ORDERS_POD)
    assert name_of_pod(after) == name_of_pod(pod)
    assert {one["restartCount"] for one in statuses(after).values()} == {0}


def test_an_injected_pod_is_used_as_before(node: Node, webhook: Release, orders: Release) -> None:
    """An init container that needs Kafka, a Service by port name, logs, exec, debug and resize; under 50m of CPU."""
    serving = container(
        "client", ["python3", "-m", "http.server", "8080"], ports=[{"name": "metrics", "containerPort": 8080}]
    )
    first = workloads.producer("orders-first", "--records=20", name="first")
    made = deployment("web", serving, initContainers=[first], terminationGracePeriodSeconds=1)
    made["spec"]["template"]["metadata"]["annotations"] = {"kquota.io/cpu-limit": "50m"}
    ports = [{"port": 80, "targetPort": "metrics"}]
    service = manifest("Service", "web", spec={"selector": {"app": "web"}, "ports": ports})
    node.apply(made, service, namespace=ORDERS)
    pod = workloads.ready_pod(node, ORDERS, "app=web")
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota", "first"]
    address = node.object("service", "web", ORDERS)["spec"]["clusterIP"]
    until(lambda: node.http(f"http://{address}/").status_code == 200, limit_s=30)
    where = ["--namespace", ORDERS, name_of_pod(pod)]
    assert "GET /" in node.kubectl("logs", *where)
    assert node.kubectl("exec", *where, "--", "cat", "/proc/1/cmdline").startswith("python3\0-m\0http.server")
    node.kubectl("debug", *where, "--image=localhost/client:test", "--image-pull-policy=Never", "--profile=restricted",
                 "--container=look", "--", "true")  # fmt: skip
    sizes = {"spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "20m"}}}]}}
    node.kubectl("patch", "pod", *where, "--subresource=resize", "--patch", json.dumps(sizes))
    assert {one["restartCount"] for one in statuses(workloads.ready_pod(node, ORDERS, "app=web")).values()} == {0}
    node.kubectl("delete", "deployment,service", "web", "--namespace", ORDERS)
