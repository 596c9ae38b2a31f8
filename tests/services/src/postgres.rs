//! A private PostgreSQL server, and `psql` to talk to it.

use crate::child::{Ended, Process, signal};
use crate::free_port::{Try, on_free_port};
use crate::unprivileged::User;
use crate::{Certificates, MARKER_PASSWORD, tools, wait};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Name of the superuser. Its password is [`MARKER_PASSWORD`].
pub const USER: &str = "salvage";

/// Longest time from fork to accepting connections; after a kill it replays its log first.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// Settings of every server: nothing here must survive a power cut, and many tests connect at once.
const SETTINGS: [&str; 8] = [
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=300",
    "listen_addresses=127.0.0.1",
    "shared_buffers=64MB",
    "timezone=UTC",
    "log_timezone=UTC",
];

/// A running PostgreSQL on a free loopback port; shut down at once on drop, its folder removed.
pub struct Postgres {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    settings: Vec<String>,
    user: User,
    folder: TempDir,
}

impl Postgres {
    /// Starts a server with a fresh cluster and returns once it accepts connections.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with more settings, each `name=value`.
    pub fn start_with(settings: &[&str]) -> Result<Self> {
        Self::prepare(settings, |_, _| Ok(()))
    }

    /// Starts a server that offers TLS.
    pub fn start_with_tls(certificates: &Certificates) -> Result<Self> {
        let settings = ["ssl=on", "ssl_cert_file=server.cert", "ssl_key_file=server.key"];
        Self::prepare(&settings, |data, user| {
            // It takes a key only if nobody else can read it.
            user.give_private_copy(&certificates.cert(), &data.join("server.cert"))?;
            user.give_private_copy(&certificates.key(), &data.join("server.key"))
        })
    }

    /// `prepare` is given the data folder before the server starts.
    fn prepare(settings: &[&str], prepare: impl Fn(&Path, User) -> Result<()>) -> Result<Self> {
        let user = User::for_server("PostgreSQL")?;
        let folder = user.temporary_folder("salvage-postgres-")?;
        make_cluster(folder.path(), user)?;
        prepare(&data(folder.path()), user)?;
        let settings: Vec<String> =
            SETTINGS.iter().chain(settings).map(|&setting| setting.to_owned()).collect();
        let (port, process) = on_free_port(|port| {
            Ok(match launch(port, folder.path(), user, &settings)? {
                Some(process) => Try::Started((port, process)),
                None => Try::PortTaken,
            })
        })?;
        Ok(Self { process, port, settings, user, folder })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The superuser's URL of a database. It holds the password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{MARKER_PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// The last lines the server logged.
    pub fn log_tail(&self) -> String {
        wait::tail(&log(self.folder.path()))
    }

    /// Fast shutdown and start again on the same port; connections break, data stays.
    pub fn restart(&mut self) -> Result<()> {
        self.end(Ended::Interrupted)?;
        self.start_again()
    }

    /// Ends the server in the given way. Data stays; what was committed comes back (unless the machine itself fails).
    pub fn end(&mut self, how: Ended) -> Result<()> {
        if how == Ended::Killed {
            // The postmaster's children would notice its death only between two statements.
            for child in self.children() {
                // It may have ended between the listing and this line.
                drop(signal(child, libc::SIGKILL));
            }
        }
        self.process.end(how)
    }

    /// Starts the ended server again on the same port.
    pub fn start_again(&mut self) -> Result<()> {
        self.process =
            launch(self.port, self.folder.path(), self.user, &self.settings)?.with_context(|| {
                format!("port {} of the stopped PostgreSQL was taken by another process", self.port)
            })?;
        Ok(())
    }

    /// Freezes the whole server (SIGSTOP), children included: connections stay open, nothing is answered.
    pub fn pause(&mut self) -> Result<()> {
        // The postmaster first, so that no child appears behind our back.
        self.process.signal(libc::SIGSTOP)?;
        for child in self.children() {
            drop(signal(child, libc::SIGSTOP));
        }
        Ok(())
    }

    /// Wakes the frozen server.
    pub fn resume(&mut self) -> Result<()> {
        for child in self.children() {
            drop(signal(child, libc::SIGCONT));
        }
        self.process.signal(libc::SIGCONT)
    }

    /// Process ids of the postmaster's children, one per connection and a few of its own. Linux only; elsewhere empty.
    fn children(&self) -> Vec<u32> {
        let is_child = |pid: &u32| parent_of(*pid) == Some(self.process.pid());
        fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(is_child)
            .collect()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A frozen server would not hear that it shall end. One that is gone already is fine.
        drop(self.resume());
    }
}

/// Runs psql on one database, stopping at the first error, and returns what it printed (unaligned, no header).
///
/// Errors: psql's own message; the URL, which holds a password, is not in it.
pub fn psql(url: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(tools::postgres_bin()?.join("psql"))
        .args([
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set",
            "ON_ERROR_STOP=1",
            "--dbname",
            url,
        ])
        .args(args)
        .env("PGOPTIONS", "-c client_min_messages=warning")
        .stdin(Stdio::null())
        .output()
        .context("starting psql")?;
    if !output.status.success() {
        bail!("psql failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// The same server's URL of another database.
pub fn url_of_database(url: &str, database: &str) -> String {
    let server = url.rsplit_once('/').map_or(url, |(server, _)| server);
    format!("{server}/{database}")
}

/// Makes a cluster whose superuser has a password that is really asked for, over TCP and over the socket.
fn make_cluster(folder: &Path, user: User) -> Result<()> {
    let password_file = folder.join("password");
    fs::write(&password_file, MARKER_PASSWORD).context("writing the superuser's password for initdb")?;
    let mut initdb = Command::new(tools::postgres_bin()?.join("initdb"));
    initdb
        .args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"])
        .args(["--username", USER, "--pwfile"])
        .arg(&password_file)
        .arg(data(folder))
        .current_dir(folder);
    user.run(&mut initdb);
    let output = initdb.output().context("starting initdb")?;
    fs::remove_file(&password_file).context("removing the password file")?;
    if !output.status.success() {
        bail!(
            "initdb failed in {}: {}",
            folder.display(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(())
}

/// Starts a server on this very port and waits until it accepts connections. None: the port was taken.
fn launch(port: u16, folder: &Path, user: User, settings: &[String]) -> Result<Option<Process>> {
    let log_file = File::create(log(folder)).context("making PostgreSQL's log")?;
    let mut command = Command::new(tools::postgres_bin()?.join("postgres"));
    command.arg("-D").arg(data(folder)).args(["-p", &port.to_string(), "-k"]).arg(folder).current_dir(folder);
    for setting in settings {
        command.args(["-c", setting]);
    }
    command
        .stdin(Stdio::null())
        .stderr(log_file.try_clone().context("sharing PostgreSQL's log")?)
        .stdout(log_file);
    user.run(&mut command);
    let mut process = Process::spawn("postgres", command, Ended::Quit)?;
    wait_until_up(port, folder, &mut process).map(|up| up.then_some(process)).with_context(|| {
        format!("PostgreSQL on port {port} did not come up; its log ends:\n{}", wait::tail(&log(folder)))
    })
}

/// False: it ended because the port was taken.
fn wait_until_up(port: u16, folder: &Path, process: &mut Process) -> Result<bool> {
    let mut port_taken = false;
    wait::until("PostgreSQL accepts connections", UP_WITHIN, || {
        if let Some(status) = process.ended()? {
            port_taken = wait::tail(&log(folder)).contains("Address already in use");
            if !port_taken {
                bail!("it ended while starting ({status})");
            }
            return Ok(true);
        }
        accepts(port, folder)
    })?;
    Ok(!port_taken)
}

/// Asked over the socket in our own folder, where no stranger can answer. The server opens it after the TCP port.
fn accepts(port: u16, folder: &Path) -> Result<bool> {
    let status = Command::new(tools::postgres_bin()?.join("pg_isready"))
        .args(["--quiet", "--port", &port.to_string(), "--host"])
        .arg(folder)
        .status()
        .context("starting pg_isready")?;
    Ok(status.success())
}

/// The parent of a process, from `/proc`. None if it is gone.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // `pid (name) state parent …`; the name may hold anything, so the fields are counted from its last bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}
