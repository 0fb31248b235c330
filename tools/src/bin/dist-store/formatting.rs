//! Formats bytes, ranks and times for users. The functions do no I/O.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Formats bytes as one line. Printable characters are unchanged, and all other characters are
/// escaped.
pub(crate) fn escape_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\'' => text.push(character),
                _ => text.extend(character.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _infallible = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Formats bytes like [`escape_bytes`], in quotes. If there are more than `limit` bytes, shortens
/// them and adds the size.
pub(crate) fn quote_bytes(bytes: &[u8], limit: usize) -> String {
    if bytes.len() <= limit {
        return format!("\"{}\"", escape_bytes(bytes));
    }
    // Do not cut within a character, which would then be displayed incorrectly.
    let is_start = |&at: &usize| bytes[at] & 0b1100_0000 != 0b1000_0000;
    let end = (limit.saturating_sub(3)..=limit).rev().find(is_start).unwrap_or(limit);
    format!("\"{}...\" ({} bytes)", escape_bytes(&bytes[..end]), bytes.len())
}

/// Formats keys in quotes, separated by commas.
pub(crate) fn format_keys(keys: &[&[u8]]) -> String {
    let shown: Vec<String> = keys.iter().map(|key| quote_bytes(key, 128)).collect();
    shown.join(", ")
}

/// Formats a time span in a suitable unit.
pub(crate) fn format_duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 0.001 {
        format!("{:.1} us", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.2} ms", seconds * 1e3)
    } else {
        format!("{seconds:.2} s")
    }
}

/// Formats the time of day in UTC with milliseconds.
pub(crate) fn format_time_of_day(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (day, ms) = (since.as_secs() % 86_400, since.subsec_millis());
    let (hours, minutes, seconds) = (day / 3600, day / 60 % 60, day % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_bytes_are_escaped() {
        assert_eq!(escape_bytes("a'\"ü\\\n\0\u{1b}".as_bytes()), "a'\"ü\\\\\\n\\0\\u{1b}");
        assert_eq!(escape_bytes(b"\xff\xc3x"), "\\xff\\xc3x");
        // The right-to-left override, which would reverse the display.
        assert_eq!(escape_bytes("\u{202e}".as_bytes()), "\\u{202e}");
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(quote_bytes(b"abc", 3), "\"abc\"");
        assert_eq!(quote_bytes(b"abcd", 3), "\"abc...\" (4 bytes)");
        assert_eq!(quote_bytes("aüüü".as_bytes(), 4), "\"aü...\" (7 bytes)");
        assert_eq!(quote_bytes(&[0x80; 9], 2), "\"\\x80\\x80...\" (9 bytes)");
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        assert_eq!(format_duration(Duration::from_nanos(81_250)), "81.2 us");
        assert_eq!(format_duration(Duration::from_micros(1500)), "1.50 ms");
        assert_eq!(format_duration(Duration::from_millis(2250)), "2.25 s");
        let noon = UNIX_EPOCH + Duration::from_millis(86_400_000 * 7 + 43_200_123);
        assert_eq!(format_time_of_day(noon), "12:00:00.123Z");
    }
}
