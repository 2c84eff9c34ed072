{{/* The configuration file. */}}
{{- define "kquota.config" -}}
{{- $defaults := dict "listen" (dict "host" (ternary "0.0.0.0" "127.0.0.1" (eq .Values.mode "gateway"))) -}}
{{- $config := mergeOverwrite $defaults (deepCopy .Values.config) -}}
{{- if and (ne ($config.mode | default "rewrite") "transparent") (not (default dict $config.upstream).bootstrap) -}}
{{- $_ := required "config.upstream.bootstrap is missing: name some brokers of the cluster, such as --set 'config.upstream.bootstrap={kafka-0.kafka:9092}'" "" -}}
{{- end -}}
{{- if and (eq .Values.mode "gateway") $config.admin -}}
{{- /* The Service by its names, beside those that are listed: the admin port answers to no others. Not NAME.NAMESPACE,
       which may be for sale: dev and app are public domains. */ -}}
{{- $name := include "kquota.fullname" . -}}
{{- $full := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- $names := list $name $full (printf "%s.cluster.local" $full) -}}
{{- $_ := set $config.admin "allowed_hosts" (concat $names (default list $config.admin.allowed_hosts) | uniq) -}}
{{- end -}}
{{- if and (eq .Values.mode "gateway") .Values.gateway.sharedLimits -}}
{{- /* All replicas share one limit; what config.fleet says wins. */ -}}
{{- $fleet := dict "id" (printf "%s/%s" .Release.Namespace (include "kquota.fullname" .)) "default_scope" "fleet" -}}
{{- $_ := set $config "fleet" (mergeOverwrite $fleet (default dict $config.fleet)) -}}
{{- end -}}
{{- toYaml (set $config "quotas" (default list .Values.quotas)) -}}
{{- end -}}

{{/* What a running sidecar cannot take over from a changed file: a checksum of everything but the live settings. */}}
{{- define "kquota.restartChecksum" -}}
{{- $config := include "kquota.config" . | fromYaml -}}
{{- range (.Files.Get "files/live-settings.json" | fromJson).paths -}}
{{- $section := index . 0 -}}
{{- if eq (len .) 1 -}}
{{- $_ := unset $config $section -}}
{{- else if kindIs "map" (get $config $section) -}}
{{- $_ := unset (get $config $section) (index . 1) -}}
{{- else -}}
{{- $_ := unset $config $section -}}{{/* quotas as a list are their entries */}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $config -}}{{/* an emptied section is as good as none */}}
{{- if and (kindIs "map" $value) (not $value) -}}{{- $_ := unset $config $name -}}{{- end -}}
{{- end -}}
{{- toJson $config | sha256sum -}}
{{- end -}}

{{/* Whole seconds, rounded up, of a duration as the configuration file has it. Called with (list text name). */}}
{{- define "kquota.seconds" -}}
{{- $text := index . 0 | toString | trim -}}
{{- $number := regexFind "^[0-9_]+(\\.[0-9]+)?" $text | replace "_" "" | float64 -}}
{{- $unit := regexFind "[a-z]+$" $text -}}
{{- $factor := get (dict "" 1.0 "ms" 0.001 "s" 1.0 "m" 60.0 "min" 60.0 "h" 3600.0 "d" 86400.0) $unit -}}
{{- mulf $number $factor | ceil | int -}}
{{- end -}}

{{- define "kquota.drainSeconds" -}}
{{- $drain := include "kquota.seconds" (list .Values.config.drain_timeout_s) | int -}}
{{- $drain -}}
{{- end -}}

{{/* Port ranges as FIRST-LAST. */}}
{{- define "kquota.brokerPorts" -}}
{{- (default dict .Values.config.listen).broker_ports | default "19092-19191" -}}
{{- end -}}

{{- define "kquota.port" -}}
{{- (default dict .Values.config.listen).port | default 9092 | int -}}
{{- end -}}
