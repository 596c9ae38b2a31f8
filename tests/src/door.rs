//! A door before Redis: it leads to whichever server a test points it at, as a name or an address that is moved does, and
//! may spoil what comes out of it.
//!
//! For what a real Redis cannot be brought to say. What it can, tests have it say itself.

use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Longer than any reply in these tests, so that a reply comes in one piece: Redis sends it by one write.
const REPLY_MAX: usize = 1 << 18;

/// What becomes of a reply.
#[derive(Clone)]
pub enum Spoil {
    /// Half of it arrives, and the connection breaks.
    Half,
    /// It arrives changed.
    Changed(Arc<dyn Fn(&str) -> String + Send + Sync>),
}

impl Spoil {
    /// Every occurrence of a text in a reply is another one.
    pub fn replacing(from: &'static str, to: &'static str) -> Self {
        Self::Changed(Arc::new(move |reply| reply.replace(from, to)))
    }

    /// EXEC is answered by this instead, and its transaction was carried out all the same.
    pub fn executing(answer: &'static str) -> Self {
        const QUEUED: &str = "+QUEUED\r\n";
        Self::Changed(Arc::new(move |reply| match reply.rfind(QUEUED) {
            Some(at) => format!("{}{answer}", &reply[..at + QUEUED.len()]),
            None => reply.to_owned(),
        }))
    }
}

/// Where the door leads, and what it does.
#[derive(Clone)]
struct Way {
    port: u16,
    spoil: Option<Spoil>,
}

/// An open door; it closes with the test's runtime.
pub struct Door {
    port: u16,
    way: watch::Sender<Way>,
}

impl Door {
    /// Leads to the server at this port.
    pub async fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own_port = listener.local_addr()?.port();
        let (sender, receiver) = watch::channel(Way { port, spoil: None });
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A connection that fails is the client's to notice.
                tokio::spawn(relay(client, receiver.clone()));
            }
        });
        Ok(Self { port: own_port, way: sender })
    }

    /// For clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads elsewhere from now on; whoever is connected is cut off.
    pub fn lead_to(&self, port: u16) {
        self.way.send_modify(|way| way.port = port);
    }

    /// Spoils every reply from now on; `None`: none any more.
    pub fn spoil(&self, spoil: Option<Spoil>) {
        self.way.send_modify(|way| way.spoil = spoil);
    }
}

async fn relay(mut client: TcpStream, mut way: watch::Receiver<Way>) -> Result<()> {
    let port = way.borrow_and_update().port;
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut asked, mut told) = (vec![0; REPLY_MAX], vec![0; REPLY_MAX]);
    loop {
        tokio::select! {
            changed = way.changed() => {
                changed?;
                if way.borrow_and_update().port != port {
                    return Ok(());
                }
            }
            read = client.read(&mut asked) => match read? {
                0 => return Ok(()),
                length => server.write_all(&asked[..length]).await?,
            },
            read = server.read(&mut told) => {
                let length = read?;
                let spoil = way.borrow().spoil.clone();
                match spoil {
                    _ if length == 0 => return Ok(()),
                    None => client.write_all(&told[..length]).await?,
                    Some(Spoil::Half) => return Ok(client.write_all(&told[..length / 2]).await?),
                    Some(Spoil::Changed(change)) => {
                        client.write_all(change(std::str::from_utf8(&told[..length])?).as_bytes()).await?;
                    }
                }
            }
        }
    }
}
