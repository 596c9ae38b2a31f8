//! What is accepted, what wins, and how each kind of fault reads.

use insta::assert_snapshot;
use salvage_core::lease::ScopeKind;
use salvage_core::manifest::{JobType, Source, TableMapping};

use super::*;

mod urls;

const URLS: [(&str, &str); 2] =
    [("DATABASE_URL", "postgres://app:hunter2@db/app"), ("REDIS_URL", "redis://:hunter2@cache/0")];

fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn of(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let both: Vec<_> = URLS.iter().chain(variables).copied().collect();
    parse("salvage.toml", text, environment(&both))
}

fn accepted(text: &str, variables: &[(&str, &str)]) -> Config {
    of(text, variables).unwrap_or_else(|error| panic!("{error}"))
}

/// The faults as plain lines. Whatever is wrong, and however it is shown, the password is not part of it.
fn refused(text: &str, variables: &[(&str, &str)]) -> String {
    let error = of(text, variables).expect_err("a fault");
    let everything =
        format!("{error:?} {error} {} {}", error.render(Drawing::Plain), error.render(Drawing::Coloured));
    assert!(!everything.contains("hunter2"), "{everything}");
    error.to_string()
}

fn drawn(text: &str) -> String {
    of(text, &[]).expect_err("a fault").render(Drawing::Plain)
}

#[test]
fn both_urls_in_the_environment_are_enough() {
    let config = read::config(None, environment(&URLS)).unwrap();
    assert_eq!(config, accepted("", &[]));
    assert_eq!(config.database.url.to_string(), "postgres://app:***@db/app");
    assert_eq!(config.redis.servers, single("redis://:hunter2@cache/0"));
    assert_eq!(config.redis.prefix, "bull");
    assert_eq!(config.redis.timeout, Duration::from_secs(5));
    assert_eq!(config.pass, PassSettings::default());
    assert_eq!(config.lease.key, "lock:job-recovery");
    assert_eq!(config.handlers.dir, Path::new("handlers"));
    assert_eq!(config.handlers.limits, Limits::default());
    assert!(!format!("{config:?}").contains("hunter2"));
}

fn url(text: &str) -> SecretUrl {
    SecretUrl::parse(text, &["redis", "rediss"]).unwrap()
}

fn single(text: &str) -> Servers {
    Servers::Single { url: url(text) }
}

const EXAMPLE: &str = include_str!("../../salvage.example.toml");

#[test]
fn compiled_handlers_are_kept_where_the_users_caches_are() {
    let kept = |text, variables| accepted(text, variables).handlers.cache_dir;
    assert_eq!(kept("", &[]), None);
    let caches: &[_] = &[("HOME", "/home/app"), ("XDG_CACHE_HOME", "/caches")];
    assert_eq!(kept("", caches), Some("/caches/salvage".into()));
    assert_eq!(kept("", &caches[..1]), Some("/home/app/.cache/salvage".into()));
    let unusable: &[_] = &[("HOME", ""), ("XDG_CACHE_HOME", "caches")];
    assert_eq!(kept("", unusable), None, "a relative path is none");
    assert_eq!(kept("[handlers]\ncache_dir = 'own'", caches), Some("own".into()));
}

#[test]
fn the_example_is_the_defaults() {
    assert_eq!(accepted(EXAMPLE, &[]), accepted("", &[]));
}

#[test]
fn the_example_has_every_setting() {
    let uncommented = |line: &str| match line.strip_prefix('#') {
        Some(setting) if !setting.is_empty() && !setting.starts_with(' ') => format!("{setting}\n"),
        _ => format!("{line}\n"),
    };
    let whole: String = EXAMPLE.lines().map(uncommented).collect();
    // The one mode in which every setting of [redis] is of use.
    let sentinel = [("SALVAGE_REDIS__MODE", "sentinel"), ("REDIS_URL", "rediss://:hunter2@main")];
    assert_snapshot!(refused(&whole, &sentinel), @"invalid configuration: salvage.toml:132:10: [admin] listen: a listener is not supported in this version (leave it out)");

    let supported = |line: &&str| !line.starts_with("listen");
    let supported: String = whole.lines().filter(supported).map(|line| format!("{line}\n")).collect();
    let config = accepted(&supported, &sentinel);
    assert!(config.redis.ca.is_some() && config.redis.identity.is_some());
    assert!(config.pass.queue_depth_max.is_some());
    let handler = &config.handlers.named["video-composition"];
    assert_eq!(handler.limits.run_time, Duration::from_millis(250));
    assert_eq!(handler.limits.memory_bytes, 64 << 20);
    assert_eq!(handler.grants.as_ref().unwrap().queues.len(), 3);
    let policy = handler.capture.policy(config.handlers.capture_inputs);
    let redaction = policy.kept().expect("captured");
    assert!(!redaction.is_empty() && !config.handlers.capture_inputs);
}

#[test]
fn the_environment_is_stronger_than_the_file_and_ours_than_the_common() {
    let text =
        "[database]\nurl = 'postgres://file/x'\n[pass]\nstale_after = '2h'\npage_size = 50\nsettle = '1m'\n";
    let config = accepted(
        text,
        &[
            ("REDIS_URL", "redis://common"),
            ("SALVAGE_REDIS__URL", "redis://ours"),
            ("SALVAGE_PASS__STALE_AFTER", "3h"),
            ("SALVAGE_PASS__PAGE_SIZE", "75"),
            ("SALVAGE_PASS__INTERVAL", ""),
            ("SALVAGE_TEST_PASS", "not ours"),
        ],
    );
    assert_eq!(config.database.url.expose(), "postgres://app:hunter2@db/app");
    assert_eq!(config.redis.servers, single("redis://ours"));
    assert_eq!(config.pass.stale_after, Duration::from_secs(3 * 3600));
    assert_eq!(config.pass.page_size, 75);
    assert_eq!(config.pass.settle, Duration::from_secs(60));
    assert_eq!(config.pass.interval, Duration::from_secs(300));
}

#[test]
fn a_handler_is_set_from_the_environment() {
    let config = accepted(
        "[handler.video-composition]\nstale_after = '2h'\n",
        &[
            ("SALVAGE_HANDLERS__LIMITS__MEMORY", "32MiB"),
            ("SALVAGE_HANDLER__VIDEO_COMPOSITION__STALE_AFTER_QUEUED", "10m"),
            ("SALVAGE_HANDLER__VIDEO_COMPOSITION__TYPES__PREVIEW__STALE_AFTER", "5m"),
            ("SALVAGE_HANDLER__VIDEO_COMPOSITION__GRANTS__READ", r#"['"Video"(id, title)', 'x(y)']"#),
        ],
    );
    let minutes = |count: u64| Some(Duration::from_secs(count * 60));
    let handler = &config.handlers.named["video-composition"];
    assert_eq!(handler.thresholds, Thresholds { queued: minutes(10), processing: minutes(120) });
    assert_eq!(handler.types["PREVIEW"], Thresholds { queued: minutes(5), processing: minutes(5) });
    assert_eq!(handler.grants.as_ref().unwrap().read, ["\"Video\"(id, title)", "x(y)"]);
    assert_eq!(config.handlers.limits("video-composition").memory_bytes, 32 << 20);
    assert_eq!(config.handlers.limits("slides").memory_bytes, 32 << 20);
    assert_eq!(config.handlers.grants("slides"), None);
}

fn manifest(types: &[&str]) -> HandlerManifest {
    let job_type = |name: &&str| JobType {
        name: (*name).to_owned(),
        stale_after_queued: Some(Duration::from_secs(1)),
        stale_after_processing: None,
        restart_safe: true,
        on_fail: None,
        on_requeue: None,
    };
    let table = TableMapping {
        table: "jobs".into(),
        id: "id".into(),
        status: "status".into(),
        updated_at: "updated_at".into(),
        job_type: Some("type".into()),
        progress: None,
        error: None,
        extra_columns: Vec::new(),
        queued: "QUEUED".into(),
        processing: "PROCESSING".into(),
        failed: "FAILED".into(),
    };
    let job_types = types.iter().map(job_type).collect();
    let source = Source { name: "jobs".into(), table, job_types, queues: Vec::new(), reads: Vec::new() };
    HandlerManifest { domain: "slides".into(), description: String::new(), sources: vec![source] }
}

/// `expected`: per type, seconds for QUEUED and for PROCESSING.
fn check_thresholds(text: &str, expected: &[(&str, Option<u64>, Option<u64>)]) {
    let config = accepted(text, &[]);
    let manifest = config.handlers.with_thresholds(manifest(&["A", "B"])).unwrap();
    let found: Vec<_> = manifest.sources[0]
        .job_types
        .iter()
        .map(|job_type| {
            let seconds = |threshold: Option<Duration>| threshold.map(|duration| duration.as_secs());
            let JobType { name, stale_after_queued, stale_after_processing, .. } = job_type;
            (name.as_str(), seconds(*stale_after_queued), seconds(*stale_after_processing))
        })
        .collect();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn thresholds_go_job_type_before_handler_before_manifest() {
    check_thresholds("", &[("A", Some(1), None), ("B", Some(1), None)]);
    check_thresholds("[handler.other]\nstale_after = '9s'\n", &[("A", Some(1), None), ("B", Some(1), None)]);
    check_thresholds(
        "[handler.slides]\nstale_after = '9s'\n",
        &[("A", Some(9), Some(9)), ("B", Some(9), Some(9))],
    );
    check_thresholds(
        "[handler.slides]\nstale_after_processing = '9s'\n",
        &[("A", Some(1), Some(9)), ("B", Some(1), Some(9))],
    );
    check_thresholds(
        "[handler.slides]\nstale_after = '9s'\nstale_after_queued = '8s'\n\
         [handler.slides.types.B]\nstale_after = '7s'\nstale_after_processing = '6s'\n",
        &[("A", Some(8), Some(9)), ("B", Some(7), Some(6))],
    );
}

#[test]
fn thresholds_of_an_undeclared_job_type_are_refused() {
    let config = accepted("[handler.slides.types.GENERATOIN]\nstale_after = '9s'\n", &[]);
    let fault = config.handlers.with_thresholds(manifest(&["GENERATION", "OUTLINE"])).unwrap_err();
    assert_snapshot!(fault, @r#"[handler.slides.types] ["GENERATOIN"]: the manifest declares no such job type, only ["GENERATION", "OUTLINE"]"#);
}

#[test]
fn a_named_file_must_be_there_and_the_default_need_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("salvage.toml");
    assert!(matches!(find(Some(&file), Path::new("x")), Err(ConfigError::Missing { .. })));
    assert!(find(None, &file).unwrap().is_none());
    std::fs::write(&file, "[pass]\nsettle = '1s'\n").unwrap();
    let config = load(Some(&file), environment(&URLS)).unwrap();
    assert_eq!(config.pass.settle, Duration::from_secs(1));
    assert!(find(None, &file).unwrap().is_some());
    let unreadable = find(None, folder.path());
    assert!(matches!(unreadable, Err(ConfigError::Unreadable { .. })), "a folder is no file");
    let missing = ConfigError::Missing { path: "etc/salvage.toml".into() };
    assert_snapshot!(missing.render(Drawing::Plain), @r#"
    x no configuration file at etc/salvage.toml
    help: check the path given with --config, or leave it out to use ./salvage.toml or the environment
    "#);
}

#[test]
fn missing_urls_say_both_ways_and_do_not_matter_offline() {
    let error = parse("salvage.toml", "[pass]\n", environment(&[])).unwrap_err();
    assert_snapshot!(error, @r#"
    invalid configuration, 2 faults:
    [database] url: missing (set url = "postgres://USER:PASSWORD@HOST/DATABASE" in that section of salvage.toml, or the environment variable DATABASE_URL)
    [redis] url: missing (set url = "redis://HOST:6379" in that section of salvage.toml, or the environment variable REDIS_URL)
    "#);
    assert_snapshot!(error.render(Drawing::Plain), @r#"
    x [database] url: missing
    help: set url = "postgres://USER:PASSWORD@HOST/DATABASE" in that section of salvage.toml, or the environment
          variable DATABASE_URL
    x [redis] url: missing
    help: set url = "redis://HOST:6379" in that section of salvage.toml, or the environment variable REDIS_URL
    "#);
    let offline = read::offline(None, environment(&[])).unwrap();
    assert_eq!(offline.pass, PassSettings::default());
    let fault = read::offline(Some(("salvage.toml", "[pass]\nsettle = 1\n")), environment(&[])).unwrap_err();
    assert_snapshot!(fault, @r#"invalid configuration: salvage.toml:2:10: [pass] settle: expected a duration, found the integer 1 (write it with its unit (ms, s, m, h), e.g. "5m")"#);
}

#[test]
fn an_unknown_name_is_told_with_the_nearest_one() {
    let text = "[pas]\n[pass]\nstale-after = '1h'\ncolour = 'red'\n[handler.slides.limit]\nmemory = '1MiB'\n";
    assert_snapshot!(refused(text, &[]), @r#"
    invalid configuration, 4 faults:
    salvage.toml:1:2: [pas]: unknown section (did you mean "pass"?)
    salvage.toml:3:1: [pass] stale-after: unknown setting (did you mean "stale_after"?)
    salvage.toml:4:1: [pass] colour: unknown setting (known here: interval, stale_after, page_size, settle, recoveries_max, recoveries_window, start_delay, acts_max, queue_depth_max)
    salvage.toml:5:17: [handler.slides.limit]: unknown section (did you mean "limits"?)
    "#);
    assert_snapshot!(refused("", &[
        ("SALVAGE_PASS__STALE_AFTR", "1h"),
        ("SALVAGE_HANDLER__VIDEO_COMPOSITION__STALE_AFTR", "1h"),
        ("SALVAGE_PASSES__SETTLE", "1h"),
    ]), @r#"
    invalid configuration, 3 faults:
    SALVAGE_HANDLER__VIDEO_COMPOSITION__STALE_AFTR: [handler.video-composition] stale_aftr: unknown setting (did you mean SALVAGE_HANDLER__VIDEO_COMPOSITION__STALE_AFTER?)
    SALVAGE_PASSES__SETTLE: [passes]: unknown section (did you mean "pass"?)
    SALVAGE_PASS__STALE_AFTR: [pass] stale_aftr: unknown setting (did you mean SALVAGE_PASS__STALE_AFTER?)
    "#);
    assert_snapshot!(drawn("[pass]\nstale_aftr = '1h'\n"), @r#"
     x [pass] stale_aftr: unknown setting
      ,-[salvage.toml:2:1]
    1 | [pass]
    2 | stale_aftr = '1h'
      : ^^^^^^^^^^
      `----
     help: did you mean "stale_after"?
    "#);
}

#[test]
fn a_quantity_carries_its_unit_and_is_greater_than_zero() {
    let text = "[pass]\nstale_after = \"300\"\ninterval = 300\nsettle = \"0s\"\nrecoveries_window = \"-1h\"\n\
                start_delay = \"5s\"\n[lease]\nttl = \"900ms\"\n[redis]\ntimeout = \"soon\"\n\
                [handlers.limits]\nmemory = 64\noutput = \"64\"\nlog = \"64 elephants\"\nrun_time = true\n";
    assert_snapshot!(refused(text, &[("SALVAGE_PASS__INTERVAL", "300")]), @r#"
    invalid configuration, 11 faults:
    salvage.toml:2:15: [pass] stale_after: "300" has no unit (write it with its unit (ms, s, m, h), e.g. "5m")
    salvage.toml:4:10: [pass] settle: "0s" must be greater than zero
    salvage.toml:5:21: [pass] recoveries_window: "-1h" must be greater than zero
    salvage.toml:6:15: [pass] start_delay: "5s" is not a range of durations (write it with its unit, e.g. "5s..15s")
    salvage.toml:8:7: [lease] ttl: must be at least 1 s (a busy host could not renew it in time)
    salvage.toml:10:11: [redis] timeout: "soon" is not a duration (write it with its unit (ms, s, m, h), e.g. "5m")
    salvage.toml:12:10: [handlers.limits] memory: expected a size, found the integer 64 (write it with its unit, e.g. "64MiB")
    salvage.toml:13:10: [handlers.limits] output: "64" has no unit (write it with its unit, e.g. "64MiB")
    salvage.toml:14:7: [handlers.limits] log: "64 elephants" is not a size (write it with its unit, e.g. "64MiB")
    salvage.toml:15:12: [handlers.limits] run_time: expected a duration, found a boolean (write it with its unit (ms, s, m, h), e.g. "5m")
    SALVAGE_PASS__INTERVAL: [pass] interval: "300" has no unit (write it with its unit (ms, s, m, h), e.g. "5m")
    "#);
    assert_snapshot!(drawn("[pass]\nstale_after = \"300\"\n"), @r#"
     x [pass] stale_after: "300" has no unit
      ,-[salvage.toml:2:15]
    1 | [pass]
    2 | stale_after = "300"
      :               ^^^^^
      `----
     help: write it with its unit (ms, s, m, h), e.g. "5m"
    "#);
}

#[test]
fn a_start_delay_outlasts_our_transactions() {
    assert_snapshot!(refused("[pass]\nstart_delay = \"1s..15s\"\n", &[]), @"invalid configuration: salvage.toml:2:15: [pass] start_delay: must begin at 5 s or later: a transaction of ours may take that long");
    assert_snapshot!(refused("[pass]\nstart_delay = \"15s..5s\"\n", &[]), @r#"invalid configuration: salvage.toml:2:15: [pass] start_delay: "15s..5s" ends before it begins"#);
    accepted("[pass]\nstart_delay = \"5s..5s\"\n", &[]);
}

#[test]
fn a_lease_outlasts_what_a_pass_certainly_takes() {
    assert_snapshot!(refused("[lease]\nttl = \"10s\"\n", &[]), @"invalid configuration: salvage.toml:2:7: [lease] ttl: too short for a pass to act without a renewal: 30 s ([pass] settle) + 1 s (margin before the lease expires) = 31 s, which must be less than 10 s ([lease] ttl) (make ttl longer, or [pass] settle shorter)");
    assert_snapshot!(refused("[pass]\nsettle = \"2s\"\n[lease]\nkey = \"k\"\n", &[("SALVAGE_LEASE__TTL", "2s")]), @"invalid configuration: SALVAGE_LEASE__TTL: [lease] ttl: too short for a pass to act without a renewal: 2 s ([pass] settle) + 200 ms (margin before the lease expires) = 2200 ms, which must be less than 2 s ([lease] ttl) (make ttl longer, or [pass] settle shorter)");
    assert_snapshot!(refused("[pass]\nsettle = \"595s\"\n", &[]), @"invalid configuration: salvage.toml:2:10: [lease] ttl: too short for a pass to act without a renewal: 595 s ([pass] settle) + 10 s (margin before the lease expires) = 605 s, which must be less than 10 min ([lease] ttl) (make ttl longer, or [pass] settle shorter)");
    for (settle, ttl) in [("1ms", "1s"), ("1ms", "2s"), ("1s", "2s"), ("30s", "34s"), ("589s", "600s")] {
        accepted(&format!("[pass]\nsettle = \"{settle}\"\n[lease]\nttl = \"{ttl}\"\n"), &[]);
    }
}

#[test]
fn a_number_is_whole_and_within_its_limits() {
    let text = "[pass]\npage_size = 0\nacts_max = -1\nrecoveries_max = 2.5\nqueue_depth_max = 0\n";
    assert_snapshot!(refused(text, &[]), @r#"
    invalid configuration, 4 faults:
    salvage.toml:2:13: [pass] page_size: expected an integer from 1 to 10000, found 0
    salvage.toml:3:12: [pass] acts_max: expected an integer from 1 to 1000000, found -1
    salvage.toml:4:18: [pass] recoveries_max: expected an integer, found a fraction
    salvage.toml:5:19: [pass] queue_depth_max: expected an integer from 1 to 1000000000, found 0
    "#);
    assert_snapshot!(refused("[pass]\npage_size = \"200\"\nacts_max = 0x10\n", &[
        ("SALVAGE_PASS__RECOVERIES_MAX", "many"),
    ]), @r#"
    invalid configuration, 3 faults:
    salvage.toml:2:13: [pass] page_size: expected an integer, found the string "200"
    salvage.toml:3:12: [pass] acts_max: expected an integer, found an integer that is not decimal
    SALVAGE_PASS__RECOVERIES_MAX: [pass] recoveries_max: expected an integer from 1 to 1000, found "many"
    "#);
    assert_eq!(accepted("[pass]\npage_size = 1_000\n", &[]).pass.page_size, 1000);
    assert_eq!(accepted("[pass]\nqueue_depth_max = 500\n", &[]).pass.queue_depth_max, Some(500));
    assert_eq!(accepted("", &[]).pass.queue_depth_max, None, "no limit");
}

#[test]
fn a_wrong_type_is_told() {
    let text = "pass = 3\nlog = { format = 'xml' }\n[redis]\nprefix = 7\n[handlers]\ngrants = ''\n\
                [handler.slides.grants]\ntables = 'x'\nqueues = [1]\nread = ['\"SlideDeck\"']\nparents = ['status']\n\
                [handler.Slides]\n[lease]\nkey = ['x']\n";
    assert_snapshot!(refused(text, &[("SALVAGE_HANDLER__SLIDES__GRANTS__TABLES", "SlideJob")]), @r#"
    invalid configuration, 10 faults:
    salvage.toml:1:1: [pass]: expected a section, found the integer 3
    salvage.toml:2:18: [log] format: expected "text" or "json", found "xml"
    salvage.toml:4:10: [redis] prefix: expected a string, found the integer 7
    salvage.toml:6:10: [handlers] grants: must not be empty
    salvage.toml:9:10: [handler.slides.grants] queues: expected a string, found the integer 1
    salvage.toml:10:8: [handler.slides.grants] read: "\"SlideDeck\"" names no column (write it as '"Table"(column, column)')
    salvage.toml:11:11: [handler.slides.grants] parents: "status" names no column (write it as '"Table".column')
    salvage.toml:12:10: [handler.Slides] is not a handler's name: lower-case letters, digits and `-`
    salvage.toml:14:7: [lease] key: expected a string, found an array
    SALVAGE_HANDLER__SLIDES__GRANTS__TABLES: [handler.slides.grants] tables: expected an array of strings, found the string "SlideJob" (write it as ['a', 'b'])
    "#);
    assert_snapshot!(refused("", &[("SALVAGE_HANDLER__SLIDES__GRANTS__TABLES", "['x")]), @"invalid configuration: SALVAGE_HANDLER__SLIDES__GRANTS__TABLES: not a TOML array: unclosed array, expected `]`");
}

#[test]
fn what_a_later_version_will_do_is_refused() {
    let text = "[admin]\nlisten = '127.0.0.1:9464'\n";
    assert_snapshot!(refused(text, &[]), @"invalid configuration: salvage.toml:2:10: [admin] listen: a listener is not supported in this version (leave it out)");
    accepted("[handlers]\ncache_dir = 'cache'\n", &[]);
}

#[test]
fn a_pooler_is_there_or_not() {
    assert!(accepted("[database]\npooler = 'transaction'\n", &[]).database.is_pooled);
    assert!(!accepted("", &[]).database.is_pooled);
    assert_snapshot!(refused("[database]\npooler = 'session'\n", &[]), @r#"invalid configuration: salvage.toml:2:10: [database] pooler: expected "none" or "transaction", found "session""#);
}

#[test]
fn a_lease_covers_all_domains_or_one() {
    assert_eq!(accepted("[lease]\nscope = 'domain'\n", &[]).pass.lease_scope, ScopeKind::Domain);
    assert_snapshot!(refused("[lease]\nscope = 'domains'\n", &[]), @r#"invalid configuration: salvage.toml:2:9: [lease] scope: expected "global" or "domain", found "domains""#);
}

#[test]
fn tls_of_postgresql_is_asked_for_in_its_url() {
    for query in ["", "?sslmode=prefer", "?sslmode=require", "?sslmode=verify-full&sslrootcert=ca.pem"] {
        accepted("", &[("DATABASE_URL", &format!("postgres://u:hunter2@db/x{query}"))]);
    }
    let unchecked = "postgres://u:hunter2@db/x?sslmode=require&sslrootcert=ca.pem";
    assert_snapshot!(refused("", &[("DATABASE_URL", unchecked)]), @"invalid configuration: DATABASE_URL: [database] url: sslrootcert is not looked at unless the server is checked (add sslmode=verify-full, or verify-ca)");
}

#[test]
fn servers_are_named_as_their_mode_wants_it() {
    let nodes = || vec![url("redis://:hunter2@a:26379"), url("rediss://b:26379")];
    let text = "[redis]\nmode = 'sentinel'\nmaster_name = 'main'\nca = 'ca.pem'\ncert = 'c'\nkey = 'k'\n\
                nodes = ['redis://:hunter2@a:26379', 'rediss://b:26379']\n";
    let redis = accepted(text, &[]).redis;
    let master = Some(url("redis://:hunter2@cache/0"));
    let expected = Servers::Sentinel { nodes: nodes(), master_name: "main".into(), url: master };
    assert_eq!((redis.servers, redis.ca), (expected, Some("ca.pem".into())));
    assert_eq!(redis.identity, Some(("c".into(), "k".into())));

    let cluster = |prefix| format!("[redis]\nmode = 'cluster'\nprefix = '{prefix}'\n");
    let list = "['redis://:hunter2@a:26379', 'rediss://b:26379']";
    let redis = accepted(&cluster("{bull}"), &[("SALVAGE_REDIS__NODES", list)]);
    let all = [url("redis://:hunter2@cache/0")].into_iter().chain(nodes()).collect();
    assert_eq!(redis.redis.servers, Servers::Cluster { nodes: all });
}

#[test]
fn servers_that_do_not_fit_their_mode_are_told() {
    assert_snapshot!(refused("[redis]\nmode = 'clutser'\n", &[]), @r#"invalid configuration: salvage.toml:2:8: [redis] mode: expected "single" or "sentinel" or "cluster", found "clutser""#);
    assert_snapshot!(refused("[redis]\nnodes = ['redis://:hunter2@a']\nmaster_name = 'main'\nca = 'ca.pem'\n", &[]), @r#"
    invalid configuration, 3 faults:
    salvage.toml:2:9: [redis] nodes: is for mode "sentinel" or "cluster" (leave it out, or set mode)
    salvage.toml:3:15: [redis] master_name: is for mode "sentinel" (leave it out, or set mode)
    salvage.toml:4:6: [redis] ca: is for TLS, and no URL begins with rediss:// (write rediss:// for redis://, or leave it out)
    "#);
    assert_snapshot!(refused("[redis]\nmode = 'sentinel'\ncert = 'c'\n", &[("REDIS_URL", "rediss://a#insecure")]), @r#"
    invalid configuration, 4 faults:
    salvage.toml:1:2: [redis] cert and key: only one of them is set
    REDIS_URL: [redis] url: a URL of Redis has no part after `#` (to trust an authority of your own, set ca)
    [redis] nodes: missing (set it to the URLs of the Sentinels: ["redis://HOST:26379"])
    [redis] master_name: missing (set it to the name that follows `sentinel monitor` in the Sentinels' configuration)
    "#);
    assert_snapshot!(refused("[redis]\nmode = 'cluster'\nnodes = ['hunter2:6379']\n", &[]), @r#"
    invalid configuration, 2 faults:
    salvage.toml:1:2: [redis] prefix: the default, "bull", has no hash tag, so that the queues would lie on several nodes (set prefix = "{bull}" here and in the application's queues and workers)
    salvage.toml:3:9: [redis] nodes: a URL of another kind than redis:// (write it as "redis://:PASSWORD@HOST:6379/0"; in user and password, percent-encode `@ : / ? # %`)
    "#);
    assert_snapshot!(refused("[redis]\nmode = 'cluster'\nprefix = 'bull'\nnodes = 'redis://:hunter2@a'\n", &[]), @r#"
    invalid configuration, 2 faults:
    salvage.toml:3:10: [redis] prefix: it has no hash tag, so that the queues would lie on several nodes (set prefix = "{bull}" here and in the application's queues and workers)
    salvage.toml:4:9: [redis] nodes: expected an array of URLs (write it as ["redis://HOST:PORT"])
    "#);
    let error = parse(
        "salvage.toml",
        "[redis]\nmode = 'cluster'\nprefix = '{bull}'\nnodes = []\n",
        environment(&URLS[..1]),
    );
    assert_snapshot!(error.unwrap_err(), @"invalid configuration: salvage.toml:4:9: [redis] nodes: names no server");
    let error =
        parse("salvage.toml", "[redis]\nmode = 'cluster'\nprefix = '{bull}'\n", environment(&URLS[..1]));
    assert_snapshot!(error.unwrap_err(), @r#"invalid configuration: [redis] nodes: missing (set it to the URLs of the nodes: ["redis://HOST:6379"])"#);
}

#[test]
fn a_syntax_error_is_told_with_its_place() {
    assert_snapshot!(refused("[pass]\nsettle = \"30s\ninterval = '5m'\n", &[]), @r#"invalid configuration: salvage.toml:2:14: not valid TOML: invalid basic string, expected `"`"#);
    assert_snapshot!(drawn("[pass]\nsettle = 30s\n"), @r#"
     x not valid TOML: string values must be quoted, expected literal string
      ,-[salvage.toml:2:10]
    1 | [pass]
    2 | settle = 30s
      :          ^^^
      `----
    "#);
    assert_snapshot!(refused("[pass]\nsettle = '1s'\nsettle = '2s'\n", &[]), @"invalid configuration: salvage.toml:3:1: not valid TOML: duplicate key");
    assert_snapshot!(refused("[pass", &[]), @"invalid configuration: salvage.toml:1:6: not valid TOML: unclosed table, expected `]`");
}

#[test]
fn a_malformed_url_is_not_quoted() {
    assert_snapshot!(refused("", &[("DATABASE_URL", "postgres://app:hunter2@db:hunter2/app")]), @r#"invalid configuration: DATABASE_URL: [database] url: not a valid URL: invalid port number (write it as "postgres://USER:PASSWORD@HOST:5432/DATABASE"; in user and password, percent-encode `@ : / ? # %`)"#);
    assert_snapshot!(refused("", &[("SALVAGE_REDIS__URL", "postgres://app:hunter2@db")]), @r#"invalid configuration: SALVAGE_REDIS__URL: [redis] url: a URL of another kind than redis:// (write it as "redis://:PASSWORD@HOST:6379/0"; in user and password, percent-encode `@ : / ? # %`)"#);
    assert_snapshot!(file_urls("[database]\nurl = \"postgres://app:hunter2@db:hunter2/app\"\npooler = 3\n"), @r#"
     x [database] url: not a valid URL: invalid port number
      ,-[salvage.toml:2:7]
    1 | [database]
    2 | url = ***************************************
      :       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    3 | pooler = 3
      `----
     help: write it as "postgres://USER:PASSWORD@HOST:5432/DATABASE"; in user and password, percent-encode `@ : / ? # %`
     x [database] pooler: expected a string, found the integer 3
      ,-[salvage.toml:3:10]
    2 | url = ***************************************
    3 | pooler = 3
      :          ^
      `----
     x [redis] url: missing
     help: set url = "redis://HOST:6379" in that section of salvage.toml, or the environment variable REDIS_URL
    "#);
}

/// The faults drawn, with no URL in the environment.
fn file_urls(text: &str) -> String {
    let error = parse("salvage.toml", text, environment(&[])).expect_err("a fault");
    let report = error.render(Drawing::Plain);
    let everything = format!("{error:?} {error} {report} {}", error.render(Drawing::Coloured));
    assert!(!everything.contains("hunter2"), "{everything}");
    report
}

#[test]
fn no_excerpt_shows_a_password() {
    for text in [
        "[database]\nurl = \"postgres://app:hunter2@db/app\nx = 1\n",
        "[database]\nurl = \"postgres://app:p\"hunter2@db/app\"\n",
        "[database]\nurl = postgres://app:hunter2@db/app\n",
        "[database]\nurl postgres://app:hunter2@db/app\n",
        "[database]\nurl = 'hunter2'\nbad = 1\n",
        "[database]\nurl = { password = 'hunter2' }\n",
        "[database]\nurl = ['hunter2']\n",
        "[database]\nurl = [\n'hunter2'\n]\n[x]\n",
        "[database.url]\npassword = 'hunter2'\n[x]\n",
        "[database]\nurl.password = 'hunter2'\n",
        "[database]\nurl = \"\"\"\npostgres://app:\\\n   hunter2\\\n  @db/app\"\"\"\nbad = 1\n",
        "[database]\npassword = 'hunter2'\n",
        "[database]\nuser = 'app:hunter2@db'\n",
        "\"postgres://app:hunter2@db/app\" = 1\n",
        "database = { url = 'postgres://app:hunter2@db/app', poler = 'none' }\n",
        "database = 'postgres://app:hunter2@db/app'\n",
        "# postgres://app:hunter2@db/app\n[databas]\n",
        "[redis]\nprefix = 'bull'\nnodes = ['redis://:hunter2@a', 'hunter2']\n",
        "[redis]\nmode = 'redis://:hunter2@a'\n",
        "[pass]\nsettle = 'redis://:hunter2@a'\n",
        "[handler.slides.grants]\nread = ['redis://:hunter2@a']\n",
    ] {
        file_urls(text);
    }
}
