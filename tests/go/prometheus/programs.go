//go:build programs

// Package prometheus names the program that the tests of a node build: Prometheus with discovery by Kubernetes.
package prometheus

import _ "github.com/prometheus/prometheus/cmd/prometheus"
