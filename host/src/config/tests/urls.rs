//! Parameters of URLs, as drivers and clients of several languages write them.

use insta::assert_snapshot;

use super::*;

/// A database's URL with these parameters, as the settings take it: the rest of the URL, pooled or not, search path, notes.
fn taken(query: &str) -> (String, bool, Option<String>, Vec<String>) {
    let config = accepted("", &[("DATABASE_URL", &format!("postgres://u:hunter2@db/x?{query}"))]);
    let url = config.database.url.expose().strip_prefix("postgres://u:hunter2@db/x").unwrap().to_owned();
    (url, config.database.is_pooled, config.database.search_path, config.notes)
}

fn check_taken(query: &str, expected: &str) {
    assert_eq!(taken(query).0, expected, "{query}");
}

/// The fault of a database's URL with these parameters. `hunter2` stands for every value that is nobody's business.
fn odd(query: &str) -> String {
    refused("", &[("DATABASE_URL", &format!("postgres://u:hunter2@db/x?{query}"))])
}

#[test]
fn what_the_driver_knows_stays_as_it_is() {
    for query in [
        "?sslmode=verify-full&sslrootcert=ca.pem",
        "?application_name=app",
        "?host=%2Frun%2Fpg&port=5433&user=u&password=hunter2&dbname=x",
        "?options=-c%20search_path%3Dapp&options[lock_timeout]=1s",
    ] {
        let url =
            accepted("", &[("DATABASE_URL", &format!("postgres://u:hunter2@db/x{query}"))]).database.url;
        let before = SecretUrl::parse(&format!("postgres://u:hunter2@db/x{query}"), &["postgres"]).unwrap();
        let sorted = |url: &SecretUrl| {
            let mut parameters = url.parameters();
            parameters.sort();
            parameters
        };
        assert_eq!(sorted(&url), sorted(&before));
    }
}

#[test]
fn other_drivers_words_for_tls_are_understood() {
    check_taken("sslmode=no-verify", "?sslmode=require");
    check_taken("SSLMODE=Require", "?sslmode=require");
    check_taken("ssl=true", "?sslmode=verify-full");
    check_taken("ssl=false", "?sslmode=disable");
    check_taken("ssl=true&sslmode=require", "?sslmode=require");
    check_taken("sslmode=require&sslaccept=strict", "?sslmode=verify-full");
    check_taken("sslmode=require&sslaccept=accept_invalid_certs", "?sslmode=require");
    check_taken("sslrootcert=system", "?sslmode=verify-full");
    check_taken("sslmode=verify-full&channel_binding=require", "?sslmode=verify-full");
    check_taken("sslmode=require&channel_binding=prefer", "?sslmode=require");
    assert_snapshot!(odd("sslmode=hunter2"), @"invalid configuration: DATABASE_URL: [database] url: parameter `sslmode` has an unknown value (it can be disable, allow, prefer, require, verify-ca, verify-full)");
    assert_snapshot!(odd("sslmode=require&channel_binding=require"), @r#"invalid configuration: DATABASE_URL: [database] url: parameter `channel_binding` is "require", which the driver does not have (write sslmode=verify-full in its place, which also makes sure of the server)"#);
    assert_snapshot!(odd("sslmode=require&sslrootcert=system"), @"invalid configuration: DATABASE_URL: [database] url: parameter `sslrootcert` names the machine's own authorities (add sslmode=verify-full)");
    assert_snapshot!(odd("sslcert=hunter2"), @"invalid configuration: DATABASE_URL: [database] url: sslcert and sslkey: only one of them is there (they are the certificate of the host itself and its key; whom to trust is sslrootcert)");
    assert_snapshot!(odd("sslpassword=hunter2"), @"invalid configuration: DATABASE_URL: [database] url: parameter `sslpassword` is for a key with a password, which is not supported (store the key without a password (openssl pkey -in KEY -out PLAIN), set sslkey to it, and leave sslpassword out)");
    assert_snapshot!(odd("ssl_min_protocol_version=TLSv1.3"), @"invalid configuration: DATABASE_URL: [database] url: parameter `ssl_min_protocol_version` cannot be kept to: TLS 1.2 and 1.3 are used (leave it out)");
}

#[test]
fn a_schema_is_the_search_path() {
    let path = |query| taken(query).2;
    assert_eq!(path("schema=app"), Some("\"app\"".to_owned()));
    assert_eq!(path("currentSchema=App,public"), Some("\"App\", \"public\"".to_owned()));
    assert_eq!(path("search_path=a%22b"), Some("\"a\"\"b\"".to_owned()));
    assert_eq!(path("application_name=schema"), None);
    assert_snapshot!(odd("schema="), @"invalid configuration: DATABASE_URL: [database] url: parameter `schema` names no schema (write schema=NAME, or leave it out)");
}

#[test]
fn a_url_may_say_that_there_is_a_pooler() {
    let pooled = |query: &str, pooler: &str| {
        let url = format!("postgres://u:hunter2@db/x{query}");
        accepted("", &[("DATABASE_URL", &url), ("SALVAGE_DATABASE__POOLER", pooler)]).database.is_pooled
    };
    assert!(pooled("?pgbouncer=true", ""));
    assert!(pooled("?pgbouncer=true", "transaction"));
    assert!(pooled("?pgbouncer=false", "transaction"));
    assert!(!pooled("?pgbouncer=false", "none") && !pooled("", ""));
    let url = ("DATABASE_URL", "postgres://u:hunter2@db/x?pgbouncer=true");
    assert_snapshot!(refused("[database]\npooler = 'none'\n", &[url]), @r#"invalid configuration: salvage.toml:2:10: [database] pooler is "none", and url says pgbouncer=true (set pooler = "transaction", or leave pgbouncer out of the URL of a direct connection)"#);
    assert_snapshot!(odd("pgbouncer=true&options=-c%20x%3Dhunter2"), @"invalid configuration: DATABASE_URL: [database] url: parameter `options` is refused by poolers such as the one that pgbouncer=true speaks of (leave it out; for the search path, write schema=NAME)");
}

#[test]
fn what_has_no_effect_here_is_told_by_its_name() {
    let (url, _, _, notes) =
        taken("connection_limit=1&pool_timeout=hunter2&target_session_attrs=read-write&tenant=hunter2");
    assert_eq!(url, "");
    assert_eq!(
        notes,
        ["[database] url: parameters of the URL: no effect here: connection_limit, pool_timeout, \
                        target_session_attrs; unknown and ignored: tenant"]
    );
    let notes = taken("statement_cache_size=0").3;
    assert!(notes[1].ends_with("set [database] pooler = \"transaction\""), "{notes:?}");
    assert_eq!(taken("statement_cache_size=0&pgbouncer=true").3.len(), 1);
    assert_eq!(accepted("", &[]).notes, [""; 0]);
}

#[test]
fn what_would_make_another_connection_is_refused_by_its_name() {
    for name in [
        "sslidentity",
        "sslcrl",
        "passfile",
        "service",
        "requirepeer",
        "require_auth",
        "replication",
        "socketFactory",
    ] {
        assert!(odd(&format!("{name}=hunter2")).contains(&format!("parameter `{name}` is ")), "{name}");
    }
    assert_snapshot!(odd("target_session_attrs=standby"), @"invalid configuration: DATABASE_URL: [database] url: parameter `target_session_attrs` asks for a server that takes no writes (name the primary)");
    assert_snapshot!(odd("sslmod=hunter2"), @"invalid configuration: DATABASE_URL: [database] url: parameter `sslmod` is unknown (did you mean `sslmode`?)");
    assert_snapshot!(odd("hunter2%40db"), @"invalid configuration: DATABASE_URL: [database] url: after `?` there is something that is no parameter (in user and password, percent-encode `@ : / ? # %`)");
}

/// What becomes of a URL of Redis.
fn redis_taken(text: &str) -> (String, Vec<String>) {
    let config = accepted("", &[("REDIS_URL", text)]);
    let Servers::Single { url } = config.redis.servers else { panic!("one server") };
    (url.expose().to_owned(), config.notes)
}

#[test]
fn parameters_of_a_url_of_redis_are_honoured_told_or_refused() {
    let plain = |text| redis_taken(text).0;
    assert_eq!(plain("redis://h:1/0"), "redis://h:1/0");
    assert_eq!(plain("redis://h?db=3&protocol=3"), "redis://h/3");
    assert_eq!(plain("redis://h/3?db=3"), "redis://h/3");
    assert_eq!(plain("redis://h?username=u&password=hunter2%40"), "redis://u:hunter2%40@h");
    assert_eq!(plain("rediss://h?ssl_cert_reqs=required&tls=true"), "rediss://h");
    assert_eq!(plain("unix:///run/r.sock?db=2&password=hunter2"), "unix:///run/r.sock?db=2&pass=hunter2");
    assert_eq!(
        redis_taken("redis://h?family=0&maxRetriesPerRequest=hunter2&x=hunter2").1,
        [
            "[redis] url: parameters of the URL: no effect here: family, maxRetriesPerRequest; unknown and ignored: x"
        ]
    );
    let odd = |text| refused("", &[("REDIS_URL", text)]);
    assert_snapshot!(odd("redis://h/1?db=2"), @"invalid configuration: REDIS_URL: [redis] url: parameter `db` is set in another place of the URL, too (leave one of the two out)");
    assert_snapshot!(odd("redis://:hunter2@h?password=hunter2"), @"invalid configuration: REDIS_URL: [redis] url: parameter `password` is set in another place of the URL, too (leave one of the two out)");
    assert_snapshot!(odd("rediss://h?ssl_cert_reqs=none"), @"invalid configuration: REDIS_URL: [redis] url: parameter `ssl_cert_reqs` asks not to check the server, which is always checked (set [redis] ca to the authority that issued the server's certificate)");
    assert_snapshot!(odd("redis://h?tls=true"), @"invalid configuration: REDIS_URL: [redis] url: parameter `tls` and the scheme disagree (write rediss:// for TLS, redis:// without)");
    assert_snapshot!(odd("redis://h?keyPrefix=hunter2"), @"invalid configuration: REDIS_URL: [redis] url: parameter `keyPrefix` is not for BullMQ, whose keys have a prefix of their own (set [redis] prefix)");
    assert_snapshot!(odd("redis://h?db=hunter2"), @"invalid configuration: REDIS_URL: [redis] url: parameter `db` is no number (write the database's number)");
    assert_snapshot!(odd("redis://h?pasword=hunter2"), @"invalid configuration: REDIS_URL: [redis] url: parameter `pasword` is unknown (did you mean `password`?)");
}
