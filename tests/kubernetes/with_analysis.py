"""Reports on a real node: the chart's CronJob, over what a sidecar there has recorded on a volume that both mount."""

import csv
import json
import time
from pathlib import Path
from typing import Any, Final

from tests.kubernetes import workloads
from tests.kubernetes.image_store import name_of
from tests.kubernetes.installed import RECORD_BYTES, installed, shop_values
from tests.kubernetes.node import NAME, Node
from tests.kubernetes.workloads import name_of_pod, throttled_s
from tests.support.chart_tools import manifest
from tests.support.waiting import until

NAMESPACE: Final = "analysis"
CLAIM: Final = "usage"
CRONJOB: Final = "shop-kquota-usage"


def volume(node: Node) -> Path:
    """A directory of the node, as a volume that is claimed: "restricted" allows no pod to mount it otherwise."""
    folder = node.folder / "usage"
    folder.mkdir(exist_ok=True)
    workloads.namespace(node, NAMESPACE)
    common = {"storageClassName": CLAIM, "accessModes": ["ReadWriteMany"]}
    selector = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    place = {
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [selector]}]}},
    }
    claim = {"volumeName": CLAIM, "resources": {"requests": {"storage": "1Gi"}}}
    node.apply(manifest("PersistentVolume", CLAIM, spec=common | place))
    node.apply(manifest("PersistentVolumeClaim", CLAIM, spec=common | claim), namespace=NAMESPACE)
    return folder


def values(*, analysis: bool) -> dict[str, Any]:
    repository, _, tag = name_of("kquota-analysis").partition(":")
    claimed = {"persistentVolumeClaim": {"claimName": CLAIM}}
    made = shop_values(
        topic="analysis",
        config={
            "upstream": {"bootstrap": [workloads.BROKER]},
            "drain_timeout_s": 20,
            "export": {"directory": "/var/lib/kquota/records", "interval_s": 1},
        },
        state={"volume": claimed},
        analysis={
            "enabled": analysis,
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "schedule": "* * * * *",
            "input": "/usage/records",
            "output": "/usage/reports",
            "reports": [{"name": "usage"}],
            "driver": {"memory": "1g", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
            "volumes": [{"name": "usage"} | claimed],
            "volumeMounts": [{"name": "usage", "mountPath": "/usage"}],
        },
    )
    return made | {"replicas": 0 if analysis else 1, "securityContext": {"fsGroup": 65532}}


def test_scheduled_report_has_the_recorded_usage(node: Node, shop: Path) -> None:
    node.import_images("kquota-analysis")
    folder = volume(node)
    with installed(node, shop, NAMESPACE, values(analysis=False)) as release:
        pod = release.pod()
        until(lambda: throttled_s(node, pod) > 3, lambda: release.sidecar_log(pod), 90)
        with release.following(pod, "app") as said:
            release.helm("upgrade", values(analysis=True))  # no more pods of the application, from now on reports
        done = json.loads(said["app"][-1].split(" ", 1)[1])
        until(lambda: not node.pods(NAMESPACE, "app=shop"), limit_s=60)
        began = time.time()

        def succeeded() -> list[Any]:
            """Runs that began when all records were there."""
            jobs = node.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs").json()["items"]
            mine = [one for one in jobs if one["metadata"]["name"].startswith(CRONJOB)]
            later = [one for one in mine if int(one["metadata"]["name"].rpartition("-")[2]) * 60 > began]
            return [one for one in later if one["status"].get("succeeded")]

        (job, *_) = until(succeeded, lambda: workloads.describe(node, NAMESPACE), 240)
        (pod_of_job, *_) = node.pods(NAMESPACE, f"job-name={job['metadata']['name']}")
        assert pod_of_job["status"]["phase"] == "Succeeded"
        assert "<html" in (folder / "reports/usage/report.html").read_text()
        with (folder / "reports/usage/clients.csv").open(newline="") as file:
            rows = {row["client_id"]: row for row in csv.DictReader(file)}
        sent = done["acknowledged"] * RECORD_BYTES
        assert sent <= int(rows["orders"]["produce_bytes"]) <= 1.2 * sent, (done, rows)
        assert name_of_pod(pod) in (folder / "reports/usage/instances.csv").read_text()
