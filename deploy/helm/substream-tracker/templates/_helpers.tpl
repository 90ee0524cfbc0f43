{{- define "tracker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters: pods, services and sockets add to it. */}}
{{- define "tracker.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "tracker.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "tracker.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tracker.selector" -}}
app.kubernetes.io/name: {{ include "tracker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tracker.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "tracker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tracker.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "tracker.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tracker.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The servers as clients name them. The relays' sockets have these names, so everybody has to use the same. */}}
{{- define "tracker.servers" -}}
{{- $name := include "tracker.fullname" . }}
{{- $between := ternary "+" "," (ne .Values.journal.address "") }}
{{- if .Values.relay.servers }}
{{- join "," .Values.relay.servers }}
{{- else if eq (int .Values.replicas) 1 }}
{{- printf "%s.%s.svc:7654" $name .Release.Namespace }}
{{- else }}
{{- range $index := until (int .Values.replicas) }}
{{- if $index }}{{ $between }}{{ end }}
{{- printf "%s-%d.%s-headless.%s.svc:7654" $name $index $name $.Release.Namespace }}
{{- end }}
{{- end }}
{{- end }}

{{/* What relays and tests show to the servers: the authorities of the servers' certificates, and what is their own. */}}
{{- define "tracker.clientEnv" -}}
{{- if .Values.security.tlsSecret }}
- name: TRACKER_TLS_CA
  value: /etc/tracker/ca/ca.crt
{{- end }}
{{- if .Values.security.client.tlsSecret }}
- name: TRACKER_TLS_CERT
  value: /etc/tracker/tls/tls.crt
- name: TRACKER_TLS_KEY
  value: /etc/tracker/tls/tls.key
{{- end }}
{{- if .Values.security.client.tokenSecret }}
- name: TRACKER_TOKEN_FILE
  value: /etc/tracker/token/token
{{- end }}
{{- end }}

{{- define "tracker.clientMounts" -}}
{{- if .Values.security.tlsSecret }}
- name: ca
  mountPath: /etc/tracker/ca
  readOnly: true
{{- end }}
{{- if .Values.security.client.tlsSecret }}
- name: tls
  mountPath: /etc/tracker/tls
  readOnly: true
{{- end }}
{{- if .Values.security.client.tokenSecret }}
- name: token
  mountPath: /etc/tracker/token
  readOnly: true
{{- end }}
{{- end }}

{{- define "tracker.clientVolumes" -}}
{{- with .Values.security.tlsSecret }}
- name: ca
  secret:
    secretName: {{ . }}
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- with .Values.security.client.tlsSecret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.security.client.tokenSecret }}
- name: token
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{/* What every container may do: nothing but its work. */}}
{{- define "tracker.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "tracker.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}
