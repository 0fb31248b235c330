//! Formats times of day for the report.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Formats a moment as a time of day, for example `2026-11-22 07:40:01.123 UTC`.
pub(crate) fn format_utc(moment: Instant) -> String {
    let now = SystemTime::now();
    let then = now.checked_sub(moment.elapsed()).unwrap_or(now);
    let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    format_seconds(since.as_secs(), since.subsec_millis())
}

fn format_seconds(seconds: u64, millis: u32) -> String {
    let (year, month, day) = date_of_day(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03} UTC")
}

/// Returns the date of a day that is counted from 1970.
fn date_of_day(mut days: u64) -> (u64, usize, u64) {
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format_seconds(0, 0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(format_seconds(951_782_399, 7), "2000-02-28 23:59:59.007 UTC");
        assert_eq!(format_seconds(951_868_799, 999), "2000-02-29 23:59:59.999 UTC");
        assert_eq!(format_seconds(1_735_689_599, 1), "2024-12-31 23:59:59.001 UTC");
        assert_eq!(format_seconds(1_735_689_600, 0), "2025-01-01 00:00:00.000 UTC");
    }
}
