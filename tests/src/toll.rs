//! A toll on the way to both stores: each message that a process sends is counted, and at a chosen one the process is killed
//! (SIGKILL). So a test can end a host at every single thing it asks of the outside.
//!
//! A message is what is read at once: usually one command, or several that were sent together. What merely opens a connection
//! is not counted, since it changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// More than any message of these tests.
const MESSAGE_MAX: usize = 1 << 18;

/// When a process is killed over a message of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// The store never hears of it.
    Before,
    /// The store has done it, and the process never hears of that.
    After,
}

/// The way to one Redis and one PostgreSQL; closed with the test's runtime.
pub struct Toll {
    /// Where the process finds Redis.
    pub redis_port: u16,
    /// Where the process finds PostgreSQL.
    pub postgres_port: u16,
    process: watch::Sender<Option<u32>>,
    count: Arc<Count>,
}

struct Count {
    kill: Kill,
    deadly: usize,
    messages: AtomicUsize,
    has_killed: AtomicBool,
}

/// What a store's client sends to open a connection.
type Opens = fn(&[u8]) -> bool;

impl Toll {
    /// In front of the servers at these ports. The process dies over its message number `deadly`, from 1.
    pub async fn before(redis_port: u16, postgres_port: u16, kill: Kill, deadly: usize) -> Result<Self> {
        let (process, who) = watch::channel(None);
        let count = Count { kill, deadly, messages: AtomicUsize::new(0), has_killed: AtomicBool::new(false) };
        let count = Arc::new(count);
        let redis_port = way(redis_port, opens_redis, &count, &who).await?;
        let postgres_port = way(postgres_port, opens_postgres, &count, &who).await?;
        Ok(Self { redis_port, postgres_port, process, count })
    }

    /// Whom it kills; nothing is let through before it knows.
    pub fn watch_over(&self, pid: u32) {
        self.process.send_replace(Some(pid));
    }

    /// Messages so far.
    pub fn messages(&self) -> usize {
        self.count.messages.load(Ordering::SeqCst)
    }

    /// Whether it has killed the process.
    pub fn has_killed(&self) -> bool {
        self.count.has_killed.load(Ordering::SeqCst)
    }
}

fn opens_redis(message: &[u8]) -> bool {
    let is_word = |word: &[u8]| message.windows(word.len()).any(|part| part == word);
    is_word(b"\r\nCLIENT\r\n") || is_word(b"\r\nHELLO\r\n")
}

/// Start-up packets begin with their length, and passwords with a `p`.
fn opens_postgres(message: &[u8]) -> bool {
    matches!(message.first(), Some(0 | b'p'))
}

/// Opens a way to a port; returns its own.
async fn way(
    port: u16,
    opens: Opens,
    count: &Arc<Count>,
    process: &watch::Receiver<Option<u32>>,
) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("opening a way to a store")?;
    let own_port = listener.local_addr()?.port();
    let (count, process) = (Arc::clone(count), process.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // A connection that fails is the process's to notice.
            tokio::spawn(relay(client, port, opens, Arc::clone(&count), process.clone()));
        }
    });
    Ok(own_port)
}

async fn relay(
    mut client: TcpStream,
    port: u16,
    opens: Opens,
    count: Arc<Count>,
    mut process: watch::Receiver<Option<u32>>,
) -> Result<()> {
    let pid = process.wait_for(Option::is_some).await?.context("a process")?;
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut asked, mut told) = (vec![0; MESSAGE_MAX], vec![0; MESSAGE_MAX]);
    let mut is_last = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let message = &asked[..read?];
                if message.is_empty() {
                    return Ok(());
                }
                if !opens(message) && count.messages.fetch_add(1, Ordering::SeqCst) + 1 == count.deadly {
                    match count.kill {
                        Kill::Before => return kill(pid, &count),
                        Kill::After => is_last = true,
                    }
                }
                server.write_all(message).await?;
            }
            read = server.read(&mut told) => {
                let answer = &told[..read?];
                if is_last {
                    return kill(pid, &count);
                }
                if answer.is_empty() {
                    return Ok(());
                }
                client.write_all(answer).await?;
            }
        }
    }
}

fn kill(pid: u32, count: &Count) -> Result<()> {
    let pid = libc::pid_t::try_from(pid).context("a process id beyond pid_t")?;
    count.has_killed.store(true, Ordering::SeqCst);
    // SAFETY: kill(2) takes two numbers. The process waits for this very message, so it has not ended, and its id is its own.
    ensure!(unsafe { libc::kill(pid, libc::SIGKILL) } == 0, "the process was not killed");
    Ok(())
}
