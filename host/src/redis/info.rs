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

#[cfg(test)]
mod tests {
    use super::*;

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
