{{/* Settings that the chart decides, under those of `config`. */}}
{{- define "kvarn.base" -}}
data_dir: /data
log_format: json
gateway: {host: 0.0.0.0, port: 8000, shutdown_delay_s: 10, drain_timeout_s: 120}
{{- end }}

{{/* Settings of a server with the models of a pool; takes {root, pool}. With autoscaling each model's need is measured,
though its pod keeps one replica of it: pods are what follows the load. */}}
{{- define "kvarn.server" -}}
{{- $values := .root.Values -}}
{{- $own := include "kvarn.base" .root | fromYaml -}}
{{- $models := list -}}
{{- range .pool.models -}}
  {{- $model := deepCopy . -}}
  {{- if and (ne $.pool.autoscaling.kind "none") (not (hasKey $model "autoscale")) -}}
    {{- $_ := set $model "autoscale" (dict "min_replicas" 1 "max_replicas" 1) -}}
  {{- end -}}
  {{- $models = append $models $model -}}
{{- end -}}
{{- $_ := set $own "models" $models -}}
{{- if eq $values.launcher "kubernetes" -}}
  {{- $cluster := dict "server" (include "kvarn.fullname" .root) "key_secret" (include "kvarn.engineKeySecret" .root) "key_file" "/run/secrets/kvarn-engines/key" "gpu_resource" $values.gpu.resource -}}
  {{- with $values.runtimeClassName }}{{ $_ := set $cluster "runtime_class" . }}{{ end -}}
  {{- with $values.nodeSelector }}{{ $_ := set $cluster "node_selector" . }}{{ end -}}
  {{- with $values.tolerations }}{{ $_ := set $cluster "tolerations" . }}{{ end -}}
  {{- $_ := set $own "fleet" (dict "launcher" "kubernetes" "kubernetes" $cluster) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $own (deepCopy $values.config)) -}}
{{- end }}

{{/* Settings of engine pods behind separate gateways: what the gateways do (tenants, limits, prices, ...) is left out. */}}
{{- define "kvarn.engine" -}}
{{- $server := include "kvarn.server" . | fromYaml -}}
{{- $models := list -}}
{{- range $server.models }}{{ $models = append $models (omit . "aliases" "fallback" "load_shedding" "timeouts" "breaker") }}{{ end -}}
{{- $own := pick $server "data_dir" "log_format" "log_level" "replica" "slo" "quality" -}}
{{- $_ := set $own "models" $models -}}
{{- $_ := set $own "gateway" (pick $server.gateway "host" "port" "shutdown_delay_s" "drain_timeout_s") -}}
{{- $_ := set $own "console" (dict "enabled" false) -}}
{{- $_ := set $own "traces" (dict "kept" (dict "enabled" false)) -}}
{{- toYaml $own -}}
{{- end }}

{{/* Settings of separate gateways: to them the pods of a pool are external servers, at the names that they keep. A model of
several pools is served by all of their pods. */}}
{{- define "kvarn.gateway" -}}
{{- $values := .Values -}}
{{- $own := include "kvarn.base" . | fromYaml -}}
{{- $port := dig "gateway" "port" $own.gateway.port $values.config | int -}}
{{- $models := list -}}
{{- $urls := dict -}}
{{- range $pool := include "kvarn.pools" . | fromJsonArray -}}
  {{- $pods := ternary $pool.replicas $pool.autoscaling.maxReplicas (eq $pool.autoscaling.kind "none") | int -}}
  {{- range $model := $pool.models -}}
    {{- if not (hasKey $urls $model.name) -}}
      {{- $models = append $models (pick $model "name" "aliases" "kind" "tokenizer" "fallback" "load_shedding" "timeouts" "breaker" "ttft_target_s" "tpot_target_s" "max_context_length") -}}
    {{- end -}}
    {{- range until $pods -}}
      {{- $url := printf "http://%s-%d.%s.%s.svc:%d/v1" $pool.name . $pool.name $.Release.Namespace $port -}}
      {{- $_ := set $urls $model.name (append (get $urls $model.name | default list) $url) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $models -}}
  {{- $_ := set . "external" (dict "base_url" (get $urls .name) "api" "kvarn" "api_key_file" "/run/secrets/kvarn-engines/key") -}}
{{- end -}}
{{- $_ := set $own "models" $models -}}
{{- toYaml (mergeOverwrite $own (deepCopy $values.config)) -}}
{{- end }}
