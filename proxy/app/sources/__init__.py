"""Where limits, certificates and the static user come from: files and the cluster, followed while the sidecar runs."""
