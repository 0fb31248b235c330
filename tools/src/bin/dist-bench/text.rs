//! Formats and parses sizes and times. The functions do no I/O.

/// The units of sizes.
const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

/// Parses a number of bytes, optionally with K, M or G (powers of 1024).
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let shift = UNITS.iter().find(|(unit, _)| text.ends_with(*unit)).map(|(_, shift)| *shift);
    let digits = if shift.is_some() { &text[..text.len() - 1] } else { text };
    let number: usize =
        digits.parse().map_err(|_| "expected a size such as 4, 64K or 32M".to_owned())?;
    let bytes = number.checked_mul(1 << shift.unwrap_or(0)).ok_or("the size is too large")?;
    if bytes == 0 { Err("the size must not be 0".to_owned()) } else { Ok(bytes) }
}

/// Formats a size: `4 B`, `64 KiB`, `32 MiB`. Uses a larger unit only if the result is exact.
pub(crate) fn size_text(bytes: usize) -> String {
    let unit = UNITS.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(
        || format!("{bytes} B"),
        |(unit, shift)| format!("{} {unit}iB", bytes >> shift),
    )
}

/// Formats nanoseconds as microseconds with a suitable number of digits.
pub(crate) fn microseconds_text(ns: f64) -> String {
    let us = ns / 1e3;
    let digits = match us {
        _ if us < 9.9995 => 3,
        _ if us < 99.995 => 2,
        _ if us < 9999.5 => 1,
        _ => 0,
    };
    format!("{us:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, words) in [
            ("4", 4, "4 B"),
            ("64K", 65_536, "64 KiB"),
            ("32M", 33_554_432, "32 MiB"),
            ("1G", 1_073_741_824, "1 GiB"),
            ("1025", 1025, "1025 B"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
            assert_eq!(size_text(bytes), words);
        }
        assert_eq!(size_text(0), "0 B");
        for wrong in ["", "K", "0", "-1", "4k", "1.5M", "99999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_significant_digits() {
        let shown = [123.4, 9_999.6, 99_996.0, 1_234_500.0, 69_045_000.0].map(microseconds_text);
        assert_eq!(shown, ["0.123", "10.00", "100.0", "1234.5", "69045"]);
    }
}
