"""Keys, certificates and kubeconfigs of a node's programs."""

from pathlib import Path
from typing import Final

import trustme
import yaml

CLIENTS: Final = {
    "admin": ("admin", "system:masters"),
    "apiserver-kubelet": ("kube-apiserver-kubelet-client", "system:masters"),
    "node": ("system:node:node1", "system:nodes"),
    "controller-manager": ("system:kube-controller-manager", "kquota"),
    "scheduler": ("system:kube-scheduler", "kquota"),
    "proxy": ("system:kube-proxy", "kquota"),
    "dns": ("dns", "system:masters"),
}
"""Who has a kubeconfig: name and group."""


def write_identities(folder: Path, address: str, service: str) -> None:
    """Everything below `folder`: ca.crt, NAME.crt and NAME.key, NAME.kubeconfig, accounts.key."""
    authority = trustme.CA(organization_name="node")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    trustme.CA().private_key_pem.write_to_path(str(folder / "accounts.key"))

    def issue(name: str, *identities: str, user: str, group: str) -> None:
        made = authority.issue_cert(*identities, common_name=user, organization_name=group)
        made.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        made.cert_chain_pems[0].write_to_path(str(folder / f"{name}.crt"))

    names = [address, service, "127.0.0.1", "kubernetes.default.svc"]
    issue("apiserver", *names, user="kube-apiserver", group="kquota")
    issue("kubelet", address, "node1", user="node1", group="kquota")
    for name, (user, group) in CLIENTS.items():
        # Go refuses a certificate whose alternative names are there and none.
        issue(name, f"{name}.invalid", user=user, group=group)
        cluster = {"server": f"https://{address}:6443", "certificate-authority": str(folder / "ca.crt")}
        client = {"client-certificate": f"{folder / name}.crt", "client-key": f"{folder / name}.key"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "node",
            "clusters": [{"name": "node", "cluster": cluster}],
            "users": [{"name": name, "user": client}],
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": name}}],
        }
        (folder / f"{name}.kubeconfig").write_text(yaml.safe_dump(config))
