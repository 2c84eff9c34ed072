"""A real Kubernetes node, as a context manager: control plane, kubelet, containerd, runc, CNI, kube-proxy, CoreDNS."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.kubernetes import image_store
from tests.kubernetes.identities import write_identities
from tests.kubernetes.programs import NodePrograms, node_programs
from tests.lab.kafka.process import GuardedProcess
from tests.support.chart_tools import manifest
from tests.support.namespaces import Namespace
from tests.support.waiting import answered, until

ADDRESS: Final = "10.99.0.1"
GATEWAY: Final = "10.99.0.254"
PODS: Final = "10.98.0.0/24"
SERVICES: Final = "10.96.0.0/24"
API_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
NAME: Final = "node1"
CONTAINERD: Final = "/run/containerd/containerd.sock"
START_LIMIT_S: Final = 240.0
"""For one program to answer, on a machine that is busy with other things."""
RUN_LIMIT_S: Final = 330.0
"""Longer than Helm waits for hooks (300 s): its error says more."""


class NodeError(Exception):
    """The node, or a command in it, did not do what it should; has the end of the log that shows why."""


class Node:
    def __init__(self, folder: Path, namespace: Namespace, programs: NodePrograms) -> None:
        self.folder = folder
        self.namespace = namespace
        self.programs = programs
        self.times_s: dict[str, float] = {}
        self._identities = folder / "identities"
        self._kubeconfig = self._identities / "admin.kubeconfig"
        self._client: httpx.Client | None = None

    # --- programs of the node

    def order(self, what: str, limit_s: float = RUN_LIMIT_S, **more: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(limit_s)
            # A path of more than 107 characters is none for a socket.
            at = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
            try:
                connection.connect(f"/proc/self/fd/{at}/control")
            finally:
                os.close(at)
            connection.sendall(json.dumps({"do": what} | more).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
        if "error" in answer:
            raise NodeError(f"{what} {more}: {answer['error']}")
        return answer

    def run(self, *command: str | Path, limit_s: float = RUN_LIMIT_S) -> str:
        answer = self.order("run", limit_s, argv=[str(word) for word in command])
        if answer["status"] != 0:
            raise NodeError(f"{' '.join(map(str, command))} ended with {answer['status']}:\n{answer['output'][-4000:]}")
        return str(answer["output"])

    def start(self, name: str, *argv: str | Path) -> int:
        """Start a program of the node, or start it again; its process id, as the node sees it."""
        kept = self.folder / f"{name}.argv"
        if argv:
            kept.write_text(json.dumps([str(word) for word in argv]))
        return int(self.order("start", name=name, argv=json.loads(kept.read_text()))["pid"])

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        self.order("signal", name=name, number=number)
        until(lambda: not self.order("state", name=name)["running"], f"{name} does not end")

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.is_file() else ""

    def _await(self, name: str, condition: Any, started: float) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            if not self.order("state", name=name)["running"] or time.monotonic() > deadline:
                raise NodeError(f"{name} does not answer; the end of its log:\n{self.log(name)}")
            time.sleep(0.1)
        self.times_s[name] = time.monotonic() - started

    @property
    def authority(self) -> Path:
        return self._identities / "ca.crt"

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # --- the cluster

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self.namespace.inside():
            yield

    def get(self, path: str, **query: str) -> httpx.Response:
        with self.inside():
            if self._client is None:
                trust = ssl.create_default_context(cafile=str(self.authority))
                trust.load_cert_chain(self._identities / "admin.crt", self._identities / "admin.key")
                self._client = httpx.Client(verify=trust, timeout=30, base_url=f"https://{ADDRESS}:6443")
            return self._client.get(path, params=query)

    def http(self, url: str, **query: str) -> httpx.Response:
        with self.inside():
            return httpx.get(url, params=query, timeout=30)

    def kubectl(self, *arguments: str | Path, given: str | None = None) -> str:
        return _output(self.try_kubectl(*arguments, given=given))

    def try_kubectl(self, *arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        return self._client_program(self.programs.kubectl, *arguments, given=given)

    def helm(self, *arguments: str | Path) -> str:
        return _output(self.try_helm(*arguments))

    def try_helm(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self._client_program(self.programs.helm, *arguments)

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.folder / "home"), "KUBECONFIG": str(self._kubeconfig)}

    def _client_program(self, *command: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
        words, env = [str(word) for word in command], self.environment()
        with self.inside():
            return subprocess.run(words, input=given, capture_output=True, text=True, timeout=RUN_LIMIT_S, env=env)

    def apply(self, *manifests: dict[str, Any], namespace: str | None = None) -> None:
        where = [f"--namespace={namespace}"] if namespace else []
        self.kubectl("apply", *where, "--filename", "-", given=yaml.safe_dump_all(manifests))

    def object(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        where = [f"--namespace={namespace}"] if namespace else []
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, *where, "--output", "json"))
        return found

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """The pods of a namespace, those that are ending too."""
        answer = self.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        return list(answer.raise_for_status().json()["items"])

    def import_images(self, *images: str) -> None:
        if not images:
            return
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".tar") as together:
            image_store.write_together(images, Path(together.name))
            self.run(*self._ctr("images", "import", together.name), limit_s=600)

    def kill(self, container_id: str, number: int) -> None:
        self.run(*self._ctr("task", "kill", "--signal", str(number), container_id))

    def _ctr(self, *arguments: str | Path) -> list[str]:
        return ["ctr", "--address", CONTAINERD, "--namespace", "k8s.io", *map(str, arguments)]

    # --- start

    def bring_up(self, images: Sequence[str], cgroup: str) -> None:
        began = time.monotonic()
        self._write_configuration(cgroup)
        own, identity = self.folder, self._identities
        self.start(
            "etcd", self.programs.etcd, f"--data-dir={own}/etcd", "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380", "--log-level=error", "--unsafe-no-fsync",
        )  # fmt: skip
        self.start(
            "kube-apiserver", self.programs.kubernetes["kube-apiserver"], "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}", "--secure-port=6443",
            f"--tls-cert-file={identity}/apiserver.crt", f"--tls-private-key-file={identity}/apiserver.key",
            f"--client-ca-file={identity}/ca.crt", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={identity}/accounts.key",
            f"--service-account-signing-key-file={identity}/accounts.key",
            f"--kubelet-client-certificate={identity}/apiserver-kubelet.crt",
            f"--kubelet-client-key={identity}/apiserver-kubelet.key",
            f"--kubelet-certificate-authority={identity}/ca.crt", "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        )  # fmt: skip
        self.start("containerd", "containerd", "--config", own / "containerd.toml")
        self._await("containerd", lambda: self.order("run", argv=self._ctr("version"))["status"] == 0, began)
        self.import_images("pause")
        self._await("kube-apiserver", self.api_ready, began)
        self.start(
            "kubelet", self.programs.kubernetes["kubelet"], f"--kubeconfig={identity}/node.kubeconfig",
            f"--config={own}/kubelet.yaml", f"--root-dir={own}/kubelet", f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}", f"--cert-dir={own}/kubelet-pki", "-v=2",
        )  # fmt: skip
        self.start(
            "kube-controller-manager", self.programs.kubernetes["kube-controller-manager"],
            f"--kubeconfig={identity}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={identity}/accounts.key", f"--root-ca-file={identity}/ca.crt",
            "--use-service-account-credentials", "--leader-elect=false", "--allocate-node-cidrs=false",
            "--bind-address=127.0.0.1", "--authentication-skip-lookup",
        )  # fmt: skip
        self.start(
            "kube-scheduler", self.programs.kubernetes["kube-scheduler"],
            f"--kubeconfig={identity}/scheduler.kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1",
            "--authentication-skip-lookup",
        )  # fmt: skip
        self.start(
            "kube-proxy", self.programs.kubernetes["kube-proxy"], f"--kubeconfig={identity}/proxy.kubeconfig",
            "--proxy-mode=iptables", f"--cluster-cidr={PODS}", f"--hostname-override={NAME}",
            "--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0", f"--bind-address={ADDRESS}", "--oom-score-adj=0",
        )  # fmt: skip
        self.import_images(*images)
        self.times_s["images"] = time.monotonic() - began
        self._start_dns()
        self._await("coredns", self._dns_ready, began)
        self._await("kubelet", self.ready, began)
        until(lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default").status_code == 200, limit_s=120)

    def _dns_ready(self) -> bool:
        return bool(answered(lambda: self.http(f"http://{ADDRESS}:8181/ready").status_code == 200))

    def api_ready(self) -> bool:
        return answered(lambda: self.get("/readyz").text) == "ok"

    def ready(self) -> bool:
        answer = self.get(f"/api/v1/nodes/{NAME}")
        conditions = answer.json()["status"].get("conditions", []) if answer.status_code == 200 else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def kubelet_answers(self) -> bool:
        """Whether the kubelet runs, as far as the API server can see: a node stays ready for some time without it."""
        return self.get(f"/api/v1/nodes/{NAME}/proxy/healthz").text == "ok"

    def _start_dns(self) -> None:
        (self.folder / "Corefile").write_text(
            f".:53 {{\n  errors\n  ready {ADDRESS}:8181\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {self._identities}/dns.kubeconfig node\n  }}\n}}\n"
        )
        self.start("coredns", self.programs.coredns, "-conf", self.folder / "Corefile")
        ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
        labels = {"kubernetes.io/service-name": "kube-dns"}
        slice_ = {"addressType": "IPv4", "endpoints": [{"addresses": [ADDRESS]}], "ports": ports}
        self.apply(
            manifest("Service", "kube-dns", spec={"clusterIP": DNS_SERVICE, "ports": ports}),
            manifest("EndpointSlice", "kube-dns", "discovery.k8s.io/v1", labels, **slice_),
            namespace="kube-system",
        )

    def _write_configuration(self, cgroup: str) -> None:
        own, identity = self.folder, self._identities
        identity.mkdir()
        write_identities(identity, ADDRESS, API_SERVICE)
        (own / "cni").mkdir()
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }  # fmt: skip
        (own / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (own / "resolv.conf").write_text(f"nameserver {DNS_SERVICE}\n")
        (own / "containerd.toml").write_text(
            f"""\
version = 2
root = "{own}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image_store.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{self.programs.cni}"
    conf_dir = "{own}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
        )
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{identity}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "address": ADDRESS,
            "tlsCertFile": f"{identity}/kubelet.crt",
            "tlsPrivateKeyFile": f"{identity}/kubelet.key",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%"},
            "resolvConf": f"{own}/resolv.conf",
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS_SERVICE],
            "volumePluginDir": f"{own}/plugins",
            "podLogsDir": "/var/log/pods",
            "localStorageCapacityIsolation": False,
            # The default is a minute.
            "syncFrequency": "5s",
        }
        (own / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))
        (own / "home").mkdir()
        (own / "bin").mkdir()
        (own / "bin" / "kubectl").symlink_to(self.programs.kubectl)


def _output(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode != 0:
        raise NodeError(f"{' '.join(done.args)}: {done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def attached_node(folder: Path) -> Iterator[Node]:
    """A node that another process runs (`python -m tests.kubernetes.node`)."""
    namespace = Namespace.of_process(json.loads((folder / "keeper").read_text())["keeper"])
    node = Node(folder, namespace, node_programs())
    try:
        yield node
    finally:
        node.close()
        namespace.close()


@contextmanager
def running_node(images: Sequence[str] = ()) -> Iterator[Node]:
    """A node that is ready, with these images (image_store) next to the one that holds pods."""
    programs = node_programs()
    for image in ("pause", *images):
        image_store.archive(image)
    folder = Path(tempfile.mkdtemp(prefix="kquota-node-"))
    namespace = Namespace()
    try:
        (folder / "plan.json").write_text(json.dumps({"name": NAME, "address": ADDRESS, "gateway": GATEWAY}))
        keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(folder)]
        with (folder / "keeper.log").open("w") as log, namespace.inside():
            process = GuardedProcess(keeper, stdout=log, stderr=log, orphan_dir=folder)
        with process:
            try:
                until(lambda: (folder / "control").exists() or process.poll() is not None, "the node's first process")
                if process.poll() is not None:
                    said = [(folder / f"{name}.log").read_text() for name in ("keeper", "init")]
                    raise NodeError(f"the node's namespaces cannot be made:\n{''.join(said)}")
                node = Node(folder, namespace, programs)
                with contextlib.closing(node):
                    node.bring_up(images, json.loads((folder / "keeper").read_text())["cgroup"])
                    yield node
            finally:
                process.terminate()
                process.wait(60)
    finally:
        namespace.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    with running_node(("client", "kafka", "kquota", "kquota-redirect")) as node:
        print({name: round(seconds, 1) for name, seconds in node.times_s.items()})
        print(f"KQUOTA_NODE={node.folder}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
