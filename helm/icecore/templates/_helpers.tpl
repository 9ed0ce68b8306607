{{- define "icecore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "icecore.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "icecore.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "icecore.name" .) | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Labels that never change: selectors and claims are immutable. Takes (dict "root" $ "component" "node"). */}}
{{- define "icecore.selector" -}}
app.kubernetes.io/name: {{ include "icecore.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "icecore.labels" -}}
{{ include "icecore.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "icecore.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The name of a pod in DNS, its number apart. Takes (dict "root" $ "component" "node"). */}}
{{- define "icecore.domain" -}}
{{ include "icecore.fullname" .root }}-{{ .component }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{/* End of the names of Services. A pod is called by the name of a Service of its own. */}}
{{- define "icecore.servicesDomain" -}}
{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* HOST:PORT of each coordinator. */}}
{{- define "icecore.coordinators" -}}
{{- $found := list -}}
{{- range $i := until (int .Values.coordinator.replicas) -}}
{{- $found = append $found (printf "%s-coordinator-%d.%s:7400" (include "icecore.fullname" $) $i (include "icecore.servicesDomain" $)) -}}
{{- end -}}
{{- join "," $found -}}
{{- end }}

{{- define "icecore.etcdEndpoints" -}}
{{- if .Values.etcd.own.enabled -}}
{{- $domain := include "icecore.domain" (dict "root" . "component" "etcd") -}}
{{- $found := list -}}
{{- range $i := until (int .Values.etcd.own.replicas) -}}
{{- $found = append $found (printf "%s-etcd-%d.%s:2379" (include "icecore.fullname" $) $i $domain) -}}
{{- end -}}
{{- join "," $found -}}
{{- else -}}
{{- .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{/* One value as TOML. Numbers of YAML are floating point here: whole ones are written as such. */}}
{{- define "icecore.tomlValue" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}
{{- else if kindIs "slice" . -}}{{ join "," . | toJson }}
{{- else -}}{{ toJson . }}{{- end -}}
{{- end }}

{{/* A table and those in it. Takes (dict "name" "node" "values" (dict …)). */}}
{{- define "icecore.tomlTable" }}
[{{ .name }}]
{{- range $key, $value := .values }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "icecore.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .values }}
{{- if kindIs "map" $value }}
{{ include "icecore.tomlTable" (dict "name" (printf "%s.%s" $.name $key) "values" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Begin of all keys in etcd: no two clusters may have the same. */}}
{{- define "icecore.etcdPrefix" -}}
{{ .Values.etcd.prefix | default (printf "icecore/%s/%s/" .Release.Namespace .Release.Name) }}
{{- end }}

{{- define "icecore.toml" -}}
{{- $etcd := dict -}}
{{- with include "icecore.etcdEndpoints" . -}}
{{- $prefix := include "icecore.etcdPrefix" $ -}}
{{- $etcd = dict "endpoints" . "prefix" $prefix -}}
{{- if $.Values.etcd.tls.secretName -}}
{{- $_ := set $etcd "ca_file" "/etc/icecore-etcd/ca.crt" -}}
{{- if $.Values.etcd.tls.clientCertificate -}}
{{- $_ := set $etcd "certificate_file" "/etc/icecore-etcd/tls.crt" -}}
{{- $_ := set $etcd "key_file" "/etc/icecore-etcd/tls.key" -}}
{{- end -}}
{{- end -}}
{{- if $.Values.etcd.auth.user -}}
{{- $_ := set $etcd "user" $.Values.etcd.auth.user -}}
{{- $_ := set $etcd "password_file" "/etc/icecore-etcd-user/password" -}}
{{- end -}}
{{- end -}}
{{- $coordinator := mergeOverwrite (deepCopy .Values.config.coordinator) (dict "topic_defaults" .Values.topicDefaults) -}}
{{- if $etcd -}}{{- $coordinator = mergeOverwrite $coordinator (dict "etcd" (mergeOverwrite $etcd (default dict .Values.config.coordinator.etcd))) -}}{{- end -}}
{{- $node := mergeOverwrite (dict "leave_wait_ms" (mul (int .Values.nodes.leaveWaitSeconds) 1000)) .Values.config.node -}}
{{ include "icecore.tomlTable" (dict "name" "coordinator" "values" $coordinator) | trim }}

{{ include "icecore.tomlTable" (dict "name" "node" "values" $node) | trim }}
{{- end }}

{{/* Of each pod: annotations, identity, placement. Takes (dict "root" $ "component" "node" "values" .Values.nodes). */}}
{{- define "icecore.podMetadata" -}}
labels:
  {{- include "icecore.selector" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include "icecore.toml" .root | sha256sum }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "icecore.podSpec" -}}
serviceAccountName: {{ include "icecore.fullname" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Three probes with three meanings. Takes the minutes that a start may take. */}}
{{- define "icecore.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ mul (int .) 12 }}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* A claim. Takes (dict "name" "data" "values" (dict "size" … "storageClassName" …)). It never changes: see the labels. */}}
{{- define "icecore.claim" -}}
- metadata:
    name: {{ .name }}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .values.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .values.size }}
{{- end }}
