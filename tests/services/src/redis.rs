//! A private redis-server.

use crate::child::{Ended, Process};
use crate::free_port::{Try, on_free_port};
use crate::reply::ask;
use crate::wait::until;
use crate::{Certificates, tools, wait};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Longest time from fork to the first PONG.
const UP_WITHIN: Duration = Duration::from_secs(20);

/// Longest wait until everything is saved: gigabytes, on a disk that others use as well.
const SAVED_WITHIN: Duration = Duration::from_secs(300);

/// How a server differs from the plain one, which keeps everything in memory and never saves by itself.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    password: Option<String>,
    args: Vec<String>,
    /// Makes it a Sentinel: the text of its configuration, which Sentinel insists on having in a file that it rewrites.
    sentinel: Option<String>,
    /// Directives that take the server's second port.
    second_port: Option<&'static str>,
}

impl RedisOptions {
    /// Clients must give this password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// One more directive, as on the command line: `.set("--maxmemory", &["10mb"])`.
    pub fn set(mut self, directive: &str, values: &[&str]) -> Self {
        self.args.push(directive.to_owned());
        self.args.extend(values.iter().map(|&value| value.to_owned()));
        self
    }

    /// Every write is on disk before it is answered, so that even a killed server comes back with all of it.
    pub fn durable(self) -> Self {
        self.set("--appendonly", &["yes"]).set("--appendfsync", &["always"])
    }

    /// A replica of another private server.
    pub fn replica_of(self, master: &Redis) -> Self {
        self.set("--replicaof", &["127.0.0.1", &master.port.to_string()])
    }

    /// Also listens with TLS, at [`Redis::tls_url`], and lets in clients whose certificate is from the same authority.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.second_port = Some("--tls-port");
        let file = |path: PathBuf| path.display().to_string();
        self.set("--tls-cert-file", &[&file(certificates.cert())])
            .set("--tls-key-file", &[&file(certificates.key())])
            .set("--tls-ca-cert-file", &[&file(certificates.ca())])
    }

    /// A node of a cluster that it does not know yet; see [`crate::Cluster`]. A node is thought dead after a second.
    pub(crate) fn cluster_node(mut self) -> Self {
        self.second_port = Some("--cluster-port");
        self.set("--cluster-enabled", &["yes"]).set("--cluster-node-timeout", &["1000"])
    }

    /// Not a store but a Sentinel that watches another private server, and alone decides to fail over after a second.
    pub fn sentinel_of(mut self, name: &str, master: &Redis) -> Self {
        let mut text = format!(
            "sentinel monitor {name} 127.0.0.1 {} 1\nsentinel down-after-milliseconds {name} 1000\n",
            master.port
        );
        if let Some(password) = &master.options.password {
            text += &format!("sentinel auth-pass {name} {password}\n");
        }
        self.sentinel = Some(text);
        self
    }
}

/// A running redis-server on a free loopback port; killed on drop, its folder removed.
pub struct Redis {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    options: RedisOptions,
    folder: TempDir,
}

impl Redis {
    /// Starts a plain server: no password, no persistence.
    pub fn start() -> Result<Self> {
        Self::start_with(RedisOptions::default())
    }

    /// Starts a server and returns once it answers.
    pub fn start_with(options: RedisOptions) -> Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("salvage-redis-").tempdir().context("making Redis's folder")?;
        let (port, process) = on_free_port(|port| {
            let process = launch(port, folder.path(), &options)?;
            Ok(match process {
                Some(process) => Try::Started((port, process)),
                None => Try::PortTaken,
            })
        })?;
        Ok(Self { process, port, options, folder })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for clients; it holds the password, if there is one.
    pub fn url(&self) -> String {
        match &self.options.password {
            None => format!("redis://127.0.0.1:{}", self.port),
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
        }
    }

    /// The URL for clients with TLS, of a server that has it; its certificate is for this address.
    pub fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}", second_port(self.port))
    }

    /// The port at which nodes of a cluster speak with each other.
    pub(crate) fn cluster_port(&self) -> u16 {
        second_port(self.port)
    }

    /// Runs one command as the administrator. The reply as text: arrays one element a line, nil as an empty text.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        command(self.port, &self.options, words)
    }

    /// Saves everything, however long it takes; no reply would be waited for as long.
    pub fn save(&self) -> Result<()> {
        self.command(&["BGSAVE"])?;
        until("Redis has saved everything", SAVED_WITHIN, || {
            let persistence = self.command(&["INFO", "persistence"])?;
            let says = |line: &str| persistence.lines().any(|said| said.trim_end() == line);
            ensure!(says("rdb_last_bgsave_status:ok"), "saving failed:\n{persistence}");
            Ok(says("rdb_bgsave_in_progress:0"))
        })
    }

    /// The last lines the server logged.
    pub fn log_tail(&self) -> String {
        log_tail(self.folder.path())
    }

    /// Saves everything, stops, and starts again on the same port: a restart that loses nothing, with a new run id.
    pub fn restart_with_data(&mut self) -> Result<()> {
        self.stop_saving()?;
        self.start_again()
    }

    /// Kills the server and starts it again on the same port with nothing in it.
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill()?;
        self.remove_data()?;
        self.start_again()
    }

    /// Saves everything and stops. The port stays ours only by luck; `start_again` wants it back.
    pub fn stop_saving(&mut self) -> Result<()> {
        // The server ends instead of replying; whether it really saved and ended is seen below.
        drop(self.command(&["SHUTDOWN", "SAVE"]));
        self.process.wait().context("waiting for Redis to save and end")
    }

    /// Kills the server (SIGKILL): nothing is saved that was not saved before.
    pub fn kill(&mut self) -> Result<()> {
        self.process.end(Ended::Killed)
    }

    /// Starts the ended server again on the same port, with what is in its folder.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = launch(self.port, self.folder.path(), &self.options)?.with_context(|| {
            format!("port {} of the stopped Redis was taken by another process", self.port)
        })?;
        Ok(())
    }

    /// Freezes the server (SIGSTOP): connections stay open, nothing is answered.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(libc::SIGSTOP)
    }

    /// Wakes the frozen server. What clients sent meanwhile is answered now.
    pub fn resume(&mut self) -> Result<()> {
        self.process.signal(libc::SIGCONT)
    }

    fn remove_data(&self) -> Result<()> {
        let data = data_folder(self.folder.path());
        fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))
    }
}

/// The port of a server that needs two: as far away as Redis itself would choose, but always a valid one.
fn second_port(port: u16) -> u16 {
    port.checked_add(10_000).unwrap_or(port - 10_000)
}

fn data_folder(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Starts a server on this very port and waits for its PONG. None: the port was taken.
fn launch(port: u16, folder: &Path, options: &RedisOptions) -> Result<Option<Process>> {
    let data = data_folder(folder);
    fs::create_dir_all(&data).with_context(|| format!("making {}", data.display()))?;
    let log = File::create(folder.join("log")).context("making Redis's log")?;
    let mut command = Command::new(tools::redis_server()?);
    if let Some(text) = &options.sentinel {
        let file = data.join("sentinel.conf");
        if !file.exists() {
            fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        }
        command.arg(file).arg("--sentinel");
    }
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(&data);
    if let Some(password) = &options.password {
        command.args(["--requirepass", password]);
    }
    if let Some(directive) = options.second_port {
        command.args([directive, &second_port(port).to_string()]);
    }
    command.args(&options.args);
    command
        .stdin(std::process::Stdio::null())
        .stderr(log.try_clone().context("sharing Redis's log")?)
        .stdout(log);
    let mut process = Process::spawn("redis-server", command, Ended::Killed)?;
    wait_until_up(port, folder, options, &mut process).map(|up| up.then_some(process)).with_context(|| {
        format!("redis-server on port {port} did not come up; its log ends:\n{}", log_tail(folder))
    })
}

/// False: it ended because the port was taken.
fn wait_until_up(port: u16, folder: &Path, options: &RedisOptions, process: &mut Process) -> Result<bool> {
    let mut port_taken = false;
    wait::until("redis-server answers", UP_WITHIN, || {
        if let Some(status) = process.ended()? {
            // The second one's message differs from version to version; its number is in all of them.
            let tail = log_tail(folder);
            let names_second = options.second_port.is_some() && tail.contains(&second_port(port).to_string());
            port_taken = tail.contains("Address already in use") || names_second;
            if !port_taken {
                bail!("it ended while starting ({status})");
            }
            return Ok(true);
        }
        // A stranger on a port that was taken would answer, too: only our own process id will do.
        // And it answers INFO, but little else, while it still loads what it had saved.
        let info = command(port, options, &["INFO"]).unwrap_or_default();
        let is_ours = info.lines().any(|line| line == format!("process_id:{}", process.pid()));
        Ok(is_ours && info.lines().all(|line| line != "loading:1"))
    })?;
    Ok(!port_taken)
}

fn command(port: u16, options: &RedisOptions, words: &[&str]) -> Result<String> {
    match &options.password {
        None => ask(port, &[words]),
        Some(password) => ask(port, &[&["AUTH", password], words]),
    }
}

fn log_tail(folder: &Path) -> String {
    wait::tail(&folder.join("log"))
}
