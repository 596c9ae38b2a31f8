//! Certificates for servers with TLS, made anew each time with the `openssl` program.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Words of every command that makes a key.
const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// What a certificate is for.
const EXTENSIONS: &str = "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=critical,CA:FALSE\n";

/// An authority, and the one certificate it has issued, for `127.0.0.1` and `localhost`; removed on drop.
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    pub fn make() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("salvage-certificates-").tempdir();
        let made = Self { folder: folder.context("making a folder for certificates")? };
        fs::write(made.file("extensions"), EXTENSIONS).context("writing what the certificate is for")?;
        made.authority("ca")?;
        made.authority("stranger")?;
        let request = ["-keyout", "key", "-out", "request", "-subj", "/CN=salvage test server"];
        made.openssl(&[&["req"], &NEW_KEY[..], &request].concat())?;
        made.openssl(&[
            "x509",
            "-req",
            "-in",
            "request",
            "-CA",
            "ca",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "extensions",
            "-out",
            "cert",
        ])?;
        Ok(made)
    }

    /// The authority's own certificate.
    pub fn ca(&self) -> PathBuf {
        self.file("ca")
    }

    /// That of another authority, which has issued nothing.
    pub fn stranger(&self) -> PathBuf {
        self.file("stranger")
    }

    /// What the authority has issued, for servers and clients alike.
    pub fn cert(&self) -> PathBuf {
        self.file("cert")
    }

    /// The key of that.
    pub fn key(&self) -> PathBuf {
        self.file("key")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn authority(&self, name: &str) -> Result<()> {
        let (key, subject) = (format!("{name}.key"), format!("/CN=salvage test {name}"));
        let own = ["-keyout", &key, "-out", name, "-subj", &subject, "-days", "2"];
        self.openssl(&[&["req", "-x509"], &NEW_KEY[..], &own].concat())
    }

    fn openssl(&self, words: &[&str]) -> Result<()> {
        let mut openssl = Command::new("openssl");
        let output = openssl.args(words).current_dir(self.folder.path()).output();
        let output = output.context("starting openssl: run `cargo xtask setup`, or install it")?;
        if !output.status.success() {
            bail!("openssl {} failed: {}", words[0], String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(())
    }
}
