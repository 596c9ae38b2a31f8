//! `[redis]`: which settings belong to which mode.

use std::path::PathBuf;
use std::time::Duration;

use salvage_core::settings::hash_tag;

use super::parameters::Unheeded;
use super::read::missing_url;
use super::redis_url::{is_tls, server_url};
use super::section::{Complaint, Section, duration, text, word};
use super::tree::{Data, Node, Place};
use super::{Redis, Servers};
use crate::secret::SecretUrl;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Single,
    Sentinel,
    Cluster,
}

/// `None` if it is not known which servers; if they are needed, that has left a fault.
pub(super) fn redis(mut section: Section<'_>, is_needed: bool, notes: &mut Vec<String>) -> Option<Redis> {
    let modes = [("single", Mode::Single), ("sentinel", Mode::Sentinel), ("cluster", Mode::Cluster)];
    let mode = section.or("mode", Mode::Single, |node| word(node, &modes, &[]));
    let prefix = prefix(&mut section, mode);
    let timeout = section.or("timeout", Duration::from_secs(5), duration);
    let mut unheeded = Unheeded::default();
    let servers = servers(&mut section, mode, is_needed, &mut unheeded);
    notes.extend(unheeded.note("[redis] url"));
    let path = |node: &Node| text(node).map(PathBuf::from);
    let has_tls = servers.as_ref().is_none_or(has_tls);
    let file = |node: &Node| if has_tls { path(node) } else { Err(useless_without_tls()) };
    let ca = section.get("ca", file);
    let (has_cert, has_key) = (section.has("cert"), section.has("key"));
    let identity = section.get("cert", file).zip(section.get("key", file));
    if has_cert != has_key {
        section.complain(section.place(), Complaint::new("cert and key: only one of them is set"));
    }
    section.close();
    Some(Redis { servers: servers?, prefix, timeout, ca, identity })
}

fn prefix(section: &mut Section<'_>, mode: Mode) -> String {
    let default = "bull".to_owned();
    if mode != Mode::Cluster {
        return section.or("prefix", default, text);
    }
    let untagged = |what: &str| {
        let complaint = format!("{what} has no hash tag, so that the queues would lie on several nodes");
        Complaint::new(complaint)
            .with_help("set prefix = \"{bull}\" here and in the application's queues and workers")
    };
    if !section.has("prefix") {
        section.complain(section.place(), untagged("prefix: the default, \"bull\","));
    }
    section.or("prefix", default, |node| {
        let prefix = text(node)?;
        if hash_tag(&prefix).is_some() { Ok(prefix) } else { Err(untagged("it")) }
    })
}

fn servers(
    section: &mut Section<'_>,
    mode: Mode,
    is_needed: bool,
    unheeded: &mut Unheeded,
) -> Option<Servers> {
    let (has_url, has_nodes) = (section.has("url"), section.has("nodes"));
    let url = section.get("url", |node| server_url(node, mode == Mode::Single, unheeded));
    let nodes = match mode {
        Mode::Single => {
            refuse(section, "nodes", "is for mode \"sentinel\" or \"cluster\"");
            None
        }
        Mode::Sentinel | Mode::Cluster => section.get("nodes", |node| node_urls(node, unheeded)),
    };
    let has_master_name = section.has("master_name");
    let master_name = match mode {
        Mode::Sentinel => section.get("master_name", text),
        Mode::Single | Mode::Cluster => {
            refuse(section, "master_name", "is for mode \"sentinel\"");
            None
        }
    };
    let mut missing = |is_there: bool, complaint: Complaint| {
        if is_needed && !is_there {
            section.complain(Place::Nowhere, complaint);
        }
    };
    match mode {
        Mode::Single => {
            missing(has_url, missing_url("REDIS_URL", "redis://HOST:6379"));
            Some(Servers::Single { url: url? })
        }
        Mode::Sentinel => {
            missing(has_nodes, missing_nodes("Sentinels", "26379"));
            let help = "set it to the name that follows `sentinel monitor` in the Sentinels' configuration";
            missing(has_master_name, Complaint::new("master_name: missing").with_help(help));
            Some(Servers::Sentinel { nodes: nodes?, master_name: master_name?, url })
        }
        Mode::Cluster => {
            missing(has_url || has_nodes, missing_nodes("nodes", "6379"));
            let nodes: Vec<SecretUrl> = url.into_iter().chain(nodes.into_iter().flatten()).collect();
            (!nodes.is_empty()).then_some(Servers::Cluster { nodes })
        }
    }
}

fn refuse(section: &mut Section<'_>, key: &'static str, why: &str) {
    section.get(key, |_| Err::<(), _>(Complaint::new(why).with_help("leave it out, or set mode")));
}

fn missing_nodes(of: &str, port: &str) -> Complaint {
    let help = format!("set it to the URLs of the {of}: [\"redis://HOST:{port}\"]");
    Complaint::new("nodes: missing").with_help(help)
}

fn node_urls(node: &Node, unheeded: &mut Unheeded) -> Result<Vec<SecretUrl>, Complaint> {
    let Data::List(items) = &node.data else {
        return Err(
            Complaint::new("expected an array of URLs").with_help("write it as [\"redis://HOST:PORT\"]")
        );
    };
    if items.is_empty() {
        return Err(Complaint::new("names no server"));
    }
    items.iter().map(|item| server_url(item, false, unheeded)).collect()
}

fn has_tls(servers: &Servers) -> bool {
    match servers {
        Servers::Single { url } => is_tls(url),
        Servers::Sentinel { nodes, url, .. } => url.iter().chain(nodes).any(is_tls),
        Servers::Cluster { nodes } => nodes.iter().any(is_tls),
    }
}

fn useless_without_tls() -> Complaint {
    Complaint::new("is for TLS, and no URL begins with rediss://")
        .with_help("write rediss:// for redis://, or leave it out")
}
