"""With a real Kubernetes API server: each file in examples/ is installed by its own command, and `kquota ui` finds the
sidecars of a namespace through it. There is no kubelet: a pod's address is this machine's, where a sidecar runs."""

import json
import os
import re
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.load import load_bytes, warnings_of
from tests.apiserver import pods
from tests.apiserver.with_apiserver import api, path
from tests.lab.chart import CHART
from tests.lab.kafka.ports import free_ports
from tests.support.apiserver_tools import ApiServer
from tests.support.chart_tools import EXAMPLES, ROOT, example_values, helm, kubectl_executable, manifest
from tests.support.forked import run_kquota
from tests.support.waiting import until

__all__ = ["api"]

INSTALL = re.compile(r"# +(helm install (?:.*\\\n# +)*.*)")


def command_of(name: str, folder: Path) -> list[str]:
    """What the head of the file says; operators of GitOps get the values, and install as Helm does."""
    said = INSTALL.search(EXAMPLES[name].read_text())
    if said is None:
        (file := folder / "values.yaml").write_text(yaml.safe_dump(example_values(name)))
        return ["install", "kquota", str(CHART), "--namespace", "kquota", "--create-namespace", "--values", str(file)]
    words = shlex.split(said[1].replace("\\\n#", ""))
    return [str(ROOT / word) if word.startswith(("helm/", "examples/")) else word for word in words[1:]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_installed_by_its_command(api: ApiServer, name: str, tmp_path: Path) -> None:
    to = ("--kubeconfig", str(api.kubeconfig))
    done = helm(*command_of(name, tmp_path), *to, "--no-hooks")
    try:
        assert done.returncode == 0, done.stderr
        assert "violate PodSecurity" not in done.stderr
        maps = [one["data"] for one in api.get(path("ConfigMap", "kquota"))["items"]]
        (text,) = [data["kquota.yaml"] for data in maps if "kquota.yaml" in data]
        config = load_bytes(name, text.encode())
        warnings = [str(one) for one in warnings_of(config)]
        assert warnings == [] or name in ("strimzi",), warnings
        monitoring = ["PodMonitor", "PrometheusRule", "NetworkPolicy"]
        expected = {"gateway": ["Deployment", "Service"], "monitoring": monitoring}
        for kind in expected.get(name, ["MutatingWebhookConfiguration"]):
            assert api.get(path(kind, "kquota"))["items"], kind
    finally:
        gone = helm("uninstall", "kquota", "--namespace", "kquota", *to, "--no-hooks")
    assert gone.returncode == 0, gone.stderr


@pytest.fixture
def this_machine() -> str:
    """An address at which the API server reaches pods: not one of the loopback."""
    (first, *_) = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split() or [""]
    if not first:
        pytest.skip("this machine has no address but the loopback's")
    return first


def test_ui_shows_the_sidecars_of_a_namespace(
    api: ApiServer, this_machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rights that the documentation names, and no others."""
    api.namespace("shop")
    listen, admin, broker = free_ports(3)
    (config := tmp_path / "kquota.yaml").write_text(
        f"upstream: {{bootstrap: ['127.0.0.1:{broker}']}}\nlisten: {{port: {listen}}}\nquotas: []\n"
        f"admin: {{host: '{this_machine}', port: {admin}}}\n"
    )
    container = pods.container("kquota", ports=[{"name": "kquota-metrics", "containerPort": admin}])
    for name, containers in (("orders-0", [container]), ("orders-1", [container]), ("without", [])):
        spec = {"containers": [pods.APP, *containers]}
        api.create(path("Pod", "shop"), manifest("Pod", name, spec=spec))
        address = this_machine if name == "orders-0" else "192.0.2.77"
        status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        where = f"{path('Pod', 'shop')}/{name}/status"
        api.ask("PATCH", where, status, patch="merge-patch+json").raise_for_status()
    rules = [("pods", ["get", "list"]), ("pods/proxy", ["get"])]
    role = {"rules": [{"apiGroups": [""], "resources": [one], "verbs": verbs} for one, verbs in rules]}
    subject = {"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}
    bound = {"roleRef": {"kind": "Role", "name": "reader", "apiGroup": subject["apiGroup"]}, "subjects": [subject]}
    for kind, more in (("Role", role), ("RoleBinding", bound)):
        api.create(path(kind, "shop"), {"kind": kind, "metadata": {"name": "reader"}} | more)
    kubeconfig = yaml.safe_load(api.kubeconfig.read_text())
    kubeconfig["users"][0]["user"]["as"] = "reader"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    (programs := tmp_path / "bin").mkdir()
    (programs / "kubectl").symlink_to(kubectl_executable())
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with ExitStack() as stack:
        for words, name in ((["run", "--config", str(config)], "run"), (["ui", "-n", "shop", "--port", "0"], "ui")):
            started = run_kquota(words, tmp_path / name, ())
            stack.callback(started.wait, 20)
            stack.callback(started.send_signal, signal.SIGTERM)
        page = until(lambda: re.search(r"^namespace shop: (\S+)/ui/", (tmp_path / "ui").read_text()), "the page")

        def snapshot() -> Any:
            with urllib.request.urlopen(f"{page[1]}/snapshot", timeout=20) as answer:
                return json.load(answer)

        found = until(lambda: not (said := snapshot())["sidecars"][-1]["error"] and said, "the sidecar")
        assert [one["pod"] for one in found["sidecars"]] == ["orders-1", "orders-0"]
        assert "orders-1:" in found["sidecars"][0]["error"]
        assert found["sidecars"][1]["not_ready"], "it has no cluster"
        # Its own page is behind the same door, and nothing but pods is.
        url = found["sidecars"][1]["url"]
        assert b"<title>kquota</title>" in urllib.request.urlopen(f"{url}/ui/", timeout=20).read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url.partition("/api/")[0] + "/api/v1/namespaces/shop/secrets", timeout=20)
    with pytest.raises(urllib.error.URLError, match="refused"):  # kubectl has ended with it
        urllib.request.urlopen(url, timeout=20)
