{{- define "kquota.analysisImage" -}}
{{ .Values.analysis.image.repository }}:{{ default .Chart.AppVersion .Values.analysis.image.tag }}
{{- end -}}

{{/* The arguments of one report. Called with a dict: root, name, input, output, arguments. */}}
{{- define "kquota.analysisArguments" -}}
- {{ .name | quote }}
- --input
- {{ required (printf "analysis: %s needs an input" .name) .input | quote }}
- --output
- {{ required (printf "analysis: %s needs an output" .name) .output | quote }}
{{- range .arguments }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The same where Spark runs within the pod. */}}
{{- define "kquota.analysisLocalArguments" -}}
{{- include "kquota.analysisArguments" . }}
- --memory
- {{ .root.Values.analysis.driver.memory | quote }}
{{- range $name, $value := .root.Values.analysis.conf }}
- --conf
- {{ printf "%s=%s" $name $value | quote }}
{{- end }}
{{- end -}}

{{- define "kquota.analysisVolumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.analysis.files }}
- name: files
  configMap:
    name: {{ include "kquota.fullname" . }}-analysis
{{- end }}
{{- with .Values.analysis.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kquota.analysisVolumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.analysis.files }}
- name: files
  mountPath: /etc/kquota-analysis
  readOnly: true
{{- end }}
{{- with .Values.analysis.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The port of the stream's metrics; empty where it does not run or has none. */}}
{{- define "kquota.streamMetrics" -}}
{{- $stream := .Values.analysis.stream -}}
{{- if and .Values.analysis.enabled $stream.enabled $stream.metricsPort -}}
{{- if or (has "--metrics" $stream.arguments) (contains "\"--metrics=" (toJson $stream.arguments)) -}}
{{- fail "analysis.stream.arguments: the chart sets --metrics; use analysis.stream.metricsPort (0: none)" -}}
{{- end -}}
{{- int $stream.metricsPort -}}
{{- end -}}
{{- end -}}

{{/* A pod with a Spark of its own. Called with a dict: root, name, arguments (text), restartPolicy, port (of metrics). */}}
{{- define "kquota.analysisPod" -}}
restartPolicy: {{ .restartPolicy }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.analysis.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.analysis.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "kquota.fsGroup" .root }}
securityContext:
  {{ . }}
{{- end }}
containers:
  - name: {{ .name }}
    image: {{ include "kquota.analysisImage" .root | quote }}
    imagePullPolicy: {{ .root.Values.analysis.image.pullPolicy }}
    args:
      {{- .arguments | nindent 6 }}
    {{- with .port }}
    ports:
      - {name: kquota-metrics, containerPort: {{ . }}, protocol: TCP}
    {{- end }}
    {{- with .root.Values.analysis.env }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    resources:
      {{- toYaml .root.Values.analysis.driver.resources | nindent 6 }}
    securityContext:
      {{- include "kquota.securityContext" .root | nindent 6 }}
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
      {{- include "kquota.analysisVolumeMounts" .root | nindent 6 }}
volumes:
  {{- include "kquota.analysisVolumes" .root | nindent 2 }}
{{- end -}}

{{/* What the Spark operator is told of one program. Called with a dict: root, arguments (text), restartPolicy, conf (more),
     port (of the driver's metrics). */}}
{{- define "kquota.sparkApplication" -}}
{{- $analysis := .root.Values.analysis -}}
{{- $conf := merge (dict) $analysis.conf (default (dict) .conf) -}}
type: Python
pythonVersion: "3"
mode: cluster
sparkVersion: 4.0.0
image: {{ include "kquota.analysisImage" .root | quote }}
imagePullPolicy: {{ $analysis.image.pullPolicy }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ .name | quote }}
  {{- end }}
{{- end }}
mainApplicationFile: local:///opt/kquota/lib/python3.11/site-packages/analysis/__main__.py
arguments:
  {{- .arguments | nindent 2 }}
{{- with $conf }}
sparkConf:
  {{- range $name, $value := . }}
  {{ $name | quote }}: {{ $value | quote }}
  {{- end }}
{{- end }}
restartPolicy:
  {{- toYaml .restartPolicy | nindent 2 }}
driver:
  cores: {{ int $analysis.driver.cores }}
  memory: {{ $analysis.driver.memory | quote }}
  {{- with $analysis.driver.serviceAccount }}
  serviceAccount: {{ . | quote }}
  {{- end }}
  {{- with .port }}
  ports:
    - {name: kquota-metrics, containerPort: {{ . }}, protocol: TCP}
  {{- if $.root.Values.prometheusAnnotations }}
  annotations:
    {{- include "kquota.prometheusAnnotations" . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- include "kquota.sparkPod" (dict "root" .root "component" (ternary "stream" "analysis" (not (empty .port)))) | nindent 2 }}
executor:
  instances: {{ int $analysis.executor.instances }}
  cores: {{ int $analysis.executor.cores }}
  memory: {{ $analysis.executor.memory | quote }}
  {{- include "kquota.sparkPod" (dict "root" .root "component" "analysis") | nindent 2 }}
volumes:
  {{- include "kquota.analysisVolumes" .root | nindent 2 }}
{{- end -}}

{{/* What driver and executors have in common. Called with a dict: root, component. */}}
{{- define "kquota.sparkPod" -}}
{{- $root := .root -}}
labels:
  {{- include "kquota.selectorLabels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  kquota.io/inject: "false"
{{- with $root.Values.analysis.env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.analysis.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.analysis.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "kquota.fsGroup" $root }}
podSecurityContext:
  {{ . }}
{{- end }}
securityContext:
  {{- include "kquota.securityContext" $root | nindent 2 }}
volumeMounts:
  {{- include "kquota.analysisVolumeMounts" $root | nindent 2 }}
{{- end -}}
