{{/* The labels that all objects have. */}}
{{- define "muster.labels" -}}
app.kubernetes.io/part-of: muster
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The labels that select Muster's pods. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
{{- end }}

{{/* The image of one container. Arguments: the root, and its key in .Values.images. */}}
{{- define "muster.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{/* The settings of `muster serve` that the chart determines, with those of the user on top. */}}
{{- define "muster.settings" -}}
{{- $settings := dict -}}
{{- if ne .Values.schedulerName "muster" -}}
{{- $settings = dict "scheduler_names" (list .Values.schedulerName) -}}
{{- end -}}
{{- if ne .Release.Namespace "muster-system" -}}
{{- $settings = merge $settings (dict "policies" (dict "namespace" .Release.Namespace)) -}}
{{- end -}}
{{- $settings = mergeOverwrite $settings (deepCopy .Values.service.settings) -}}
{{- if $settings }}{{ toYaml $settings }}{{ end -}}
{{- end }}

{{/* Where policies are read. */}}
{{- define "muster.policiesNamespace" -}}
{{ dig "policies" "namespace" .Release.Namespace .Values.service.settings }}
{{- end }}

{{/* The account of the node agents. */}}
{{- define "muster.agents" -}}
system:serviceaccount:muster-nodes:muster-node-agent
{{- end }}

{{/* The shim's configuration: that of scheduler-config/, with the values of the chart. */}}
{{- define "muster.scheduler" -}}
{{- $configuration := .Files.Get "files/scheduler.yaml" | replace "muster-system" .Release.Namespace | fromYaml -}}
{{- $_ := set $configuration "clientConnection" (dict "qps" .Values.shim.qps "burst" .Values.shim.burst) -}}
{{- $profile := first $configuration.profiles -}}
{{- $_ := set $profile "schedulerName" .Values.schedulerName -}}
{{- $plugin := first $profile.pluginConfig -}}
{{- $_ := set $plugin.args "bindTimeout" .Values.shim.bindTimeout -}}
{{ toYaml $configuration }}
{{- end }}
