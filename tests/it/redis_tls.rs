//! TLS to both stores: whom we trust, and what is said of those whom we do not.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use salvage::ports::{Ask, Jobs, Queues, StoreFailure};
use salvage::postgres::{Pooler, Postgres};
use salvage::redis::{InvalidSettings, RedisQueues, RedisSettings, TlsFiles};
use salvage_core::sighting::QueueFailure;
use salvage_tests::example::{Deck, Jobs as _, SlideJob};
use salvage_tests::services::{self, Certificates, MARKER_PASSWORD, Redis, RedisOptions};
use salvage_tests::system::{System, story};

use crate::redis_world::TIMEOUT;

fn trusting(url: &str, ca: Option<&Path>, identity: Option<&Certificates>) -> RedisSettings {
    let tls = TlsFiles {
        ca: ca.map(Path::to_owned),
        identity: identity.map(|certificates| (certificates.cert(), certificates.key())),
    };
    RedisSettings { tls, ..RedisSettings::single(url, "bull", TIMEOUT) }
}

/// Asks once; whether it was answered.
async fn asked(settings: &RedisSettings) -> Result<(), QueueFailure> {
    let queues = RedisQueues::new(settings).expect("sound settings");
    queues.snapshot(&Ask::guards(&BTreeSet::new())).await.map(drop)
}

#[tokio::test]
async fn a_whole_pass_runs_over_tls_with_a_password_and_certificates_on_both_sides() -> Result<()> {
    let certificates = Certificates::make()?;
    let server = Redis::start_with(RedisOptions::default().tls(&certificates).password(MARKER_PASSWORD))?;
    let url = server.tls_url().replace("rediss://", &format!("rediss://:{MARKER_PASSWORD}@"));
    let (ca, cert, key) = (certificates.ca(), certificates.cert(), certificates.key());
    let lines = format!("url = \"{url}\"\nca = {ca:?}\ncert = {cert:?}\nkey = {key:?}");
    let system = System::through(&lines, &services::fresh_prefix(), &server.url()).await?;
    system.used_queues(&["slide-generation", "slide-export"]).await?;
    system.known_since_yesterday().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_not_asked_anything() -> Result<()> {
    let certificates = Certificates::make()?;
    let server = Redis::start_with(RedisOptions::default().tls(&certificates))?;
    let stranger = certificates.stranger();
    // Without a file the machine's own authorities count, and none of them knows ours.
    for ca in [Some(stranger.as_path()), None] {
        let settings = trusting(&server.tls_url(), ca, Some(&certificates));
        let failure = asked(&settings).await.expect_err("nobody vouches for it");
        assert!(matches!(failure, QueueFailure::Tls { .. }), "{failure:?}");
        assert!(failure.to_string().contains("set [redis] ca"), "{failure}");
        assert!(!failure.is_indeterminate());
    }
    let named = server.tls_url().replace("127.0.0.1", "localhost");
    for url in [server.tls_url(), named] {
        asked(&trusting(&url, Some(&certificates.ca()), Some(&certificates))).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_is_told_apart_from_a_dead_one() -> Result<()> {
    let certificates = Certificates::make()?;
    let server = Redis::start_with(RedisOptions::default().tls(&certificates))?;
    let without = trusting(&server.tls_url(), Some(&certificates.ca()), None);
    let failure = asked(&without).await.expect_err("it wants to know who we are");
    assert!(matches!(failure, QueueFailure::Tls { .. }), "{failure:?}");
    assert!(failure.to_string().contains("set [redis] cert and key"), "{failure}");

    server.command(&["CONFIG", "SET", "tls-auth-clients", "no"])?;
    asked(&without).await?;
    Ok(())
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() -> Result<()> {
    let certificates = Certificates::make()?;
    let refused = |files| {
        let settings = RedisSettings { tls: files, ..RedisSettings::single("rediss://h", "bull", TIMEOUT) };
        RedisQueues::new(&settings).expect_err("a file that is of no use")
    };
    let gone = TlsFiles { ca: Some("no-such-file.pem".into()), identity: None };
    let error = refused(gone);
    assert!(matches!(error, InvalidSettings::Unreadable { setting: "ca", .. }), "{error:?}");
    let key_for_ca = TlsFiles { ca: Some(certificates.key()), identity: None };
    let error = refused(key_for_ca);
    assert!(matches!(error, InvalidSettings::NotPem { setting: "ca", .. }), "{error:?}");
    let swapped = TlsFiles { ca: None, identity: Some((certificates.cert(), certificates.ca())) };
    let error = refused(swapped);
    assert!(matches!(error, InvalidSettings::NotPem { setting: "key", .. }), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn postgresql_is_trusted_by_the_authority_in_its_url() -> Result<()> {
    let certificates = Certificates::make()?;
    let server = services::Postgres::start_with_tls(&certificates)?;
    let with = |query: &str| {
        let url = format!("{}?{query}", server.url("postgres"));
        Postgres::new(&url, Pooler::None, "bull").expect("a sound URL")
    };
    let vouched = |ca: &Path| format!("sslmode=verify-full&sslrootcert={}", ca.display());
    for query in ["sslmode=require".to_owned(), vouched(&certificates.ca())] {
        let postgres = with(&query);
        postgres.now().await?;
        let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                         WHERE application_name = 'salvage' AND ssl";
        let count = services::psql(&server.url("postgres"), &["--command", encrypted])?;
        assert_ne!(count, "0", "{query}");
    }
    for query in ["sslmode=verify-full".to_owned(), vouched(&certificates.stranger())] {
        let failure = with(&query).now().await.expect_err("nobody vouches for it");
        assert!(matches!(&failure, StoreFailure::Unreachable(_)), "{failure:?}");
        assert!(failure.to_string().contains("sslrootcert=FILE"), "{failure}");
        assert!(!failure.to_string().contains(MARKER_PASSWORD), "{failure}");
    }
    Ok(())
}

#[tokio::test]
async fn postgresql_without_tls_is_not_talked_to_where_tls_is_required() -> Result<()> {
    let url = format!("{}?sslmode=require", services::postgres_url()?);
    let failure = Postgres::new(&url, Pooler::None, "bull")?.now().await.expect_err("it has no TLS");
    assert!(failure.to_string().contains("does not support TLS"), "{failure}");
    Ok(())
}
