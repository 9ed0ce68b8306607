{{/* What the schema cannot say: values that contradict each other. All problems are told at once. */}}
{{- define "icecore.problems" -}}
{{- $own := .Values.etcd.own.enabled -}}
{{- $endpoints := .Values.etcd.endpoints -}}
{{- $factor := int .Values.topicDefaults.replication_factor -}}
{{- $least := int .Values.topicDefaults.min_insync_replicas -}}
{{- if gt $factor (int .Values.nodes.replicas) }}
- topicDefaults.replication_factor is {{ $factor }}, but nodes.replicas is {{ .Values.nodes.replicas }}: a node keeps one copy of a segment. Lower the one or raise the other.
{{- end }}
{{- if gt $least $factor }}
- topicDefaults.min_insync_replicas is {{ $least }}, more than replication_factor {{ $factor }}: no record could be acknowledged.
{{- end }}
{{- if and .Values.nodes.podDisruptionBudget.enabled (gt (int .Values.nodes.podDisruptionBudget.maxUnavailable) (max 1 (sub $factor $least))) }}
- nodes.podDisruptionBudget.maxUnavailable is {{ .Values.nodes.podDisruptionBudget.maxUnavailable }}: with {{ $factor }} copies and min_insync_replicas {{ $least }}, evictions may take {{ max 1 (sub $factor $least) }} at a time.
{{- end }}
{{- if and (gt (int .Values.coordinator.replicas) 1) (not $own) (not $endpoints) }}
- coordinator.replicas is {{ .Values.coordinator.replicas }}, but their metadata would lie on one pod's disk: give etcd.endpoints or etcd.own.enabled.
{{- end }}
{{- if and $own $endpoints }}
- etcd.own.enabled and etcd.endpoints exclude each other: choose one etcd.
{{- end }}
{{- if and $own (or .Values.etcd.tls.secretName .Values.etcd.auth.user) }}
- etcd.own has neither TLS nor users: etcd.tls and etcd.auth are for etcd.endpoints.
{{- end }}
{{- if and $endpoints (contains "https://" $endpoints) (regexMatch "(^|,) *(http://|[^h,])" (replace "https://" "h" $endpoints)) }}
- etcd.endpoints has members with and without https://: all or none.
{{- end }}
{{- if and .Values.etcd.tls.clientCertificate (not .Values.etcd.tls.secretName) }}
- etcd.tls.clientCertificate needs etcd.tls.secretName: a Secret with ca.crt, tls.crt and tls.key.
{{- end }}
{{- if ne (empty .Values.etcd.auth.user) (empty .Values.etcd.auth.passwordSecret) }}
- etcd.auth.user and etcd.auth.passwordSecret go together: give both or neither.
{{- end }}
{{- with .Values.externalAccess }}
{{- if and .enabled (eq .type "LoadBalancer") (not .domain) }}
- externalAccess.type LoadBalancer needs externalAccess.domain: a node is known by POD.domain.
{{- end }}
{{- if and .enabled (eq .type "NodePort") (gt (int $.Values.nodes.replicas) 9) }}
- externalAccess.type NodePort numbers ports by one digit: 9 nodes at most, not {{ $.Values.nodes.replicas }}.
{{- end }}
{{- end }}
{{- range $table, $values := .Values.config }}
{{- range $key := list "data" "data_dirs" "node_id" "coordinator" "listen" "advertise" "native_listen" "native_advertise" "metrics_listen" "insecure_bind" "host" "rack" "leave_wait_ms" "topic_defaults" }}
{{- if hasKey $values $key }}
- config.{{ $table }}.{{ $key }} is set by the chart: leave it out.
{{- end }}
{{- end }}
{{- end }}
{{- include "icecore.prefixProblem" . }}
{{- include "icecore.storageClassProblem" . }}
{{- end }}

{{/* Two clusters with the same keys in etcd would take each other's metadata for their own. Only a prefix that somebody wrote can be
another release's: the default names the release. Only where a cluster answers, and where the user may list StatefulSets. */}}
{{- define "icecore.prefixProblem" -}}
{{- if and .Values.etcd.prefix .Values.etcd.endpoints -}}
{{- $own := printf "%s %s" .Values.etcd.endpoints (include "icecore.etcdPrefix" .) -}}
{{- range (lookup "apps/v1" "StatefulSet" "" "").items -}}
{{- $release := index (default dict .metadata.labels) "app.kubernetes.io/instance" -}}
{{- $other := or (ne .metadata.namespace $.Release.Namespace) (ne (default "" $release) $.Release.Name) -}}
{{- if and $other (eq $own (default "" (index (default dict .metadata.annotations) "icecore.io/etcd"))) }}
- etcd.prefix is {{ $.Values.etcd.prefix }}, which release {{ $release }} of namespace {{ .metadata.namespace }} uses in the same etcd: two clusters would share their metadata. Choose another prefix, or leave it out.
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Only where a cluster answers: `helm template` sees none. */}}
{{- define "icecore.storageClassProblem" -}}
{{- $wants := list -}}
{{- if .Values.nodes.persistence.enabled -}}{{- $wants = append $wants (dict "of" "nodes" "class" .Values.nodes.persistence.storageClassName) -}}{{- end -}}
{{- if .Values.coordinator.persistence.enabled -}}{{- $wants = append $wants (dict "of" "coordinator" "class" .Values.coordinator.persistence.storageClassName) -}}{{- end -}}
{{- if and .Values.etcd.own.enabled .Values.etcd.own.persistence.enabled -}}{{- $wants = append $wants (dict "of" "etcd.own" "class" .Values.etcd.own.persistence.storageClassName) -}}{{- end -}}
{{- if and $wants .Values.checkStorageClass .Release.IsInstall -}}
{{- if (lookup "v1" "Namespace" "" "kube-system") -}}
{{- $default := "" -}}
{{- $names := list -}}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- $names = append $names .metadata.name -}}
{{- if eq "true" (default "" (index (default dict .metadata.annotations) "storageclass.kubernetes.io/is-default-class")) -}}{{- $default = .metadata.name -}}{{- end -}}
{{- end -}}
{{- range $wants }}
{{- if and .class (not (has .class $names)) }}
- {{ .of }}.persistence.storageClassName is {{ .class }}, which the cluster does not have. It has: {{ join ", " $names | default "none" }}.
{{- else if and (not .class) (not $default) }}
- {{ .of }}.persistence.storageClassName is empty, and the cluster has no default StorageClass. It has: {{ join ", " $names | default "none" }}. Name one, or its pods wait for disks for ever.
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end }}
