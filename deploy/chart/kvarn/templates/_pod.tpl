{{/* A pod that runs `kvarn serve`. Takes {root, component, group, settings, resources, data, pool}; `settings` are YAML,
`data` is the volume of /data, or nothing where it is a claim; `pool` has where engines run, for pods that run some. */}}
{{- define "kvarn.pod" -}}
{{- $values := .root.Values -}}
{{- $settings := .settings | fromYaml -}}
{{- $scheme := ternary "HTTPS" "HTTP" (hasKey $settings.gateway "ssl_certfile") -}}
{{- $hasSecret := and (include "kvarn.secret" .root) (ne .component "engine") -}}
{{- $hasKey := include "kvarn.hasEngineKey" .root -}}
metadata:
  labels:
    {{- include "kvarn.selector" . | nindent 4 }}
  annotations:
    checksum/config: {{ .settings | sha256sum }}
    {{- if and $hasSecret $values.secret.create }}
    checksum/secret: {{ toJson $values.secret.create | sha256sum }}
    {{- end }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "kvarn.serviceAccount" .root }}
  automountServiceAccountToken: {{ eq $values.launcher "kubernetes" }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (ceil $settings.gateway.shutdown_delay_s) (ceil $settings.gateway.drain_timeout_s) 30 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .pool }}
  {{- with .runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.spreadOver }}
  topologySpreadConstraints:
    {{- range . }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "kvarn.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    runAsGroup: 1000
    fsGroup: 1000
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: kvarn
      image: {{ include "kvarn.image" .root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [--config, /etc/kvarn/kvarn.yaml]
      env:
        {{- if $hasSecret }}
        {{- range $setting, $entry := $values.secret.settings }}
        - name: KVARN_{{ $setting | upper | replace "." "__" }}_FILE
          value: /run/secrets/kvarn/{{ $entry }}
        {{- end }}
        {{- end }}
        {{- if eq .component "engine" }}
        - name: KVARN_API_KEY_FILE
          value: /run/secrets/kvarn-engines/key
        {{- end }}
        - name: HOME
          value: /data
        {{- with $values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: http
          containerPort: {{ $settings.gateway.port }}
      startupProbe:
        httpGet: {path: /health, port: http, scheme: {{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ divf $values.startSeconds 5 | ceil }}
      livenessProbe:
        httpGet: {path: /health, port: http, scheme: {{ $scheme }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: {{ ternary "/ready?models=any" "/ready" (eq .component "gateway") | quote }}, port: http, scheme: {{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      resources:
        {{- toYaml .resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: config
          mountPath: /etc/kvarn
          readOnly: true
        - name: data
          mountPath: /data
        - name: tmp
          mountPath: /tmp
        - name: shm
          mountPath: /dev/shm
        {{- if $hasSecret }}
        - name: secret
          mountPath: /run/secrets/kvarn
          readOnly: true
        {{- end }}
        {{- if $hasKey }}
        - name: engine-key
          mountPath: /run/secrets/kvarn-engines
          readOnly: true
        {{- end }}
        {{- with $values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ .name }}
    {{- if not .claim }}
    - name: data
      emptyDir: {}
    {{- end }}
    - name: tmp
      emptyDir: {}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ $values.sharedMemorySize }}
    {{- if $hasSecret }}
    - name: secret
      secret:
        secretName: {{ include "kvarn.secret" .root }}
        defaultMode: 0440
    {{- end }}
    {{- if $hasKey }}
    - name: engine-key
      secret:
        secretName: {{ include "kvarn.engineKeySecret" .root }}
        defaultMode: 0440
    {{- end }}
    {{- with $values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
