//! Durations, ranges and sizes as people write them: always with a unit.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;
use jiff::SignedDuration;

/// Ten years: longer than any setting means, short enough that adding it to a date or sending it to Redis is safe.
pub const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a text is not the quantity it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitFault {
    /// A bare number.
    #[error("has no unit")]
    NoUnit,
    /// Nothing that can be read.
    #[error("is not {0}")]
    Unreadable(&'static str),
    /// Zero or less.
    #[error("must be greater than zero")]
    NotPositive,
    /// Longer than [`DURATION_MAX`].
    #[error("is longer than ten years")]
    TooLong,
    /// A range that ends before it begins.
    #[error("ends before it begins")]
    Backwards,
}

/// Reads `250ms`, `5s`, `5m`, `1h 30m`, `72h`; days and longer have no fixed length, so `h` is the largest unit.
///
/// # Errors
/// If there is no unit, or it is zero, negative or unreadable.
pub fn duration(text: &str) -> Result<Duration, UnitFault> {
    let text = text.trim();
    if is_bare_number(text) {
        return Err(UnitFault::NoUnit);
    }
    let signed: SignedDuration = text.parse().map_err(|_| UnitFault::Unreadable("a duration"))?;
    if !signed.is_positive() {
        return Err(UnitFault::NotPositive);
    }
    let duration = signed.unsigned_abs();
    if duration > DURATION_MAX { Err(UnitFault::TooLong) } else { Ok(duration) }
}

/// Reads `5s..15s`, both ends included.
///
/// # Errors
/// If an end is not a duration, or the range ends before it begins.
pub fn duration_range(text: &str) -> Result<RangeInclusive<Duration>, UnitFault> {
    let (from, to) = text.split_once("..").ok_or(UnitFault::Unreadable("a range of durations"))?;
    let range = duration(from)?..=duration(to)?;
    if range.is_empty() { Err(UnitFault::Backwards) } else { Ok(range) }
}

/// Reads `512B`, `64KiB`, `64MiB`, `1.5GiB`; `kB` and `MB` are powers of ten. The result is in bytes.
///
/// # Errors
/// If there is no unit, or it is zero, negative or unreadable.
pub fn size(text: &str) -> Result<u64, UnitFault> {
    let text = text.trim();
    if is_bare_number(text) {
        return Err(UnitFault::NoUnit);
    }
    if text.starts_with('-') {
        return Err(UnitFault::NotPositive);
    }
    let size: ByteSize = text.parse().map_err(|_| UnitFault::Unreadable("a size"))?;
    if size.as_u64() == 0 { Err(UnitFault::NotPositive) } else { Ok(size.as_u64()) }
}

fn is_bare_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_duration(text: &str, expected: Result<u64, UnitFault>) {
        assert_eq!(duration(text), expected.map(Duration::from_millis), "{text:?}");
    }

    #[test]
    fn a_duration_carries_its_unit() {
        check_duration("250ms", Ok(250));
        check_duration("5s", Ok(5_000));
        check_duration("1.5s", Ok(1_500));
        check_duration(" 5 m ", Ok(300_000));
        check_duration("5min", Ok(300_000));
        check_duration("1h 30m", Ok(5_400_000));
        check_duration("1h30m", Ok(5_400_000));
        check_duration("72h", Ok(72 * 3_600_000));
        check_duration("300", Err(UnitFault::NoUnit));
        check_duration("-1.5", Err(UnitFault::NoUnit));
        check_duration("", Err(UnitFault::Unreadable("a duration")));
        check_duration("5 parsecs", Err(UnitFault::Unreadable("a duration")));
        check_duration("30d", Err(UnitFault::Unreadable("a duration")));
        check_duration("0s", Err(UnitFault::NotPositive));
        check_duration("-5m", Err(UnitFault::NotPositive));
        check_duration("5m ago", Err(UnitFault::NotPositive));
        check_duration("9999999h", Err(UnitFault::TooLong));
    }

    #[test]
    fn a_range_has_two_ends_in_order() {
        let seconds = |from, to| Ok(Duration::from_secs(from)..=Duration::from_secs(to));
        assert_eq!(duration_range("5s..15s"), seconds(5, 15));
        assert_eq!(duration_range("5s .. 1m"), seconds(5, 60));
        assert_eq!(duration_range("5s..5s"), seconds(5, 5));
        assert_eq!(duration_range("5..15s"), Err(UnitFault::NoUnit));
        assert_eq!(duration_range("15s..5s"), Err(UnitFault::Backwards));
        assert_eq!(duration_range("5s"), Err(UnitFault::Unreadable("a range of durations")));
        assert_eq!(duration_range("5s...15s"), Err(UnitFault::Unreadable("a duration")));
    }

    fn check_size(text: &str, expected: Result<u64, UnitFault>) {
        assert_eq!(size(text), expected, "{text:?}");
    }

    #[test]
    fn a_size_carries_its_unit() {
        check_size("64KiB", Ok(64 << 10));
        check_size("64 MiB", Ok(64 << 20));
        check_size("1.5GiB", Ok(3 << 29));
        check_size("64MB", Ok(64_000_000));
        check_size("512B", Ok(512));
        check_size("64", Err(UnitFault::NoUnit));
        check_size("0B", Err(UnitFault::NotPositive));
        check_size("0.1B", Err(UnitFault::NotPositive));
        check_size("-1MiB", Err(UnitFault::NotPositive));
        check_size("64 elephants", Err(UnitFault::Unreadable("a size")));
        check_size("MiB", Err(UnitFault::Unreadable("a size")));
    }
}
