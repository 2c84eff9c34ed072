module kquota/tests/go/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/kubeflow/spark-operator/v2 v2.4.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
