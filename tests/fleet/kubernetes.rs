//! What must hold for packaging/kubernetes: the daemon has the rights of its systemd unit and no more,
//! its probes ask for what it answers, at the port that its configuration opens, and nothing has rights
//! at the API server.

use std::collections::BTreeSet;
use std::process::Command;

use evenkeel::config;
use evenkeel_host::daemon::{Pages, answer_metrics_request};

use crate::manifests::{Container, DaemonSet, Kustomization, Object, Pod, Service};
use crate::{project, text_of};

const FOLDER: &str = "packaging/kubernetes";
const UNIT: &str = "packaging/systemd/evenkeel.service";

fn parse<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> T {
    serde_yaml_ng::from_str(text).unwrap_or_else(|why| panic!("{name}: {why}"))
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    parse(name, &text_of(&format!("{FOLDER}/{name}")))
}

/// All objects of the folder.
fn objects() -> Vec<Object> {
    let kustomization: Kustomization = read("kustomization.yaml");
    kustomization.resources.iter().map(|name| read(name)).collect()
}

fn daemonset(objects: &[Object]) -> &DaemonSet {
    let mut found = objects.iter().filter_map(|object| match object {
        Object::DaemonSet(set) => Some(set),
        _ => None,
    });
    let set = found.next().expect("a DaemonSet");
    assert!(found.next().is_none(), "one DaemonSet");
    set
}

fn service(objects: &[Object]) -> &Service {
    let found = objects.iter().find_map(|object| match object {
        Object::Service(service) => Some(service),
        _ => None,
    });
    found.expect("a Service")
}

fn container(pod: &Pod) -> &Container {
    assert_eq!(pod.containers.len(), 1);
    &pod.containers[0]
}

/// The words of a setting of the daemon's unit.
fn unit(setting: &str) -> BTreeSet<String> {
    let text = text_of(UNIT);
    let values = text.lines().filter_map(|line| line.strip_prefix(&format!("{setting}=")));
    values
        .flat_map(|value| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// What is true of the files is true of what kubectl makes of them.
fn check(objects: &[Object]) {
    let set = daemonset(objects);
    let pod = &set.spec.template.spec;
    let container = container(pod);

    // The rights of the unit, and no others.
    let rights = &container.security_context;
    let added: BTreeSet<String> =
        rights.capabilities.add.iter().map(|name| format!("CAP_{name}")).collect();
    assert_eq!(added, unit("CapabilityBoundingSet"));
    assert_eq!(rights.capabilities.drop, ["ALL"]);
    assert!(!rights.privileged && !rights.allow_privilege_escalation);
    assert!(rights.read_only_root_filesystem);
    assert_eq!((rights.run_as_user, rights.run_as_group), (0, 0));
    let limit = &container.resources.limits["memory"];
    assert_eq!(unit("MemoryMax"), BTreeSet::from([limit.trim_end_matches('i').to_owned()]));
    // A limit of CPU time would hold up its answers to others.
    assert!(!container.resources.limits.contains_key("cpu"));

    // It sees the node's processes and cgroups, and shares the folder of its socket with the node.
    assert!(pod.host_pid);
    let mount = |path: &str| {
        let mount = container.volume_mounts.iter().find(|mount| mount.mount_path == path);
        let mount = mount.unwrap_or_else(|| panic!("nothing is mounted at {path}"));
        let volume = pod.volumes.iter().find(|volume| volume.name == mount.name);
        (mount, volume.unwrap_or_else(|| panic!("there is no volume {}", mount.name)))
    };
    for (path, read_only) in [("/run/evenkeel", false), ("/sys/fs/cgroup", true)] {
        let (mount, volume) = mount(path);
        assert_eq!(volume.host_path.as_ref().map(|host| host.path.as_str()), Some(path));
        assert_eq!(mount.read_only, read_only, "{path}");
    }
    assert_eq!(container.volume_mounts.len(), pod.volumes.len());
    let (mount, volume) = mount("/etc/evenkeel");
    let map = volume.config_map.as_ref().expect("the configuration is a ConfigMap");
    assert!(mount.read_only && map.name.starts_with("evenkeel"));

    // The Service finds the pods, and each port the one that it means.
    let labels = &set.spec.template.metadata.labels;
    assert_eq!(&set.spec.selector.match_labels, labels);
    let service = service(objects);
    assert!(service.spec.selector.iter().all(|(name, value)| labels.get(name) == Some(value)));
    // The alert EvenkeelOnlyObserves needs the metrics of a node that is not ready.
    assert!(service.spec.publish_not_ready_addresses);
    let ports = |name: &str| {
        let port = container.ports.iter().find(|port| port.name == name);
        port.unwrap_or_else(|| panic!("the container has no port {name}")).container_port
    };
    assert_eq!(service.spec.ports.len(), 1);
    assert_eq!(ports(&service.spec.ports[0].target_port), service.spec.ports[0].port);
    let configured = config::parse(&text_of(&format!("{FOLDER}/config.toml"))).unwrap();
    let address = configured.daemon.metrics.expect("the metrics have an address").address();
    assert!(!address.ip().is_loopback(), "the kubelet asks from the node");
    assert_eq!(ports(&container.readiness_probe.http_get.port), address.port());

    // No right and no token at the API server.
    assert!(!pod.automount_service_account_token);
    let accounts = objects.iter().filter_map(|object| match object {
        Object::ServiceAccount(account) => Some(account),
        _ => None,
    });
    for account in accounts {
        assert_eq!(account.metadata.name, pod.service_account_name);
        assert!(!account.automount_service_account_token);
    }
}

#[test]
fn the_manifests_fit_the_product_and_each_other() {
    check(&objects());
}

#[test]
fn probes_ask_for_what_the_daemon_answers() {
    let objects = objects();
    let container = container(&daemonset(&objects).spec.template.spec);
    let ready = &container.readiness_probe;
    let status = |not_ready: Option<&str>| {
        let pages = Pages { metrics: String::new(), not_ready: not_ready.map(str::to_owned) };
        let request = format!("GET {} HTTP/1.1\r\nHost: node\r\n\r\n", ready.http_get.path);
        let answer = answer_metrics_request(request.as_bytes(), false, &pages).unwrap();
        let text = String::from_utf8(answer).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    assert_eq!((status(None), status(Some("no journal"))), (200, 503));
    // The daemon closes a connection after five seconds.
    assert!(ready.timeout_seconds <= 5);
    // No client of the metrics can have the daemon restarted: it is asked at its socket. What the exit
    // code says is tested in tests/host/seen.rs; the command itself gives up after four seconds.
    let live = &container.liveness_probe;
    let matches = evenkeel::cli::command().try_get_matches_from(&live.exec.command).unwrap();
    let (name, asked) = matches.subcommand().unwrap();
    assert!(name == "status" && asked.get_flag("daemon"));
    let image = text_of("packaging/image/Containerfile");
    assert!(image.contains(&format!("ENTRYPOINT [\"{}\"]", live.exec.command[0])));
    assert!(live.timeout_seconds > 4);
}

#[test]
fn the_command_and_the_image_are_those_of_this_version() {
    let objects = objects();
    let container = container(&daemonset(&objects).spec.template.spec);
    let words = ["evenkeel"].into_iter().chain(container.args.iter().map(String::as_str));
    evenkeel::cli::command().try_get_matches_from(words).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(container.image, format!("localhost/evenkeel:{version}"));
    let kustomization: Kustomization = read("kustomization.yaml");
    assert_eq!(kustomization.images.len(), 1);
    assert_eq!(kustomization.images[0].name, "localhost/evenkeel");
    assert_eq!(kustomization.images[0].new_tag, version);
}

#[test]
fn every_file_of_the_folder_is_put_together() {
    let kustomization: Kustomization = read("kustomization.yaml");
    let files = kustomization.config_map_generator.iter().flat_map(|made| &made.files);
    let used: BTreeSet<&str> =
        kustomization.resources.iter().chain(files).map(String::as_str).collect();
    let entries = std::fs::read_dir(project(FOLDER)).unwrap();
    let there: BTreeSet<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    assert_eq!(used, there.iter().map(String::as_str).collect::<BTreeSet<_>>());
}

/// kubectl of any version builds it without a cluster.
#[test]
fn kubectl_puts_the_same_together() {
    let output = Command::new("kubectl").arg("kustomize").arg(project(FOLDER)).output();
    let Ok(output) = output else {
        evenkeel_skip::skip("kubectl_puts_the_same_together", "there is no kubectl");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let parts = text.split("\n---\n").map(|part| parse::<Object>("kubectl kustomize", part));
    let objects: Vec<Object> = parts.collect();
    check(&objects);
    let made = objects.iter().find_map(|object| match object {
        Object::ConfigMap(map) => Some(map),
        _ => None,
    });
    let made = made.expect("a ConfigMap");
    assert_eq!(made.data["config.toml"], text_of(&format!("{FOLDER}/config.toml")));
    let set = daemonset(&objects);
    let volumes = &set.spec.template.spec.volumes;
    let named = volumes.iter().find_map(|volume| Some(&volume.config_map.as_ref()?.name));
    assert_eq!(named, Some(&made.metadata.name));
    assert_eq!(set.metadata.namespace.as_deref(), Some("evenkeel"));
}
