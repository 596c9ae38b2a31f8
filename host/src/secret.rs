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

    /// Names and values of its parameters, in their order, decoded. Any value may be a secret.
    #[must_use]
    pub fn parameters(&self) -> Vec<(String, String)> {
        let url = Url::parse(&self.text);
        url.map(|url| url.query_pairs().into_owned().collect()).unwrap_or_default()
    }

    /// The same URL with other parameters.
    #[must_use]
    pub fn with_parameters(&self, parameters: &[(String, String)]) -> Self {
        self.changed(|url| {
            url.set_query(None);
            if !parameters.is_empty() {
                url.query_pairs_mut().extend_pairs(parameters);
            }
        })
    }

    /// The same URL after a change; one that changes nothing leaves every byte as it was given.
    #[must_use]
    pub fn changed(&self, change: impl FnOnce(&mut Url)) -> Self {
        let Ok(before) = Url::parse(&self.text) else { return self.clone() };
        let mut url = before.clone();
        change(&mut url);
        if url.query_pairs().eq(before.query_pairs()) {
            url.set_query(before.query());
        }
        if url == before { self.clone() } else { Self { shown: shown(&url), text: url.into() } }
    }

    /// The URL with its password. For the adapter that connects, and nobody else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

/// Parameters whose values may be shown: they say where, not who. Drivers also take a password as a parameter, of a name
/// of their own.
const SHOWN_PARAMETERS: [&str; 5] = ["db", "dbname", "host", "port", "sslmode"];

fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let is_shown = |key: &str| SHOWN_PARAMETERS.contains(&key);
    if url.query_pairs().any(|(key, _)| !is_shown(&key)) {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.query_pairs_mut().clear().extend_pairs(
            pairs.iter().map(|(key, value)| (key, if is_shown(key) { value.as_str() } else { "***" })),
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
        check_shown("postgres:///app?password=hunter2&user=app", "postgres:///app?password=***&user=***");
        check_shown("postgres:///app?host=%2Frun&pwd=hunter2", "postgres:///app?host=%2Frun&pwd=***");
        check_shown("unix:///run/redis.sock?pass=hunter2", "unix:///run/redis.sock?pass=***");
    }

    #[test]
    fn other_parameters_leave_the_rest_as_it_is() {
        let url = SecretUrl::parse("postgres://u:p%40@[::1]/x?a=1&b=%20", &["postgres"]).unwrap();
        assert_eq!(url.with_parameters(&url.parameters()), url);
        let less = url.with_parameters(&[("sslmode".to_owned(), "require".to_owned())]);
        assert_eq!(less.expose(), "postgres://u:p%40@[::1]/x?sslmode=require");
        assert_eq!(less.with_parameters(&[]).expose(), "postgres://u:p%40@[::1]/x");
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
