//! A private `PgBouncer` in transaction mode.

use crate::child::{Ended, Process};
use crate::free_port::{Try, on_free_port};
use crate::unprivileged::User;
use crate::{MARKER_PASSWORD, postgres, tools, wait};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longest time from fork to accepting connections.
const UP_WITHIN: Duration = Duration::from_secs(20);

/// A running `PgBouncer` on a free loopback port; killed on drop, its folder removed.
pub struct PgBouncer {
    // Dropped in this order: first the process, then its folder.
    _process: Process,
    port: u16,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one before the PostgreSQL server on `postgres_port`, for all its databases; each is given so many server
    /// connections, handed out for one transaction at a time.
    pub fn before(postgres_port: u16, connections: u32) -> Result<Self> {
        // It refuses to run as root as well.
        let user = User::for_server("PgBouncer")?;
        let folder = user.temporary_folder("salvage-pgbouncer-")?;
        let users = folder.path().join("users");
        fs::write(&users, format!("\"{}\" \"{MARKER_PASSWORD}\"\n", postgres::USER))
            .context("writing PgBouncer's users")?;
        let (port, process) = on_free_port(|port| {
            let settings = settings(port, postgres_port, connections, &users);
            fs::write(folder.path().join("settings"), settings).context("writing PgBouncer's settings")?;
            Ok(match launch(port, folder.path(), user)? {
                Some(process) => Try::Started((port, process)),
                None => Try::PortTaken,
            })
        })?;
        Ok(Self { _process: process, port, _folder: folder })
    }

    /// The superuser's URL of a database, through the pooler. It holds the password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{}:{MARKER_PASSWORD}@127.0.0.1:{}/{database}", postgres::USER, self.port)
    }
}

/// Clients log in by MD5: SCRAM takes an unoptimised client on a busy machine seconds for each connection.
fn settings(port: u16, postgres_port: u16, connections: u32, users: &Path) -> String {
    format!(
        "[databases]\n* = host=127.0.0.1 port={postgres_port}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = md5\nauth_file = {}\n\
         pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 200\n",
        users.display()
    )
}

/// None: the port was taken.
fn launch(port: u16, folder: &Path, user: User) -> Result<Option<Process>> {
    let log_file = File::create(log(folder)).context("making PgBouncer's log")?;
    let mut command = Command::new(tools::pgbouncer()?);
    command.arg(folder.join("settings")).current_dir(folder).stdin(Stdio::null());
    command.stderr(log_file.try_clone().context("sharing PgBouncer's log")?).stdout(log_file);
    user.run(&mut command);
    let mut process = Process::spawn("pgbouncer", command, Ended::Killed)?;
    let mut is_taken = false;
    let up = wait::until("PgBouncer accepts connections", UP_WITHIN, || {
        if let Some(status) = process.ended()? {
            is_taken = wait::tail(&log(folder)).contains("Address already in use");
            if !is_taken {
                bail!("it ended while starting ({status})");
            }
            return Ok(true);
        }
        Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
    });
    up.with_context(|| format!("PgBouncer did not come up; its log ends:\n{}", wait::tail(&log(folder))))?;
    Ok((!is_taken).then_some(process))
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}
