{{/* The kquota container, without its place in a pod. Called with the chart's own scope. */}}
{{- define "kquota.container" -}}
name: kquota
image: {{ include "kquota.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: ["run", "--config", "/etc/kquota/kquota.yaml"]
env:
  - name: KQUOTA_POD_NAME
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}
  - name: KQUOTA_POD_NAMESPACE
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- if eq .Values.mode "gateway" }}
  - name: kafka
    containerPort: {{ include "kquota.port" . }}
    protocol: TCP
  {{- end }}
  {{- /* A name of its own: an application may well have a port called metrics. */}}
  - name: kquota-metrics
    containerPort: {{ int .Values.config.admin.port }}
    protocol: TCP
startupProbe:
  httpGet: {path: {{ .Values.probes.startup.path }}, port: kquota-metrics}
  {{- omit .Values.probes.startup "path" | toYaml | nindent 2 }}
readinessProbe:
  httpGet: {path: {{ .Values.probes.readiness.path | default (ternary "/readyz" "/healthz" (eq .Values.mode "gateway")) }}, port: kquota-metrics}
  {{- omit .Values.probes.readiness "path" | toYaml | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: kquota-metrics}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
resources:
  {{- include "kquota.resources" . | nindent 2 }}
securityContext:
  {{- include "kquota.securityContext" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  {{- /* The whole directory: a file mounted by subPath never changes. */}}
  - name: kquota-config
    mountPath: /etc/kquota
    readOnly: true
  {{- if ne .Values.mode "gateway" }}
  {{- include "kquota.noToken" . | nindent 2 }}
  {{- end }}
  {{- if include "kquota.stateVolume" . }}
  - name: kquota-state
    mountPath: /var/lib/kquota
  {{- end }}
  {{- if .Values.podIdentity.enabled }}
  - name: kquota-pod
    mountPath: /etc/kquota-pod
    readOnly: true
  {{- end }}
  {{- if include "kquota.fleetSecret" . }}
  - name: kquota-fleet
    mountPath: /etc/kquota-fleet
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Satisfies the Pod Security Standard "restricted" without help from the pod. */}}
{{- define "kquota.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: ["ALL"]
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- with include "kquota.uid" . }}
runAsUser: {{ . }}
runAsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* "true" where connections are redirected to the sidecar. */}}
{{- define "kquota.transparent" -}}
{{- if eq (.Values.config.mode | default "rewrite") "transparent" -}}
{{- if ne .Values.mode "sidecar" }}{{ fail "config.mode: transparent redirects the connections of the pod it is in: it needs mode sidecar" }}{{ end -}}
true
{{- end -}}
{{- end -}}

{{/* Where the demo connects to: the sidecar, or the brokers themselves if that is redirected. */}}
{{- define "kquota.demoBootstrap" -}}
{{- if include "kquota.transparent" . -}}
{{- (default dict .Values.config.upstream).bootstrap | default list | join "," | required "demo.enabled with config.mode: transparent needs config.upstream.bootstrap: the brokers that the demo connects to" -}}
{{- else -}}
127.0.0.1:{{ include "kquota.port" . }}
{{- end -}}
{{- end -}}

{{/* The user of the containers; nothing where the namespace assigns one. */}}
{{- define "kquota.uid" -}}
{{- if include "kquota.transparent" . }}{{ int .Values.redirect.uid }}
{{- else if ne (toString .Values.runAsUser) "namespace" }}{{ int .Values.runAsUser }}
{{- end -}}
{{- end -}}

{{/* The group that volumes belong to, likewise. */}}
{{- define "kquota.fsGroup" -}}
{{- if include "kquota.uid" . }}fsGroup: 65532{{ end -}}
{{- end -}}

{{/* The init container that sets the redirect rules: the only one that is root, with NET_ADMIN and nothing else. */}}
{{- define "kquota.redirectContainer" -}}
{{- $redirect := .Values.redirect -}}
{{- if not (or $redirect.ports $redirect.networks) }}{{ fail "redirect.ports and redirect.networks are empty: nothing would be redirected" }}{{ end -}}
name: kquota-redirect
image: {{ printf "%s%s" $redirect.image.repository (ternary (printf "@%s" $redirect.image.digest) (printf ":%s" (default .Chart.AppVersion $redirect.image.tag)) (ne $redirect.image.digest "")) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - install
  - --config=/etc/kquota/kquota.yaml
  - --exclude-uid={{ include "kquota.uid" . }}
  - --when-down={{ $redirect.whenDown }}
  {{- range $redirect.ports }}
  - {{ printf "--port=%v" . | quote }}
  {{- end }}
  {{- range $redirect.networks }}
  - {{ printf "--network=%s" . | quote }}
  {{- end }}
  {{- range $redirect.excludePorts }}
  - {{ printf "--exclude-port=%v" . | quote }}
  {{- end }}
  {{- range $redirect.excludeNetworks }}
  - {{ printf "--exclude-network=%s" . | quote }}
  {{- end }}
  {{- range $redirect.excludeUids }}
  - --exclude-uid={{ int . }}
  {{- end }}
resources:
  {{- include "kquota.fitting" (list "redirect.resources" $redirect.resources) | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: ["ALL"]
    add: ["NET_ADMIN"]
  privileged: false
  readOnlyRootFilesystem: true
  runAsNonRoot: false
  runAsUser: 0
  runAsGroup: 0
  seccompProfile:
    type: RuntimeDefault
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: kquota-config
    mountPath: /etc/kquota
    readOnly: true
  {{- include "kquota.noToken" . | nindent 2 }}
{{- end -}}

{{/* A container in another's pod gets no token of its service account: Kubernetes mounts none where anything is mounted. */}}
{{- define "kquota.noToken" -}}
- name: kquota-config
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{/* The volume at /var/lib/kquota, if something is stored there or state.volume is set: an emptyDir keeps nodes from being
drained. */}}
{{- define "kquota.stateVolume" -}}
{{- $volume := .Values.state.volume -}}
{{- $overlay := "" -}}
{{- if kindIs "map" .Values.quotas }}{{ $overlay = .Values.quotas.overlay | toString }}{{ end -}}
{{- $directory := (default dict .Values.config.export).directory | toString -}}
{{- $ports := (default dict .Values.config.listen).state_file | toString -}}
{{- if or (hasPrefix "/var/lib/kquota" $overlay) (hasPrefix "/var/lib/kquota" $directory) (hasPrefix "/var/lib/kquota" $ports) (ne (toJson $volume) `{"emptyDir":{}}`) -}}
{{- /* Helm merges another kind of volume with the default emptyDir; a volume has one kind. */}}
{{- toYaml (ternary (omit $volume "emptyDir") $volume (gt (len $volume) 1)) -}}
{{- end -}}
{{- end -}}

{{/* The volume with the configuration file. Called with the name of its first ConfigMap and the number of parts. */}}
{{- define "kquota.configSource" -}}
{{- $name := index . 0 -}}
{{- if eq (index . 1) 1 -}}
configMap:
  name: {{ $name }}
{{- else -}}
projected:
  sources:
    {{- range $index := until (index . 1) }}
    - configMap: {name: {{ $name }}{{ if $index }}-{{ add $index 1 }}{{ end }}}
    {{- end }}
{{- end -}}
{{- end -}}

{{- define "kquota.podVolumes" -}}
- name: kquota-config
  {{- include "kquota.configSource" (list (include "kquota.fullname" .) (len (include "kquota.configParts" . | fromJson).parts)) | nindent 2 }}
{{- with include "kquota.stateVolume" . }}
- name: kquota-state
  {{- . | nindent 2 }}
{{- end }}
{{- if .Values.podIdentity.enabled }}
- name: kquota-pod
  projected:
    defaultMode: 0444
    sources:
      - downwardAPI:
          items:
            - path: namespace
              fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}
            - path: pod
              fieldRef: {apiVersion: v1, fieldPath: metadata.name}
            - path: labels
              fieldRef: {apiVersion: v1, fieldPath: metadata.labels}
      {{- /* No service accepts a token for this audience; its subject is what is read. */}}
      - serviceAccountToken: {path: token, audience: kquota.io/identity, expirationSeconds: 3600}
{{- end }}
{{- with include "kquota.fleetSecret" . }}
- name: kquota-fleet
  secret:
    secretName: {{ . | toYaml }}
{{- end }}
{{- $names := list -}}
{{- range .Values.extraVolumes }}{{ $names = append $names .name }}{{ end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has .name $names) }}{{ fail (printf "extraVolumeMounts: expected a volume of extraVolumes, got %s" .name) }}{{ end -}}
{{- end -}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
