"""`kquota init`: a configuration file with comments, from a few flags."""

from __future__ import annotations

import json
from collections.abc import Sequence

from config.load import load_bytes

_FILE = """\
# Configuration of kquota; `kquota check FILE` validates and explains it. docs/configuration.md has every setting.

upstream:
  # Some brokers of the cluster, host:port; other brokers are discovered.
  bootstrap: {bootstrap}
  # tls: {{}}                      # TLS to the brokers, trusted as the system trusts

listen:
  host: 127.0.0.1                  # 0.0.0.0 where clients are on other machines
  port: {port}                     # clients: bootstrap.servers=127.0.0.1:{port}
  broker_ports: 19092-19191        # one local port for each broker of the cluster
{identity}
# A name or <default> (every client without an entry of its own). k, M, G: powers of 1000; Ki, Mi, Gi: powers of 1024.
# A limit holds for each sidecar: with n of them up to n times as much may pass.
quotas:
{quotas}
admin:
  host: 127.0.0.1                  # 0.0.0.0 in a pod, for the kubelet and Prometheus
  port: 9404                       # /metrics, /healthz, /readyz, /ui; kquota top, kquota explain
"""


def config_text(
    bootstrap: Sequence[str], *, port: int, user: str | None, produce: str | None, fetch: str | None, shadow: bool
) -> str:
    """The content of the file. Raises ConfigError for an invalid value."""
    limits = {"producer_byte_rate": produce, "consumer_byte_rate": fetch}
    parts = ["client-id: <default>", *(f"{name}: {json.dumps(value)}" for name, value in limits.items() if value)]
    if shadow:
        parts.append("mode: shadow")
    quotas = f"  - {{{', '.join(parts)}}}" + ("   # measured, never applied, until mode is removed" if shadow else "")
    identity = (
        ""
        if user is None
        else f"\nidentity:\n  static: {json.dumps(user)}   # user name for unauthenticated connections\n"
    )
    text = _FILE.format(bootstrap=json.dumps(list(bootstrap)), port=port, identity=identity, quotas=quotas + "\n")
    load_bytes("(the new file)", text.encode())
    return text
