{{- define "kquota.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "kquota.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "kquota.name" . -}}
{{- include "kquota.cut" (list (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) 50) -}}
{{- end -}}
{{- end -}}

{{/* A name within so many characters. One that is cut has a digest of the whole, so that those of two releases differ. */}}
{{- define "kquota.cut" -}}
{{- $name := index . 0 -}}
{{- $most := index . 1 | int -}}
{{- if gt (len $name) $most -}}
{{- printf "%s-%s" ($name | trunc (sub $most 6 | int) | trimSuffix "-") ($name | sha256sum | trunc 5) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* The full name of objects with a Service. */}}
{{- define "kquota.serviceName" -}}
{{- $name := include "kquota.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "no Service can have the name %s: set fullnameOverride to lower-case letters, digits and -, beginning with a letter" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "kquota.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Lines of the metadata of an object: its namespace, if it is not the release's, and commonAnnotations. */}}
{{- define "kquota.meta" -}}
{{- include "kquota.namespaceOf" . -}}
{{- include "kquota.clusterMeta" . -}}
{{- end -}}

{{- define "kquota.namespaceOf" -}}
{{- with .Values.namespaceOverride }}
  namespace: {{ . | toYaml }}
{{- end -}}
{{- end -}}

{{- define "kquota.clusterMeta" -}}
{{- with .Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* The full name with a suffix, within so many characters. Called with (list root suffix characters). */}}
{{- define "kquota.shortName" -}}
{{- $most := sub (index . 2) (add (len (index . 1)) 1) -}}
{{- printf "%s-%s" (include "kquota.cut" (list (include "kquota.fullname" (index . 0)) $most)) (index . 1) -}}
{{- end -}}

{{/* Labels that never change, for selectors. */}}
{{- define "kquota.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kquota.name" . | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end -}}

{{- define "kquota.labels" -}}
{{- include "kquota.labelsWith" (list . dict) -}}
{{- end -}}

{{/* Labels of an object. Called with the root, the chart's own labels of it, and those of values: the former win. */}}
{{- define "kquota.labelsWith" -}}
{{- $root := index . 0 -}}
{{- $chart := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
-}}
{{- $given := rest (rest .) | first | default dict -}}
{{- merge (dict) (index . 1) (include "kquota.selectorLabels" $root | fromYaml) $chart $given $root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Where pods may run. Called with the values of one Deployment. */}}
{{- define "kquota.scheduling" -}}
{{- $given := dict -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- $value := get $ $key -}}
{{- if $value -}}{{- $_ := set $given $key $value -}}{{- end -}}
{{- end -}}
{{- if $given -}}{{- toYaml $given -}}{{- end -}}
{{- end -}}

{{/* On every pod with a kquota container of this release: what PodMonitor and NetworkPolicy select. */}}
{{- define "kquota.memberLabels" -}}
kquota.io/config: {{ include "kquota.fullname" . | toYaml }}
{{- end -}}

{{/* For a Prometheus without the operator. Called with the port. */}}
{{- define "kquota.prometheusAnnotations" -}}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ int . | quote }}
{{- end -}}

{{/* What a PodMonitor fetches of each pod. */}}
{{- define "kquota.podMetricsEndpoints" -}}
- port: kquota-metrics
  path: /metrics
  interval: {{ .Values.podMonitor.interval }}
  scrapeTimeout: {{ .Values.podMonitor.scrapeTimeout }}
  {{- with .Values.podMonitor.relabelings }}
  relabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.podMonitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "kquota.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "kquota.serviceAccountName" -}}
{{- if .Values.gateway.serviceAccount.create -}}
{{- default (include "kquota.fullname" .) .Values.gateway.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.gateway.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* For injected pods in namespaces without a NetworkPolicy: all ports stay open but the admin port. */}}
{{- define "kquota.injectedPolicy" -}}
{{- $admin := int .Values.config.admin.port -}}
podSelector:
  matchLabels: {kquota.io/injected: "true"}
policyTypes: [Ingress]
ingress:
  - ports:
      {{- if gt $admin 1 }}
      - {protocol: TCP, port: 1, endPort: {{ sub $admin 1 }}}
      {{- end }}
      {{- if lt $admin 65535 }}
      - {protocol: TCP, port: {{ add $admin 1 }}, endPort: 65535}
      {{- end }}
      - {protocol: UDP, port: 1, endPort: 65535}
      - {protocol: SCTP, port: 1, endPort: 65535}
  {{- with .Values.networkPolicy.monitoring }}
  - ports:
      - {protocol: TCP, port: {{ $admin }}}
    from:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end -}}

{{/* "true" where `helm test` has a pod. It asks the sidecar itself, which in transparent mode serves redirected connections
only, and completes next to a native sidecar alone. */}}
{{- define "kquota.tests" -}}
{{- if and .Values.test.enabled (not (include "kquota.transparent" .)) (or (eq .Values.mode "gateway") (include "kquota.native" .)) -}}true{{- end -}}
{{- end -}}
