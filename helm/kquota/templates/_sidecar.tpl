{{/*
For other charts: parts of a pod with a kquota sidecar.

Each is called with the including chart's root, {{ include "kquota.initContainers" . }}, where this chart is a dependency
named kquota; or, if it goes by another name there, with {{ include "kquota.initContainers" .Subcharts.thatName }}.
docs/kubernetes.md shows a whole chart.
*/}}

{{/* "true" where the sidecar is an init container with restartPolicy Always. */}}
{{- define "kquota.native" -}}
{{- $scope := get (default dict .Subcharts) "kquota" | default . -}}
{{- include "kquota.defaults" $scope -}}
{{- $native := $scope.Values.sidecar.native | toString -}}
{{- if eq $native "auto" -}}
{{- if semverCompare ">=1.29.0-0" $scope.Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- else if eq $native "true" -}}
{{- if semverCompare "<1.28.0-0" $scope.Capabilities.KubeVersion.Version }}{{ fail (printf "sidecar.native: true needs Kubernetes 1.28 with the feature gate SidecarContainers, got %s" $scope.Capabilities.KubeVersion.Version) }}{{ end -}}
true
{{- end -}}
{{- end -}}

{{/* The sidecar as an item of initContainers (native) or containers. Native: put it first. */}}
{{- define "kquota.sidecar" -}}
{{- $scope := get (default dict .Subcharts) "kquota" | default . -}}
{{- include "kquota.defaults" $scope -}}
{{- $container := include "kquota.container" $scope | fromYaml -}}
{{- if include "kquota.native" $scope -}}
{{- $_ := set $container "restartPolicy" "Always" -}}
{{- else if $scope.Values.sidecar.preStopSleepSeconds -}}
{{- $sleep := list "sleep" (toString (int $scope.Values.sidecar.preStopSleepSeconds)) -}}
{{- $_ := set $container "lifecycle" (dict "preStop" (dict "exec" (dict "command" $sleep))) -}}
{{- end -}}
{{- list $container | toYaml -}}
{{- end -}}

{{/* Items for initContainers, before all others: what sets the redirect rules in transparent mode, and the sidecar if it
is native; perhaps nothing. */}}
{{- define "kquota.initContainers" -}}
{{- $scope := get (default dict .Subcharts) "kquota" | default . -}}
{{- include "kquota.defaults" $scope -}}
{{- $items := list -}}
{{- if include "kquota.transparent" $scope }}{{ $items = append $items (include "kquota.redirectContainer" $scope | fromYaml) }}{{ end -}}
{{- if include "kquota.native" $scope }}{{ $items = concat $items (include "kquota.sidecar" $scope | fromYamlArray) }}{{ end -}}
{{- if $items }}{{ $items | toYaml }}{{ end -}}
{{- end -}}

{{/* Items for containers: the sidecar if it is not native, else nothing. */}}
{{- define "kquota.containers" -}}
{{- if not (include "kquota.native" .) }}{{ include "kquota.sidecar" . }}{{ end -}}
{{- end -}}

{{/* Items for volumes. */}}
{{- define "kquota.volumes" -}}
{{- $scope := get (default dict .Subcharts) "kquota" | default . -}}
{{- include "kquota.defaults" $scope -}}
{{- include "kquota.podVolumes" $scope -}}
{{- end -}}

{{/* Labels for the pod: what PodMonitor and NetworkPolicy select. */}}
{{- define "kquota.podLabels" -}}
{{- include "kquota.memberLabels" (get (default dict .Subcharts) "kquota" | default .) -}}
{{- end -}}

{{/* Annotations for the pod: settings that need a restart restart it; changed quotas do not. */}}
{{- define "kquota.podAnnotations" -}}
{{- $scope := get (default dict .Subcharts) "kquota" | default . -}}
{{- include "kquota.defaults" $scope -}}
kquota.io/restart-checksum: {{ include "kquota.restartChecksum" $scope }}
{{- if hasKey (include "kquota.stateVolume" $scope | fromYaml) "emptyDir" }}
cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes: kquota-state
{{- end }}
{{- if $scope.Values.prometheusAnnotations }}
{{ include "kquota.prometheusAnnotations" $scope.Values.config.admin.port }}
{{- end }}
{{- end -}}

{{/* At least this many seconds for the pod's end: the longest drain and a margin, after what the application needs. */}}
{{- define "kquota.terminationGracePeriodSeconds" -}}
{{- $scope := get (default dict .Subcharts) "kquota" | default . -}}
{{- include "kquota.defaults" $scope -}}
{{- $sleep := ternary 0 (int $scope.Values.sidecar.preStopSleepSeconds) (eq (include "kquota.native" $scope) "true") -}}
{{- add 15 $sleep (include "kquota.drainSeconds" $scope | int) -}}
{{- end -}}
