//! The connection: limits on every wait, and no reply that is read as the answer to another command.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use salvage::ports::{Ask, Queues};
use salvage_core::act::ScriptAnswer;
use salvage_core::payload::Payload;
use salvage_core::sighting::QueueFailure;
use salvage_tests::services::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::redis_world::{QUEUE, World, named, queues, queues_within, requeue, terms};

/// What becomes of one connection's first requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Redis carries it out, the reply is lost.
    ReplyLost,
    /// It is lost on its way.
    RequestLost,
    /// Redis carries it out, and the connection breaks after the first half of the reply.
    ReplyHalved,
    /// It is answered; Redis carries out the second request, and that reply is lost.
    SecondReplyLost,
}

/// Stands between a client and Redis and spoils its first connections, one fate each; later ones are left in peace.
pub(crate) struct Proxy {
    port: u16,
}

impl Proxy {
    pub(crate) async fn before<const N: usize>(url: &str, fates: [Fate; N]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let server = url.rsplit_once("//").context("a URL")?.1.to_owned();
        let fates = Arc::new(Mutex::new(VecDeque::from(fates)));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let fate = fates.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                // A connection that fails is the client's to notice.
                tokio::spawn(relay(client, server.clone(), fate));
            }
        });
        Ok(Self { port })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn relay(mut client: TcpStream, server: String, fate: Option<Fate>) -> Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let Some(fate) = fate else {
        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
        return Ok(());
    };
    let mut bytes = vec![0; 1 << 16];
    if fate == Fate::SecondReplyLost {
        let asked = client.read(&mut bytes).await?;
        server.write_all(&bytes[..asked]).await?;
        let told = server.read(&mut bytes).await?;
        client.write_all(&bytes[..told]).await?;
    }
    let asked = client.read(&mut bytes).await?;
    if fate != Fate::RequestLost {
        server.write_all(&bytes[..asked]).await?;
        let told = server.read(&mut bytes).await?;
        if fate == Fate::ReplyHalved {
            client.write_all(&bytes[..told / 2]).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_that_breaks_half_way_is_no_snapshot() -> Result<()> {
    let world = World::fresh().await?;
    world.arrange(&["SET @:slide-generation:id 1", "RPUSH @:slide-generation:wait w1 w2 w3"]).await?;
    let proxy = Proxy::before(&world.url, [Fate::ReplyHalved]).await?;
    let queues = queues(&proxy.url(), &world.prefix)?;
    let asked = named(&[QUEUE]);
    let failure = queues.snapshot(&Ask::ids(&asked)).await.expect_err("only half of it came");
    assert!(matches!(failure, QueueFailure::Dropped { .. }), "{failure:?}");
    assert_eq!(queues.snapshot(&Ask::ids(&asked)).await?.ids_total(), 3);
    Ok(())
}

#[tokio::test]
async fn an_act_whose_reply_is_lost_may_have_been_done_and_is_not_repeated() -> Result<()> {
    for (fate, is_done) in [(Fate::ReplyLost, true), (Fate::RequestLost, false)] {
        let world = World::fresh().await?;
        // The script is known to the server already, so the first request is the act itself.
        world.arrange(&["SET @:slide-generation:id 1"]).await?;
        assert_eq!(world.act(&requeue("0")).await?, ScriptAnswer::Clear);
        let proxy = Proxy::before(&world.url, [fate]).await?;
        let failure =
            queues(&proxy.url(), &world.prefix)?.act(&requeue("1"), &terms()).await.expect_err("no reply");
        assert!(failure.is_indeterminate(), "{failure:?}");
        let delayed: Option<f64> = world.command("ZSCORE @:slide-generation:delayed slide-1").await?;
        assert_eq!(delayed.is_some(), is_done, "{fate:?}");
    }
    Ok(())
}

/// The payload of a hash with nothing but data.
fn unnamed(data: &str) -> Payload {
    Payload { name: None, ..Payload::named("", data) }
}

#[tokio::test]
async fn a_late_reply_is_never_read_as_the_answer_to_another_question() -> Result<()> {
    let mut server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    world.arrange(&["HSET @:slide-generation:a data A", "HSET @:slide-generation:b data B"]).await?;
    let queues = queues_within(&server.url(), &world.prefix, Duration::from_millis(300))?;
    let payload = async |id: &str| queues.payloads(QUEUE, &[id.to_owned()]).await;
    assert_eq!(payload("a").await?, [unnamed("A")]);
    server.pause()?;
    assert_eq!(payload("a").await, Err(QueueFailure::Timeout { timeout_ms: 300 }));
    server.resume()?;
    // The frozen server answers the first question now, on a connection nobody listens to.
    assert_eq!(payload("b").await?, [unnamed("B")]);
    Ok(())
}

#[tokio::test]
async fn nobody_waits_longer_than_the_timeout_also_side_by_side() -> Result<()> {
    // A listener that never accepts a handshake of Redis: with a password, logging in never ends.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("redis://:secret@{}", listener.local_addr()?);
    let queues = queues_within(&url, "bull", Duration::from_millis(200))?;
    let ids = ["a".to_owned()];
    let asked = || queues.payloads(QUEUE, &ids);
    let calls = futures_util::future::join_all((0..8).map(|_| asked()));
    let answers =
        tokio::time::timeout(Duration::from_secs(2), calls).await.context("eight calls in two seconds")?;
    for answer in answers {
        let failure = answer.expect_err("nobody answers");
        assert!(matches!(failure, QueueFailure::Refused { .. }), "{failure:?}");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
    Ok(())
}

#[tokio::test]
async fn a_database_number_and_a_user_in_the_url_are_used() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&format!("{}/3", server.url())).await?;
    world.arrange(&["HSET @:slide-generation:a data A", "ACL SETUSER me on >secret ~* +@all"]).await?;
    let url = format!("redis://me:secret@127.0.0.1:{}/3", server.port());
    let found = queues(&url, &world.prefix)?.payloads(QUEUE, &["a".to_owned()]).await?;
    assert_eq!(found, [unnamed("A")]);
    let url = format!("redis://127.0.0.1:{}/99", server.port());
    let failure =
        queues(&url, "bull")?.payloads(QUEUE, &["a".to_owned()]).await.expect_err("no such database");
    assert!(matches!(failure, QueueFailure::Error { .. }), "{failure:?}");
    Ok(())
}
