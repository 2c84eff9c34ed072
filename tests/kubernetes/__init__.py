"""kquota on a real Kubernetes node (`make test-kubernetes`; not a part of `make test`)."""
