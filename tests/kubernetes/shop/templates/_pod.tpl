{{- define "shop.container" -}}
name: app
image: localhost/client:test
imagePullPolicy: Never
env:
  - {name: KAFKA_BOOTSTRAP_SERVERS, value: "127.0.0.1:9092"}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: ["ALL"]}
  runAsNonRoot: true
  runAsUser: 1000
  seccompProfile: {type: RuntimeDefault}
{{- end -}}
