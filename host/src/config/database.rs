//! `[database]`: the URL and what its parameters mean, and the pooler.

use super::Database;
use super::parameters::{Unheeded, refused, switch};
use super::read::{missing_url, url};
use super::section::{Complaint, Section, word};
use super::tree::{Node, Place};
use crate::secret::SecretUrl;

/// What PostgreSQL's own driver library calls the modes of TLS.
const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Parameters that the driver takes as they are.
const OF_DRIVER: [&str; 16] = [
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "sslrootcert",
    "options",
];

/// Parameters that are honoured in other words.
const TRANSLATED: [&str; 8] =
    ["sslmode", "ssl-mode", "ssl", "sslaccept", "schema", "currentschema", "search_path", "pgbouncer"];

/// About prepared statements, as applications set them behind a pooler.
const OF_STATEMENTS: [&str; 10] = [
    "statement_cache_size",
    "statement_cache_capacity",
    "description_cache_capacity",
    "prepared_statements",
    "prepare",
    "preparethreshold",
    "prepare_threshold",
    "preferquerymode",
    "default_query_exec_mode",
    "binary_parameters",
];

/// About the application's pool, its waits and its sessions. The host has its own connections, and sets its limits in each
/// transaction.
const OF_THE_APPLICATION: [&str; 57] = [
    // Its pool.
    "connection_limit",
    "pool_timeout",
    "pool_size",
    "pool_min_conns",
    "pool_max_conns",
    "pool_max_conn_lifetime",
    "pool_max_conn_lifetime_jitter",
    "pool_max_conn_idle_time",
    "pool_health_check_period",
    "pool",
    "max",
    "min",
    "max_connections",
    "min_connections",
    "max_connection_lifetime",
    "max_idle_connection_lifetime",
    "max_lifetime",
    "idle_timeout",
    "single_use_connections",
    "max_pool_size",
    "min_pool_size",
    "pooling",
    // Its waits.
    "connect_timeout",
    "connecttimeout",
    "connection_timeout",
    "logintimeout",
    "socket_timeout",
    "sockettimeout",
    "query_timeout",
    "command_timeout",
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "checkout_timeout",
    "tcp_user_timeout",
    "tcpkeepalive",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "keepalive",
    "load_balance_hosts",
    "loadbalancehosts",
    "acquire_timeout",
    // Its sessions.
    "timezone",
    "datestyle",
    "client_encoding",
    "encoding",
    "fallback_application_name",
    "rewritebatchedinserts",
    "stringtype",
    "uselibpqcompat",
    "sslsni",
    "sslcompression",
    "sslcertmode",
    "krbsrvname",
    "gssdelegation",
];

/// Parameters without which the connection would be another one: name, why not, what instead.
const REFUSED: [(&str, &str, &str); 13] = [
    (
        "sslpassword",
        "is for a key with a password, which is not supported",
        "store the key without a password (openssl pkey -in KEY -out PLAIN), set sslkey to it, and leave sslpassword out",
    ),
    (
        "sslidentity",
        "is for a PKCS #12 file, which is not supported",
        "write certificate and key as PEM files and set sslcert and sslkey to them",
    ),
    ("sslcrl", "is for a revocation list, which is not supported", "leave it out"),
    ("sslcrldir", "is for revocation lists, which are not supported", "leave it out"),
    ("requiressl", "is not supported", "write sslmode=require"),
    ("passfile", "is not supported", "write user and password into the URL"),
    ("service", "is not supported", "write host, database, user and password into the URL"),
    ("servicefile", "is not supported", "write host, database, user and password into the URL"),
    ("requirepeer", "is not supported", "leave it out; sslmode=verify-full checks who the server is"),
    ("require_auth", "is not supported", "leave it out; sslmode=verify-full checks who the server is"),
    ("replication", "is for replication, and the host reads and writes rows", "leave it out"),
    ("sslfactory", "is a class of Java", "write sslmode=verify-full and sslrootcert"),
    ("socketfactory", "is a class of Java", "write the server's address as host"),
];

/// The section; no URL if it is missing or wrong, which has left a fault if it is needed.
pub(super) fn database(
    mut section: Section<'_>,
    is_needed: bool,
    notes: &mut Vec<String>,
) -> Option<Database> {
    let is_missing = is_needed && !section.has("url");
    let has_pooler = section.has("pooler");
    let place = section.place();
    let read = section.get("url", database_url);
    let poolers = [("none", false), ("transaction", true)];
    let mut pooler_at = place;
    let is_pooled = section.get("pooler", |node| {
        pooler_at = node.value.clone();
        word(node, &poolers, &[])
    });
    if is_missing {
        section
            .complain(Place::Nowhere, missing_url("DATABASE_URL", "postgres://USER:PASSWORD@HOST/DATABASE"));
    }
    let says_pooled = read.as_ref().is_some_and(|read| read.is_pooled);
    if says_pooled && has_pooler && is_pooled == Some(false) {
        let complaint = Complaint::new("pooler is \"none\", and url says pgbouncer=true");
        let help = "set pooler = \"transaction\", or leave pgbouncer out of the URL of a direct connection";
        section.complain(pooler_at, complaint.with_help(help));
    }
    section.close();
    let Read { url, is_pooled: _, search_path, unheeded } = read?;
    let is_pooled = is_pooled.unwrap_or(says_pooled);
    notes.extend(unheeded.note("[database] url"));
    if !is_pooled && unheeded.has_any(&OF_STATEMENTS) {
        notes.push(
            "[database] url: it is set up for a pooler, by what it says of prepared statements; if there is one that \
             gives each transaction another connection, set [database] pooler = \"transaction\""
                .to_owned(),
        );
    }
    Some(Database { url, is_pooled, search_path })
}

/// A URL as the driver takes it, and what else it said.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    url: SecretUrl,
    is_pooled: bool,
    search_path: Option<String>,
    unheeded: Unheeded,
}

fn database_url(node: &Node) -> Result<Read, Complaint> {
    let url = url(node, &["postgres", "postgresql"], "postgres://USER:PASSWORD@HOST:5432/DATABASE")?;
    let mut found = Found::default();
    for (name, value) in url.parameters() {
        found.take(&name, &value)?;
    }
    found.settle()?;
    let Found { kept, is_pooled, search_path, unheeded, .. } = found;
    if is_pooled && kept.iter().any(|(name, _)| name.starts_with("options")) {
        let instead = "leave it out; for the search path, write schema=NAME";
        return Err(refused(
            "options",
            "is refused by poolers such as the one that pgbouncer=true speaks of",
            instead,
        ));
    }
    Ok(Read { url: url.with_parameters(&kept), is_pooled, search_path, unheeded })
}

/// What the parameters said so far. Of one that is repeated the last counts, as with most drivers.
#[derive(Default)]
struct Found {
    kept: Vec<(String, String)>,
    /// A mode of TLS, if one is named.
    mode: Option<&'static str>,
    /// `ssl`: what drivers without a mode have.
    is_encrypted: Option<&'static str>,
    is_strict: bool,
    binds_channel: bool,
    is_pooled: bool,
    search_path: Option<String>,
    unheeded: Unheeded,
}

impl Found {
    fn take(&mut self, name: &str, value: &str) -> Result<(), Complaint> {
        let lower = name.to_ascii_lowercase();
        if let Some((_, why, instead)) = REFUSED.iter().find(|(refused, ..)| *refused == lower) {
            return Err(refused(name, why, instead));
        }
        match lower.as_str() {
            "sslmode" | "ssl-mode" => self.mode = Some(ssl_mode(name, value)?),
            "ssl" if value.eq_ignore_ascii_case("no-verify") => self.is_encrypted = Some("require"),
            "ssl" => match switch(value) {
                // As the drivers that have it do: encrypted, and the server checked.
                Some(true) => self.is_encrypted = Some("verify-full"),
                Some(false) => self.is_encrypted = Some("disable"),
                None => return Err(refused(name, "is neither true nor false", "write sslmode=verify-full")),
            },
            "sslaccept" => match value {
                "strict" => self.is_strict = true,
                "accept_invalid_certs" => self.is_strict = false,
                _ => {
                    return Err(refused(
                        name,
                        "has an unknown value",
                        "write sslmode=verify-full, or require",
                    ));
                }
            },
            "schema" | "currentschema" | "search_path" => self.search_path = Some(search_path(name, value)?),
            "pgbouncer" => {
                let is_pooled = switch(value);
                self.is_pooled = is_pooled.ok_or_else(|| {
                    refused(name, "is neither true nor false", "leave it out, and set [database] pooler")
                })?;
            }
            "channel_binding" => self.binds_channel = value.eq_ignore_ascii_case("require"),
            "gssencmode" if value != "require" => self.unheeded.known(name),
            "gssencmode" => {
                return Err(refused(
                    name,
                    "asks for GSSAPI, which is not supported",
                    "write sslmode=verify-full",
                ));
            }
            "sslnegotiation" if value == "postgres" => self.unheeded.known(name),
            "sslnegotiation" => return Err(refused(name, "is not supported", "leave it out")),
            "ssl_min_protocol_version"
            | "ssl_max_protocol_version"
            | "min_protocol_version"
            | "max_protocol_version" => {
                self.protocol(name, value)?;
            }
            "target_session_attrs" | "targetservertype" => match value {
                "any" | "read-write" | "primary" => self.unheeded.known(name),
                _ => return Err(refused(name, "asks for a server that takes no writes", "name the primary")),
            },
            known if OF_DRIVER.contains(&known) || known.starts_with("options[") => {
                self.kept.push((lower, value.to_owned()));
            }
            known if OF_STATEMENTS.contains(&known) || OF_THE_APPLICATION.contains(&known) => {
                self.unheeded.known(name);
            }
            _ => self.unheeded.unknown(name, &[&OF_DRIVER[..], &TRANSLATED[..]].concat())?,
        }
        Ok(())
    }

    /// The driver's TLS has versions 1.2 and 1.3, and the server chooses; there is no way to narrow that.
    fn protocol(&mut self, name: &str, value: &str) -> Result<(), Complaint> {
        let is_bound = match value.to_ascii_lowercase().as_str() {
            "" | "tlsv1" | "tlsv1.1" | "tlsv1.2" => {
                name.contains("max") && value.to_ascii_lowercase().starts_with('t')
            }
            "tlsv1.3" => name.contains("min"),
            // Of PostgreSQL's own protocol, not of TLS.
            _ => name.starts_with("ssl"),
        };
        if is_bound {
            return Err(refused(name, "cannot be kept to: TLS 1.2 and 1.3 are used", "leave it out"));
        }
        self.unheeded.known(name);
        Ok(())
    }

    /// What several parameters say together.
    fn settle(&mut self) -> Result<(), Complaint> {
        let has = |names: &[&str], kept: &[(String, String)]| {
            kept.iter().any(|(name, _)| names.contains(&name.as_str()))
        };
        let mut mode = self.mode.or(self.is_encrypted);
        if self.is_strict && matches!(mode, None | Some("prefer" | "require")) {
            mode = Some("verify-full");
        }
        let roots = ["sslrootcert", "ssl-root-cert", "ssl-ca"];
        if self.kept.iter().any(|(name, value)| roots.contains(&name.as_str()) && value == "system") {
            if !matches!(mode, None | Some("verify-full")) {
                return Err(refused(
                    "sslrootcert",
                    "names the machine's own authorities",
                    "add sslmode=verify-full",
                ));
            }
            mode = Some("verify-full");
            self.kept.retain(|(name, value)| !(roots.contains(&name.as_str()) && value == "system"));
        }
        if has(&roots, &self.kept) && !matches!(mode, Some("verify-ca" | "verify-full")) {
            // The driver would encrypt and check nobody, where libpq checks.
            let complaint = Complaint::new("sslrootcert is not looked at unless the server is checked");
            return Err(complaint.with_help("add sslmode=verify-full, or verify-ca"));
        }
        if has(&["sslcert", "ssl-cert"], &self.kept) != has(&["sslkey", "ssl-key"], &self.kept) {
            let complaint = Complaint::new("sslcert and sslkey: only one of them is there");
            let help =
                "they are the certificate of the host itself and its key; whom to trust is sslrootcert";
            return Err(complaint.with_help(help));
        }
        if self.binds_channel && mode != Some("verify-full") {
            return Err(refused(
                "channel_binding",
                "is \"require\", which the driver does not have",
                "write sslmode=verify-full in its place, which also makes sure of the server",
            ));
        }
        if let Some(mode) = mode {
            self.kept.push(("sslmode".to_owned(), mode.to_owned()));
        }
        Ok(())
    }
}

fn ssl_mode(name: &str, value: &str) -> Result<&'static str, Complaint> {
    let lower = value.to_ascii_lowercase();
    // What other drivers call encryption without a look at who the server is.
    if lower == "no-verify" {
        return Ok("require");
    }
    SSL_MODES
        .into_iter()
        .find(|mode| *mode == lower)
        .ok_or_else(|| refused(name, "has an unknown value", &format!("it can be {}", SSL_MODES.join(", "))))
}

/// The schemas in which an unqualified table is looked for, as SQL has them.
fn search_path(name: &str, value: &str) -> Result<String, Complaint> {
    let schemas: Vec<&str> = value.split(',').map(str::trim).collect();
    if schemas.iter().any(|schema| schema.is_empty() || schema.contains('\0')) {
        return Err(refused(name, "names no schema", "write schema=NAME, or leave it out"));
    }
    let quoted =
        schemas.iter().map(|schema| format!("\"{}\"", schema.trim_matches('"').replace('"', "\"\"")));
    Ok(quoted.collect::<Vec<_>>().join(", "))
}
