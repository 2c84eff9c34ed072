{{/*
Sets in .Values what is null or missing: values of an earlier chart (`helm upgrade --reuse-values`) lack what is new here.
Called first in each template, and by each named template for other charts.
*/}}
{{- define "kquota.defaults" -}}
{{- include "kquota.fill" (list .Values (.Files.Get "files/defaults.json" | fromJson)) -}}
{{- end -}}

{{/* Called with values and defaults. Within maps whose keys are free, a null takes a default away, as usual with Helm. */}}
{{- define "kquota.fill" -}}
{{- $values := index . 0 -}}
{{- range $key, $default := index . 1 -}}
{{- $value := index $values $key -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := set $values $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" $value) (not (has $key (list "resources" "volume" "labels" "annotations"))) -}}
{{- include "kquota.fill" (list $value $default) -}}
{{- end -}}
{{- end -}}
{{- end -}}
