{{/* Names are short enough for "-GROUP", a pod's number and Kubernetes' own suffixes. */}}
{{- define "kvarn.fullname" -}}
{{- $name := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-kvarn" .Release.Name) (contains "kvarn" .Release.Name)) -}}
{{- $name | trunc 32 | trimSuffix "-" -}}
{{- end }}

{{- define "kvarn.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end }}

{{/* Labels by which pods are selected. Takes {root, component, group}. */}}
{{- define "kvarn.selector" -}}
app.kubernetes.io/name: kvarn
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .group }}
kvarn.io/group: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of an object. Takes the same. */}}
{{- define "kvarn.labels" -}}
{{ include "kvarn.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "kvarn.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "kvarn.fullname" .) -}}
{{- end }}

{{- define "kvarn.secret" -}}
{{- if .Values.secret.existing }}{{ .Values.secret.existing }}{{ else if .Values.secret.create }}{{ include "kvarn.fullname" . }}{{ end -}}
{{- end }}

{{- define "kvarn.engineKeySecret" -}}
{{- .Values.secret.engineKey | default (printf "%s-engines" (include "kvarn.fullname" .)) -}}
{{- end }}

{{/* Whether a key is needed between gateways and engines in pods of their own. */}}
{{- define "kvarn.hasEngineKey" -}}
{{- if or .Values.gateway.separate (eq .Values.launcher "kubernetes") }}yes{{ end -}}
{{- end }}

{{- define "kvarn.hasDatabase" -}}
{{- if or (hasKey .Values.secret.settings "store.url") (dig "store" "url" "" .Values.config) }}yes{{ end -}}
{{- end }}

{{/* Kinds of pods that run engines, as a JSON list: {name, component, group, models, replicas, ...}. */}}
{{- define "kvarn.pools" -}}
{{- $own := pick .Values "models" "replicas" "resources" "gpu" "nodeSelector" "tolerations" "runtimeClassName" "storage" "autoscaling" -}}
{{- $fullname := include "kvarn.fullname" . -}}
{{- $pools := list -}}
{{- if not .Values.gateway.separate -}}
  {{- $pools = list (merge (dict "name" $fullname "component" "server" "group" "") $own) -}}
{{- else -}}
  {{- if .Values.models -}}
    {{- $pools = append $pools (merge (dict "name" (printf "%s-engine" $fullname) "component" "engine" "group" "engine") $own) -}}
  {{- end -}}
  {{- range $group, $values := .Values.engineGroups -}}
    {{- $pool := mergeOverwrite (deepCopy $own) (deepCopy $values) -}}
    {{- $pools = append $pools (merge (dict "name" (printf "%s-%s" $fullname $group) "component" "engine" "group" $group) $pool) -}}
  {{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end }}

{{/* Combinations that cannot work, each with what to do. */}}
{{- define "kvarn.check" -}}
{{- $values := .Values -}}
{{- $separate := $values.gateway.separate -}}
{{- $pods := eq $values.launcher "kubernetes" -}}
{{- if and $separate $pods -}}
  {{- fail "launcher: kubernetes makes a pod for each replica of a model by itself: leave out gateway.separate" -}}
{{- end -}}
{{- if and $pods (ne $values.autoscaling.kind "none") -}}
  {{- fail "with launcher: kubernetes Kvarn follows the load itself: set `autoscale` of the models, and autoscaling.kind: none" -}}
{{- end -}}
{{- if and $pods (gt (int $values.replicas) 1) -}}
  {{- fail "with launcher: kubernetes one gateway looks after all engines: set replicas: 1, and `replicas` of the models" -}}
{{- end -}}
{{- if and $values.engineGroups (not $separate) -}}
  {{- fail "engineGroups are for gateways in pods of their own: set gateway.separate: true" -}}
{{- end -}}
{{- if and (not $values.models) (not $values.engineGroups) -}}
  {{- fail "no model to serve: name at least one under models, or under models of an engine group" -}}
{{- end -}}
{{- $several := or $separate (gt (int $values.replicas) 1) (ne $values.autoscaling.kind "none") -}}
{{- if and $several (not (include "kvarn.hasDatabase" .)) -}}
  {{- fail "several servers need one PostgreSQL: name it by secret.settings, such as {store.url: database-url}, or config.store.url" -}}
{{- end -}}
{{- if and $values.secret.settings (not (include "kvarn.secret" .)) -}}
  {{- fail "secret.settings name entries of a Secret: give its name as secret.existing, or its entries in secret.create" -}}
{{- end -}}
{{- if regexMatch "://[^/\\s:@]*:[^/\\s@]+@" (toYaml (list $values.config $values.models $values.engineGroups)) -}}
  {{- fail "there is a password in a URL, which everybody who may read ConfigMaps would see: put it into a Secret, and name it in secret.settings" -}}
{{- end -}}
{{- if eq $values.autoscaling.kind "hpa" -}}
  {{- range $pool := include "kvarn.pools" . | fromJsonArray -}}
    {{- range $pool.models -}}
      {{- if not (regexMatch "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" .name) -}}
        {{- fail (printf "a HorizontalPodAutoscaler cannot ask for the model %q: give it a name of letters, digits and -_., or use autoscaling.kind: keda" .name) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $values.secret.existing $values.secret.create -}}
  {{- fail "secret.existing and secret.create are both set: keep one" -}}
{{- end -}}
{{- if and $values.ingress.enabled (not $values.ingress.host) -}}
  {{- fail "the ingress needs a host: set ingress.host" -}}
{{- end -}}
{{- end }}
