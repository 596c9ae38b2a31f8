//! What the node says of itself: the reply to INFO.

use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::Server;

/// Takes INFO's default sections apart.
///
/// # Errors
/// If a line that the guards need is missing: without it, nothing is proven.
pub(super) fn parse(info: &str) -> Result<Server, QueueFailure> {
    let line = |name: &str| {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value.trim())
    };
    let text = |name: &str| {
        let found = || QueueFailure::UnexpectedReply { command: "INFO", found: format!("no line {name:?}") };
        line(name).map(str::to_owned).ok_or_else(found)
    };
    let number = |name: &str| {
        let odd =
            |_| QueueFailure::UnexpectedReply { command: "INFO", found: format!("no number in {name:?}") };
        text(name)?.parse::<u64>().map_err(odd)
    };
    Ok(Server {
        role: text("role")?,
        loading: number("loading")? != 0,
        run_id: text("run_id")?,
        replid: text("master_replid")?,
        evicted_keys: number("evicted_keys")?,
        maxmemory_policy: text("maxmemory_policy")?,
    })
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
        for (name, line) in
            [("role", "role:master"), ("loading", "loading:0"), ("evicted_keys", "evicted_keys:12")]
        {
            let failure = parse(&INFO.replace(line, "")).expect_err("a line is missing").to_string();
            assert!(failure.contains(name), "{failure}");
        }
        assert!(parse(&INFO.replace("evicted_keys:12", "evicted_keys:many")).is_err());
        assert!(parse("").is_err());
    }
}
