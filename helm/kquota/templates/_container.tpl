{{/* The kquota container, without its place in a pod. Called with the chart's own scope. */}}
{{- define "kquota.container" -}}
name: kquota
image: {{ include "kquota.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: ["run", "--config", "/etc/kquota/kquota.yaml"]
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if eq .Values.mode "gateway" }}
  - name: kafka
    containerPort: {{ include "kquota.port" . }}
    protocol: TCP
  {{- end }}
  - name: metrics
    containerPort: {{ int .Values.config.admin.port }}
    protocol: TCP
startupProbe:
  httpGet: {path: {{ .Values.probes.startup.path }}, port: metrics}
  {{- omit .Values.probes.startup "path" | toYaml | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- include "kquota.securityContext" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  {{- /* The whole directory: a file mounted by subPath never changes. */}}
  - name: kquota-config
    mountPath: /etc/kquota
    readOnly: true
  - name: kquota-state
    mountPath: /var/lib/kquota
  {{- if .Values.podIdentity.enabled }}
  - name: kquota-pod
    mountPath: /etc/kquota-pod
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
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kquota.podVolumes" -}}
- name: kquota-config
  configMap:
    name: {{ include "kquota.fullname" . }}
- name: kquota-state
  {{- /* Helm merges another kind of volume with the default emptyDir; a volume has one kind. */}}
  {{- $volume := .Values.state.volume }}
  {{- if gt (len $volume) 1 }}
  {{- $volume = omit $volume "emptyDir" }}
  {{- end }}
  {{- toYaml $volume | nindent 2 }}
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
      {{- /* Nobody takes a token for this audience; its subject is what is read. */}}
      - serviceAccountToken: {path: token, audience: kquota.io/identity, expirationSeconds: 3600}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
