"""The programs that a Kubernetes node is made of: built from pinned Go modules, or Debian's own."""

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support import go_tools
from tests.support.apiserver_tools import etcd_program, kubernetes_program
from tests.support.chart_tools import helm_executable, kubectl_executable

KUBERNETES: Final = ("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy")
DEBIAN: Final = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "buildah": "buildah",
    "mmdebstrap": "mmdebstrap", "iptables": "iptables", "nft": "nftables", "ip": "iproute2", "gcc": "gcc",
}  # fmt: skip
"""Programs that have to be there, and the Debian packages that bring them."""
CNI: Final = Path("/usr/lib/cni")
CNI_PACKAGE: Final = "containernetworking-plugins"


class NoNodeError(Exception):
    """A node cannot run on this machine; says what is missing, and how to get it."""


@dataclass(frozen=True)
class NodePrograms:
    etcd: Path
    kubernetes: dict[str, Path]
    coredns: Path
    cni: Path
    kubectl: Path
    helm: Path


def insist_on_machine() -> None:
    if os.geteuid() != 0:
        raise NoNodeError("a Kubernetes node needs root: it makes namespaces, mounts and control groups")
    missing = {package for program, package in DEBIAN.items() if shutil.which(program) is None}
    if not all((CNI / plugin).is_file() for plugin in ("bridge", "host-local", "portmap", "loopback")):
        missing.add(CNI_PACKAGE)
    if missing:
        install = f"apt-get install --no-install-recommends {' '.join(sorted(missing))}"
        raise NoNodeError(f"a Kubernetes node needs programs that are not here: {install}")


def coredns() -> Path:
    return go_tools.program("coredns", "kquota/tests/go/coredns")


def prometheus() -> Path:
    """Prometheus with discovery by Kubernetes, which Debian's is built without; built if need be."""
    tags = ("remove_all_sd", "enable_kubernetes_sd")
    return go_tools.program("prometheus", "github.com/prometheus/prometheus/cmd/prometheus", tags=tags)


def node_programs() -> NodePrograms:
    insist_on_machine()
    kubernetes = {name: kubernetes_program(name) for name in KUBERNETES}
    return NodePrograms(etcd_program(), kubernetes, coredns(), CNI, kubectl_executable(), helm_executable())


def main() -> None:
    try:
        insist_on_machine()
    except NoNodeError as error:
        sys.exit(f"error: {error}")
    others = {"etcd": etcd_program, "coredns": coredns, "prometheus": prometheus}
    for name in sys.argv[1:] or (*others, *KUBERNETES):
        began = time.monotonic()
        path = others[name]() if name in others else kubernetes_program(name)
        print(f"· {path} ({path.stat().st_size / 1e6:.0f} MB, {time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
