//! What the node says of itself: the reply to INFO.
//!
//! Not every server tells as much as Redis. What nothing depends on may be missing; of what a proof rests on, either another
//! line stands in, or the reason says what this server does not tell.

use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Server, UNTOLD};

/// Takes INFO's default sections apart.
///
/// # Errors
/// If it does not tell what the guards need: without it, nothing is proven.
pub(super) fn parse(info: &str) -> Result<Server, QueueFailure> {
    let line = |name: &str| {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value.trim())
    };
    let text = |name: &str| line(name).unwrap_or_default().to_owned();
    let number = |name: &str| {
        let odd =
            |_| QueueFailure::UnexpectedReply { command: "INFO", found: format!("no number in {name:?}") };
        line(name).map(|number| number.parse::<u64>().map_err(odd)).transpose()
    };
    let untold = |what: &'static str, why: &'static str| QueueFailure::Untold { what, why };
    let maxmemory_policy = line("maxmemory_policy").unwrap_or(UNTOLD).to_owned();
    let mut server = Server {
        role: text("role"),
        // While it loads, it answers nothing else.
        loading: number("loading")?.unwrap_or(0) != 0,
        run_id: text("run_id"),
        replid: text("master_replid"),
        evicted_keys: 0,
        maxmemory_policy,
    };
    if server.role.is_empty() {
        return Err(untold(
            "role",
            "it may be a replica that lags behind, and a job that it does not have yet is not lost",
        ));
    }
    if server.run_id.is_empty() {
        // Another one after a failover, too.
        server.run_id.clone_from(&server.replid);
    }
    match number("evicted_keys")? {
        Some(keys) => server.evicted_keys = keys,
        None if server.may_evict_jobs() => {
            return Err(untold(
                "evicted_keys, nor a maxmemory_policy under which no job is evicted",
                "a job that is not there may have been evicted, and nothing would show it",
            ));
        }
        None => {}
    }
    Ok(server)
}

/// Bytes that Redis may still use, by the section `memory`: up to its own limit or, if it has none, the machine's memory.
/// `None` if it does not say.
pub(super) fn memory_free(info: &str) -> Option<u64> {
    let number = |name: &str| {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(found, _)| *found == name)?.1.trim().parse::<u64>().ok()
    };
    let used = number("used_memory")?;
    let limit = match number("maxmemory")? {
        0 => number("total_system_memory")?,
        limit => limit,
    };
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_counts_from_redis_own_limit_or_the_machines() {
        let info = |maxmemory| {
            format!("# Memory\r\nused_memory:300\r\ntotal_system_memory:9000\r\nmaxmemory:{maxmemory}\r\n")
        };
        assert_eq!(memory_free(&info(1000)), Some(700));
        assert_eq!(memory_free(&info(0)), Some(8700));
        assert_eq!(memory_free(&info(200)), Some(0));
        assert_eq!(memory_free("# Memory\r\n"), None);
    }

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n\r\n# Memory\r\n\
        maxmemory_policy:noeviction\r\n# Persistence\r\nloading:0\r\nasync_loading:0\r\n# Stats\r\n\
        evicted_keys:12\r\n# Replication\r\nrole:master\r\nmaster_replid:def\r\n";

    #[test]
    fn the_lines_of_all_sections_are_found() {
        let expected = Server {
            role: "master".into(),
            loading: false,
            run_id: "abc".into(),
            replid: "def".into(),
            evicted_keys: 12,
            maxmemory_policy: "noeviction".into(),
        };
        assert_eq!(parse(INFO), Ok(expected));
    }

    #[test]
    fn a_missing_or_odd_line_is_a_failure_that_names_it() {
        let without =
            |lines: &[&str]| lines.iter().fold(INFO.to_owned(), |info, line| info.replace(line, ""));
        let lru = INFO.replace("noeviction", "allkeys-lru").replace("evicted_keys:12", "");
        for (name, info) in [
            ("role", without(&["role:master"])),
            ("evicted_keys", without(&["maxmemory_policy:noeviction", "evicted_keys:12"])),
            ("evicted_keys", lru),
            ("role", String::new()),
        ] {
            let failure = parse(&info).expect_err("a line is missing").to_string();
            assert!(failure.contains(&format!("INFO of this server does not tell {name}")), "{failure}");
        }
        for odd in ["evicted_keys:12", "loading:0"] {
            let (name, _) = odd.split_once(':').expect("a line");
            let failure = parse(&INFO.replace(odd, &format!("{name}:many"))).expect_err("no number");
            assert!(failure.to_string().contains(name), "{failure}");
        }
    }

    /// As of services that offer what speaks Redis's protocol.
    #[test]
    fn what_no_proof_rests_on_may_be_missing() {
        let server = parse("role:master\r\nevicted_keys:3\r\n").expect("enough");
        assert_eq!((server.run_id.as_str(), server.replid.as_str(), server.loading), ("", "", false));
        assert_eq!(
            (server.evicted_keys, server.may_evict_jobs()),
            (3, true),
            "as long as nobody says otherwise"
        );
        let server =
            parse("role:master\r\nmaxmemory_policy:noeviction\r\nmaster_replid:def\r\n").expect("enough");
        assert_eq!((server.run_id.as_str(), server.evicted_keys), ("def", 0));
    }
}
