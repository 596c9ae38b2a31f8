//! From the driver's errors to [`StoreFailure`], without a value of a row and without a password.
//!
//! Of an error of PostgreSQL only the SQLSTATE and the primary message are kept: DETAIL quotes rows (`Key (email)=(…)
//! already exists`), CONTEXT quotes statements.

use std::io;

use rustls::CertificateError;
use sqlx::Error;

use crate::ports::StoreFailure;

/// What an error of the driver means while `attempted` was attempted.
pub(super) fn failure(attempted: &str, error: &Error) -> StoreFailure {
    match error {
        Error::Database(error) => {
            reported(attempted, error.code().as_deref().unwrap_or("XX000"), error.message())
        }
        Error::Io(error) => StoreFailure::Unreachable(distrust(error).unwrap_or_else(|| error.to_string())),
        Error::Tls(error) => StoreFailure::Unreachable(format!("TLS: {error}")),
        Error::PoolTimedOut => StoreFailure::Unreachable("every connection of the pool was busy".to_owned()),
        Error::PoolClosed | Error::WorkerCrashed => {
            StoreFailure::Unreachable("the host is shutting down".to_owned())
        }
        Error::Configuration(error) => StoreFailure::Denied(error.to_string()),
        // Decoding errors name types and columns, never what was in them.
        other => StoreFailure::Unexpected { attempted: attempted.to_owned(), detail: other.to_string() },
    }
}

/// What is wrong with the TLS of a connection, and what to do; `None` if something else is wrong.
fn distrust(error: &io::Error) -> Option<String> {
    use CertificateError as Bad;
    let told = match error.get_ref()?.downcast_ref()? {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "nobody whom we trust has issued the server's certificate; add to [database] url sslrootcert=FILE, a file \
             (PEM) with the certificate of the authority that has"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the server's certificate is for another name; write in [database] url a name that it is for, or \
             sslmode=verify-ca"
                .to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!(
            "the server refused us ({alert:?}); if it asks for a certificate, add sslcert=FILE and sslkey=FILE"
        ),
        other => other.to_string(),
    };
    Some(format!("TLS: {told}"))
}

/// The same for an error that PostgreSQL itself reported.
fn reported(attempted: &str, code: &str, message: &str) -> StoreFailure {
    let message = message.lines().collect::<Vec<_>>().join(" ");
    match code {
        "28P01" | "28000" | "3D000" => StoreFailure::Denied(message),
        // Connection exceptions, too many connections, and a server that stops, crashed or has not started yet.
        "53300" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => StoreFailure::Unreachable(message),
        "25006" => StoreFailure::ReadOnly { message },
        code if code.starts_with("08") => StoreFailure::Unreachable(message),
        "42P01" | "3F000" | "42703" if message.contains("salvage") => {
            StoreFailure::Schema { found: "missing or older than this version".to_owned() }
        }
        code => StoreFailure::Refused { attempted: attempted.to_owned(), code: code.to_owned(), message },
    }
}

/// Whether somebody else holds what we wanted, or was faster: not ours to touch.
pub(super) fn is_contention(code: &str) -> bool {
    // Lock timeout, deadlock, serialization.
    matches!(code, "55P03" | "40P01" | "40001")
}

/// Whether it is this very row that PostgreSQL rejects: data, constraints, triggers, and what else a statement about one
/// row can be refused for. A standby's refusal (25006) and exhausted resources (53) are not among them.
pub(super) fn concerns_the_row(code: &str) -> bool {
    ["09", "21", "22", "23", "27", "38", "39", "42", "44", "P0"].iter().any(|class| code.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: &str, expected: fn(&StoreFailure) -> bool) {
        let found = reported("read", code, "words");
        assert!(expected(&found), "{code} became {found:?}");
    }

    #[test]
    fn what_stops_a_pass_and_what_stops_a_statement_are_told_apart() {
        check("28P01", |failure| matches!(failure, StoreFailure::Denied(_)));
        check("3D000", |failure| matches!(failure, StoreFailure::Denied(_)));
        check("57P01", |failure| matches!(failure, StoreFailure::Unreachable(_)));
        check("08006", |failure| matches!(failure, StoreFailure::Unreachable(_)));
        check("42P01", |failure| failure.is_local());
        check("57014", |failure| failure.is_local());
        check("25006", |failure| matches!(failure, StoreFailure::ReadOnly { .. }) && !failure.is_local());
    }

    #[test]
    fn a_missing_table_of_our_own_says_to_migrate() {
        let found = reported("raise", "42P01", "relation \"salvage.fence\" does not exist");
        assert!(found.to_string().contains("salvage migrate"), "{found}");
    }

    #[test]
    fn a_message_is_one_line() {
        let found = reported("write", "P0001", "first\nsecond").to_string();
        assert!(found.contains("first second"), "{found}");
    }
}
