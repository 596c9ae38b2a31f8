//! TLS: one stack (rustls), one provider of its cryptography (ring), and whom we trust.
//!
//! Without `[redis] ca` we trust whom the machine trusts (its store of certificates, or `SSL_CERT_FILE`): a store built
//! into the binary would age with it.

use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, RedisResult, TlsCertificates,
};
use rustls::CertificateError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::settings::{InvalidSettings, TlsFiles};

/// Whom we trust, and who we say we are. `None`: whom the machine trusts, and nobody.
pub(super) struct Trust(Option<TlsCertificates>);

impl Trust {
    /// Reads the files.
    pub(super) fn load(files: &TlsFiles) -> Result<Self, InvalidSettings> {
        // The first one stays for as long as the process lives, and every one of ours is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        if files.ca.is_none() && files.identity.is_none() {
            return Ok(Self(None));
        }
        let root_cert = match &files.ca {
            Some(path) => Some(certificates("ca", path)?),
            None => None,
        };
        let client_tls = match &files.identity {
            Some((cert, key)) => Some(ClientTlsConfig {
                client_cert: certificates("cert", cert)?,
                client_key: private_key(key)?,
            }),
            None => None,
        };
        Ok(Self(Some(TlsCertificates { client_tls, root_cert })))
    }

    /// The same server, reached with this trust if it is reached over TLS.
    pub(super) fn given_to(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        match (&self.0, info.addr()) {
            (Some(certificates), ConnectionAddr::TcpTls { .. }) => {
                let client = Client::build_with_tls(info, certificates.clone())?;
                Ok(client.get_connection_info().clone())
            }
            _ => Ok(info),
        }
    }
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<u8>, InvalidSettings> {
    let text = read(setting, path)?;
    let is_sound = CertificateDer::pem_slice_iter(&text).next().is_some_and(|first| first.is_ok());
    let expected = "certificate";
    if is_sound {
        Ok(text)
    } else {
        Err(InvalidSettings::NotPem { setting, path: path.to_owned(), expected })
    }
}

fn private_key(path: &Path) -> Result<Vec<u8>, InvalidSettings> {
    let (setting, expected) = ("key", "private key");
    let text = read(setting, path)?;
    let is_sound = PrivateKeyDer::from_pem_slice(&text).is_ok();
    if is_sound {
        Ok(text)
    } else {
        Err(InvalidSettings::NotPem { setting, path: path.to_owned(), expected })
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, InvalidSettings> {
    fs::read(path).map_err(|source| InvalidSettings::Unreadable { setting, path: path.to_owned(), source })
}

/// What is wrong with the TLS of a connection, and what to do; `None` if something else is wrong.
pub(super) fn complaint(error: &RedisError) -> Option<String> {
    let inner: &Arc<dyn Error + Send + Sync> = error.source()?.downcast_ref()?;
    let of_handshake = || inner.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref();
    inner.downcast_ref().or_else(of_handshake).map(explained)
}

/// What to say of a server that ended the connection right after the handshake.
pub(super) fn let_down(detail: &str) -> String {
    format!(
        "the server did not reply after the handshake ({detail}); if it asks for a certificate, set [redis] cert and key"
    )
}

fn explained(error: &rustls::Error) -> String {
    use CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "nobody whom we trust has issued the server's certificate; set [redis] ca to a file (PEM) with the \
             certificate of the authority that has"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the server's certificate is for another name; write in [redis] a name that it is for".to_owned()
        }
        rustls::Error::InvalidCertificate(why) => format!("the server's certificate is not accepted: {why}"),
        rustls::Error::AlertReceived(alert) => format!(
            "the server refused us ({alert:?}); if it asks for a certificate, set [redis] cert and key"
        ),
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port; write redis:// or the port of its TLS".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distrust_says_what_to_do() {
        let bad = |error| explained(&rustls::Error::InvalidCertificate(error));
        assert!(bad(CertificateError::UnknownIssuer).contains("set [redis] ca"));
        assert!(bad(CertificateError::NotValidForName).contains("another name"));
        assert!(bad(CertificateError::Expired).contains("not accepted"));
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        assert!(explained(&alert).contains("set [redis] cert and key"));
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert!(explained(&plain).contains("write redis://"));
    }
}
