{{/* The configuration file. */}}
{{- define "kquota.config" -}}
{{- $defaults := dict "listen" (dict "host" (ternary "::" "127.0.0.1" (eq .Values.mode "gateway"))) -}}
{{- if eq .Values.mode "gateway" -}}
{{- /* Clients spread over new replicas. */ -}}
{{- $_ := set $defaults "connections_max_age_ms" "10m" -}}
{{- end -}}
{{- $config := mergeOverwrite $defaults (deepCopy .Values.config) -}}
{{- if and (ne ($config.mode | default "rewrite") "transparent") (not (default dict $config.upstream).bootstrap) -}}
{{- $_ := required "config.upstream.bootstrap is missing: name some brokers of the cluster, such as --set 'config.upstream.bootstrap={kafka-0.kafka:9092}'" "" -}}
{{- end -}}
{{- if and (eq .Values.mode "gateway") $config.admin -}}
{{- /* The Service by its names, next to those that are listed: the admin port answers to no others. Not NAME.NAMESPACE,
       which may be for sale: dev and app are public domains. */ -}}
{{- $name := include "kquota.fullname" . -}}
{{- $full := printf "%s.%s.svc" $name (include "kquota.namespace" $) -}}
{{- $names := list $name $full (printf "%s.cluster.local" $full) -}}
{{- $_ := set $config.admin "allowed_hosts" (concat $names (default list $config.admin.allowed_hosts) | uniq) -}}
{{- end -}}
{{- if eq .Values.mode "gateway" -}}
{{- /* Clients are told the Service for every broker, by each replica; what config.listen.advertised says wins. */ -}}
{{- $told := dict -}}
{{- $ports := .Values.gateway.service.nodePorts -}}
{{- if eq .Values.gateway.service.type "ClusterIP" -}}
{{- $_ := set $told "host" (printf "%s.%s.svc" (include "kquota.fullname" .) (include "kquota.namespace" .)) -}}
{{- else if not (dig "advertised" "host" "" $config.listen) -}}
{{- fail (printf "config.listen.advertised.host is missing: the host that clients connect to, with gateway.service.type %s" .Values.gateway.service.type) -}}
{{- end -}}
{{- if eq .Values.gateway.service.type "NodePort" -}}
{{- if not (and $ports.bootstrap $ports.firstBroker) }}{{ fail "gateway.service.nodePorts is missing: bootstrap and firstBroker, with gateway.service.type NodePort" }}{{ end -}}
{{- $_ := set $told "port" (int $ports.bootstrap) -}}
{{- $_ := set $told "first_broker_port" (int $ports.firstBroker) -}}
{{- end -}}
{{- $_ := set $config.listen "advertised" (mergeOverwrite $told (default dict $config.listen.advertised)) -}}
{{- end -}}
{{- if and (eq .Values.mode "gateway") .Values.gateway.sharedLimits -}}
{{- /* All replicas share one limit; what config.fleet says wins. */ -}}
{{- $fleet := dict "id" (printf "%s/%s" (include "kquota.namespace" $) (include "kquota.fullname" .)) "default_scope" "fleet" -}}
{{- $_ := set $config "fleet" (mergeOverwrite $fleet (default dict $config.fleet)) -}}
{{- end -}}
{{- if include "kquota.fleetSecret" . -}}
{{- $_ := set $config.fleet "key_file" (printf "/etc/kquota-fleet/%s" .Values.fleetKey.entry) -}}
{{- end -}}
{{- toYaml (set $config "quotas" (default list .Values.quotas)) -}}
{{- end -}}

{{/* The configuration file as {"parts": […]}, JSON: a ConfigMap holds 1 MiB. config/parts.py puts them together. */}}
{{- define "kquota.configParts" -}}
{{- $text := include "kquota.config" . -}}
{{- $parts := list $text -}}
{{- $entries := default list .Values.quotas -}}
{{- if kindIs "map" .Values.quotas }}{{ $entries = default list .Values.quotas.entries }}{{ end -}}
{{- $each := 2500 -}}
{{- if gt (len $entries) $each -}}
{{- $config := fromYaml $text -}}
{{- $head := printf "%s\nquotas:" (omit $config "quotas" | toYaml) -}}
{{- $indent := 0 -}}
{{- if kindIs "map" .Values.quotas -}}
{{- $head = printf "%s%s\n  entries:" $head (omit .Values.quotas "entries" | toYaml | nindent 2 | replace "\n  {}" "") -}}
{{- $indent = 2 -}}
{{- end -}}
{{- $parts = list -}}
{{- range $first := untilStep 0 (len $entries) $each -}}
{{- $part := slice $entries $first (min (add $first $each) (len $entries) | int) | toYaml | indent $indent -}}
{{- $parts = append $parts (ternary (printf "%s\n%s" $head $part) $part (eq $first 0)) -}}
{{- end -}}
{{- $whole := printf "%s\n" (join "\n" $parts) -}}
{{- $parts = prepend (rest $parts) (printf "# kquota.io/parts: %d sha256:%s\n%s" (len $parts) (sha256sum $whole) (first $parts)) -}}
{{- end -}}
{{- dict "parts" $parts | toJson -}}
{{- end -}}

{{/* The Secret with the fleet's key; nothing without a fleet, or if config.fleet.key_file says where the key is. */}}
{{- define "kquota.fleetSecret" -}}
{{- $shared := and (eq .Values.mode "gateway") .Values.gateway.sharedLimits -}}
{{- if and (or $shared (kindIs "map" .Values.config.fleet)) (not (default dict .Values.config.fleet).key_file) -}}
{{- if and .Values.webhook.enabled (not .Values.fleetKey.secret) -}}
{{- fail "fleetKey.secret is missing: with webhook.enabled and config.fleet, name a Secret with the fleet's key that is in each namespace whose pods get sidecars" -}}
{{- end -}}
{{- .Values.fleetKey.secret | default (printf "%s-fleet" (include "kquota.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{/* Secrets that pods with a sidecar need in their namespaces, as a list in JSON. */}}
{{- define "kquota.neededSecrets" -}}
{{- $names := list -}}
{{- range .Values.imagePullSecrets }}{{ $names = append $names .name }}{{ end -}}
{{- with include "kquota.fleetSecret" . }}{{ $names = append $names . }}{{ end -}}
{{- range .Values.extraVolumes }}{{ with .secret }}{{ if not .optional }}{{ $names = append $names .secretName }}{{ end }}{{ end }}{{ end -}}
{{- uniq $names | toJson -}}
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

{{/* The ports of brokers, which are FIRST-LAST or one. */}}
{{- define "kquota.brokerPorts" -}}
{{- (default dict .Values.config.listen).broker_ports | default "19092-19191" -}}
{{- end -}}
{{- define "kquota.firstBrokerPort" -}}
{{- include "kquota.brokerPorts" . | splitList "-" | first | trim | int -}}
{{- end -}}
{{- define "kquota.lastBrokerPort" -}}
{{- include "kquota.brokerPorts" . | splitList "-" | last | trim | int -}}
{{- end -}}

{{- define "kquota.port" -}}
{{- $listen := default dict .Values.config.listen -}}
{{- range $setting, $port := dict "listen.port" $listen.port "admin.port" .Values.config.admin.port -}}
{{- if eq (toString $port) "0" }}{{ fail (printf "config.%s: expected a port from 1 to 65535, got 0: probes and Services need a fixed one" $setting) }}{{ end -}}
{{- end -}}
{{- $listen.port | default 9092 | int -}}
{{- end -}}

{{/* The memory limit that follows from the settings, in MiB; docs/operations.md has the arithmetic. */}}
{{- define "kquota.memoryLimit" -}}
{{- $config := include "kquota.config" . | fromYaml -}}
{{- $limits := default dict $config.limits -}}
{{- $connections := int64 .Values.memoryLimit.connections -}}
{{- if $limits.max_connections }}{{ $connections = int64 $limits.max_connections }}{{ end -}}
{{- $clients := default 20000 $limits.max_clients | int64 -}}
{{- /* For all four kinds of quotas, whichever there are now: a limit that follows them would restart pods with them. */ -}}
{{- $bytes := add (mul 128 1048576) (mul $connections 81920) (mul $clients 8192) -}}
{{- with $config.export -}}
{{- $buffers := add (ternary 1 0 (not (empty .directory))) (ternary 1 0 (not (empty .kafka_topic))) -}}
{{- $bytes = add $bytes (mul $buffers 16777216) -}}
{{- end -}}
{{- mul 16 (div (add $bytes 16777215) 16777216) -}}Mi
{{- end -}}

{{/* Resources of the kquota container: the computed memory limit is at least the request. */}}
{{- define "kquota.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- $requests := default dict $resources.requests -}}
{{- if and .Values.memoryLimit.enabled (not (default dict $resources.limits).memory) -}}
{{- $limit := include "kquota.memoryLimit" . -}}
{{- if gt (include "kquota.quantity" $requests.memory | float64) (include "kquota.quantity" $limit | float64) }}{{ $limit = $requests.memory }}{{ end -}}
{{- $_ := set $resources "limits" (merge (dict "memory" $limit) (default dict $resources.limits)) -}}
{{- end -}}
{{- include "kquota.fitting" (list "resources" $resources) -}}
{{- end -}}

{{/* Resources of a container as they are. Fails if a request is above its limit. Called with the setting and its value. */}}
{{- define "kquota.fitting" -}}
{{- $setting := index . 0 -}}
{{- $requests := default dict (index . 1).requests -}}
{{- range $resource, $limit := default dict (index . 1).limits -}}
{{- $request := get $requests $resource -}}
{{- if gt (include "kquota.quantity" $request | float64) (include "kquota.quantity" $limit | float64) -}}
{{- fail (printf "%s.requests.%s: expected at most %v (%s.limits.%s), got %v" $setting $resource $limit $setting $resource $request) -}}
{{- end -}}
{{- end -}}
{{- toYaml (index . 1) -}}
{{- end -}}

{{/* A resource quantity as a number; none is 0. */}}
{{- define "kquota.quantity" -}}
{{- $text := toString (default 0 .) -}}
{{- $suffixes := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $suffix := regexFind "[a-zA-Z]*$" $text -}}
{{- mulf (trimSuffix $suffix $text | float64) (get $suffixes $suffix) -}}
{{- end -}}
