//go:build programs

// Package apiserver names the programs that the tests build: a Kubernetes API server and its store.
package apiserver

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
