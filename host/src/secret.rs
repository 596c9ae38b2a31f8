//! URLs that hold a password: no way to print one shows it.

use std::fmt;

use url::Url;

/// A URL whose `Debug` and `Display` show `***` in place of the password; the user stays.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl {
    /// As it was given.
    text: String,
    /// What may be shown.
    shown: String,
}

/// Why a text is not the URL it should be. Never quotes the text: even half a URL may hold the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// Not a URL at all.
    #[error("not a valid URL: {0}")]
    Syntax(#[source] url::ParseError),
    /// A URL of something else.
    #[error("a URL of another kind than {expected}://")]
    Scheme {
        /// The usual scheme, without `://`.
        expected: String,
    },
}

impl SecretUrl {
    /// Reads a URL with one of `schemes` (without `://`, the usual one first).
    ///
    /// # Errors
    /// If it is no URL, or has another scheme.
    pub fn parse(text: &str, schemes: &[&str]) -> Result<Self, BadUrl> {
        let url = Url::parse(text).map_err(BadUrl::Syntax)?;
        if !schemes.contains(&url.scheme()) {
            return Err(BadUrl::Scheme { expected: (*schemes.first().unwrap_or(&"")).to_owned() });
        }
        Ok(Self { shown: shown(&url), text: text.to_owned() })
    }

    /// The scheme, without `://`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.shown.split(':').next().unwrap_or_default()
    }

    /// The value of a query parameter that is no secret.
    #[must_use]
    pub fn query(&self, key: &str) -> Option<String> {
        let url = Url::parse(&self.shown).ok()?;
        url.query_pairs().find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
    }

    /// The URL with its password. For the adapter that connects, and nobody else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

/// Drivers also take the password as a query parameter: PostgreSQL's is `password`, that of Redis's unix sockets `pass`.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let is_secret = |key: &str| key.to_ascii_lowercase().contains("pass");
    if url.query_pairs().any(|(key, _)| is_secret(&key)) {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.query_pairs_mut().clear().extend_pairs(
            pairs.iter().map(|(key, value)| (key, if is_secret(key) { "***" } else { value.as_str() })),
        );
    }
    if url.password().is_some() && url.set_password(Some("***")).is_err() {
        return format!("{}://***", url.scheme());
    }
    url.into()
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretUrl({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_shown(text: &str, expected: &str) {
        let url = SecretUrl::parse(text, &["postgres", "redis", "unix"]).unwrap();
        assert_eq!(url.to_string(), expected);
        assert_eq!(format!("{url:?}"), format!("SecretUrl({expected})"));
        assert_eq!(url.expose(), text);
    }

    #[test]
    fn a_shown_url_has_its_user_and_not_its_password() {
        check_shown("postgres://app:hunter2@db:5432/app", "postgres://app:***@db:5432/app");
        check_shown("postgres://app@db/app", "postgres://app@db/app");
        check_shown("redis://:hunter2@cache/0", "redis://:***@cache/0");
        check_shown("postgres:///app?password=hunter2&user=app", "postgres:///app?password=***&user=app");
        check_shown("unix:///run/redis.sock?pass=hunter2", "unix:///run/redis.sock?pass=***");
    }

    #[test]
    fn a_bad_url_is_not_quoted() {
        for text in
            ["hunter2@db", "postgres://app:hunter2@db:hunter2/x", "mysql://app:hunter2@db", "hunter2:x"]
        {
            let why = SecretUrl::parse(text, &["postgres", "postgresql"]).unwrap_err();
            assert!(!format!("{why} {why:?}").contains("hunter2"), "{why:?}");
        }
    }
}
