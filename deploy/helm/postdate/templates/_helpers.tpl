{{- define "postdate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "postdate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "postdate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "postdate.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "postdate.selector" -}}
app.kubernetes.io/name: {{ include "postdate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "postdate.labels" -}}
{{ include "postdate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "postdate.tokens" -}}
{{- default (printf "%s-tokens" (include "postdate.fullname" .)) .Values.tokens.existingSecret -}}
{{- end -}}

{{- define "postdate.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* What the schema cannot refuse. */ -}}
{{- define "postdate.check" -}}
{{- if not (trim .Values.config) -}}
{{- fail "config is empty. Put postdate's settings there, as TOML with at least one [routes.NAME]; config.example.toml is the manual." -}}
{{- end -}}
{{- $settings := fromToml .Values.config -}}
{{- if $settings.Error -}}
{{- fail (printf "config is not valid TOML: %s." $settings.Error) -}}
{{- end -}}
{{- if not (or .Values.tokens.generate .Values.tokens.existingSecret) -}}
{{- fail "postdate needs a token, because its pod listens on all addresses. Set tokens.generate to true, or tokens.existingSecret to a Secret with the key viewer_token." -}}
{{- end -}}
{{- end -}}
