//! The manifests of packaging/kubernetes as types. They hold the fields that these manifests use, with
//! the names and the types that Kubernetes has for them (`kubectl explain`): a field that is misspelled,
//! or stands in the wrong place, which the API server would only drop with a warning, is refused here.
// Some fields are there only to be known.
#![allow(dead_code)]

use std::collections::BTreeMap;

use serde::Deserialize;

pub type Labels = BTreeMap<String, String>;

/// An object of any kind that is used.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind")]
pub enum Object {
    Namespace(Namespace),
    ServiceAccount(ServiceAccount),
    DaemonSet(DaemonSet),
    Service(Service),
    ConfigMap(ConfigMap),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Namespace {
    pub api_version: String,
    pub metadata: Metadata,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    /// Set by kustomize.
    pub namespace: Option<String>,
    #[serde(default)]
    pub labels: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServiceAccount {
    pub api_version: String,
    pub metadata: Metadata,
    pub automount_service_account_token: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ConfigMap {
    pub api_version: String,
    pub metadata: Metadata,
    pub data: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Service {
    pub api_version: String,
    pub metadata: Metadata,
    pub spec: ServiceSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    pub publish_not_ready_addresses: bool,
    pub selector: Labels,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: String,
    pub port: u16,
    pub target_port: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DaemonSet {
    pub api_version: String,
    pub metadata: Metadata,
    pub spec: DaemonSetSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DaemonSetSpec {
    pub selector: Selector,
    pub update_strategy: UpdateStrategy,
    pub template: Template,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Selector {
    pub match_labels: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct UpdateStrategy {
    #[serde(rename = "type")]
    pub kind: String,
    pub rolling_update: RollingUpdate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RollingUpdate {
    pub max_unavailable: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    pub metadata: TemplateMetadata,
    pub spec: Pod,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateMetadata {
    pub labels: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Pod {
    pub service_account_name: String,
    pub automount_service_account_token: bool,
    #[serde(rename = "hostPID")]
    pub host_pid: bool,
    pub node_selector: Labels,
    pub tolerations: Vec<Labels>,
    pub termination_grace_period_seconds: u64,
    pub containers: Vec<Container>,
    pub volumes: Vec<Volume>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub image: String,
    pub image_pull_policy: String,
    pub args: Vec<String>,
    pub ports: Vec<ContainerPort>,
    pub liveness_probe: ExecProbe,
    pub readiness_probe: HttpProbe,
    pub resources: Resources,
    pub security_context: SecurityContext,
    pub volume_mounts: Vec<VolumeMount>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: String,
    pub container_port: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExecProbe {
    pub exec: Exec,
    pub period_seconds: u32,
    pub timeout_seconds: u32,
    pub failure_threshold: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    pub command: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HttpProbe {
    pub http_get: HttpGet,
    pub period_seconds: u32,
    pub timeout_seconds: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpGet {
    pub path: String,
    pub port: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    pub requests: Labels,
    pub limits: Labels,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SecurityContext {
    pub run_as_user: u32,
    pub run_as_group: u32,
    pub privileged: bool,
    pub allow_privilege_escalation: bool,
    pub read_only_root_filesystem: bool,
    pub seccomp_profile: Labels,
    pub capabilities: Capabilities,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    pub drop: Vec<String>,
    pub add: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct VolumeMount {
    pub name: String,
    pub mount_path: String,
    #[serde(default)]
    pub read_only: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Volume {
    pub name: String,
    pub host_path: Option<HostPath>,
    pub config_map: Option<ConfigMapVolume>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPath {
    pub path: String,
    #[serde(rename = "type")]
    pub kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ConfigMapVolume {
    pub name: String,
    pub default_mode: u32,
}

/// What `kubectl apply -k` puts together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Kustomization {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub resources: Vec<String>,
    pub config_map_generator: Vec<Generator>,
    pub images: Vec<Image>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    pub name: String,
    pub files: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Image {
    pub name: String,
    pub new_tag: String,
}
