//go:build programs

// Package kubeconform names the program that the tests build: manifests against Kubernetes' published schemas.
package kubeconform

import _ "github.com/yannh/kubeconform/cmd/kubeconform"
