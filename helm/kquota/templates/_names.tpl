{{- define "kquota.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "kquota.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "kquota.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
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
  namespace: {{ . }}
{{- end -}}
{{- end -}}

{{- define "kquota.clusterMeta" -}}
{{- with .Values.commonAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end -}}
{{- end -}}

{{/* The full name with a suffix, within so many characters. Called with (list root suffix characters). A name that is cut
has a digest of the whole, so that those of two releases differ. */}}
{{- define "kquota.shortName" -}}
{{- $full := include "kquota.fullname" (index . 0) -}}
{{- $name := printf "%s-%s" $full (index . 1) -}}
{{- $room := sub (index . 2) (add (len (index . 1)) 1) | int -}}
{{- if gt (len $full) $room -}}
{{- printf "%s-%s-%s" ($full | trunc (sub $room 6 | int) | trimSuffix "-") ($full | sha256sum | trunc 5) (index . 1) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change, for selectors. */}}
{{- define "kquota.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kquota.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kquota.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "kquota.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
kquota.io/config: {{ include "kquota.fullname" . }}
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
  - ports:
      - {protocol: TCP, port: {{ $admin }}}
    from:
      {{- toYaml .Values.networkPolicy.monitoring | nindent 6 }}
{{- end -}}
