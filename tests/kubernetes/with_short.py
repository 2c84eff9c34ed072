"""The least that a change has to be shown with: one pod is ready, throttled, given changed quotas, and drained."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kubernetes import workloads
from tests.kubernetes.installed import GRACE_S, RATE, installed, shop_values
from tests.kubernetes.node import NAME, Node
from tests.kubernetes.workloads import name_of_pod, statuses
from tests.support.waiting import until


def test_a_pod_is_ready_throttled_reloaded_and_drained(node: Node, shop: Path) -> None:
    with installed(node, shop, "short", shop_values(topic="short")) as release:
        pod = release.pod()
        until(lambda: "throttling begins" in release.sidecar_log(pod), lambda: release.sidecar_log(pod), 90)
        release.settled_rate(pod, RATE)
        release.helm("upgrade", shop_values(3 * RATE, topic="short"))
        release.settled_rate(pod, 3 * RATE)
        assert {one["restartCount"] for one in statuses(release.pod()).values()} == {0}
        with release.following(pod, "app") as said:
            limit = f"--timeout={GRACE_S}s"
            node.kubectl("drain", NAME, "--pod-selector=shop=short", limit)
        node.kubectl("uncordon", NAME)
        done = json.loads(said["app"][-1].split(" ", 1)[1])
        workloads.assert_exactly(node, "short", done, name_of_pod(pod))
