//! Formats ranks, times and untrusted texts for users. The functions do no I/O.

use std::time::Duration;

/// Formats an untrusted text as one line of at most `longest` characters, without control
/// characters that a terminal could interpret.
pub(crate) fn printable_line(text: &str, longest: usize) -> String {
    let mut line = String::with_capacity(text.len().min(longest));
    let mut characters = text.chars();
    for character in characters.by_ref().take(longest) {
        match character {
            '"' | '\'' | '\\' => line.push(character),
            _ => line.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        line.push_str("...");
    }
    line
}

/// Formats ascending rank numbers, for example "rank 3" or "ranks 0, 2-5".
pub(crate) fn ranks_text(numbers: &[usize]) -> String {
    let noun = if numbers.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", dist_tools::ranges_text(numbers))
}

/// Formats a time span in a suitable unit.
pub(crate) fn span_text(ns: u64) -> String {
    let seconds = Duration::from_nanos(ns).as_secs_f64();
    if seconds < 0.001 {
        format!("{:.0} us", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ranks_are_shown_as_ranges() {
        assert_eq!(ranks_text(&[4]), "rank 4");
        assert_eq!(ranks_text(&[0, 1, 3, 5, 6, 7]), "ranks 0, 1, 3, 5-7");
    }

    #[test]
    fn text_is_escaped_and_cut_to_one_line() {
        assert_eq!(printable_line("a\n\u{1b}[2J\"\\", 99), "a\\n\\u{1b}[2J\"\\");
        assert_eq!(printable_line("abcdef", 3), "abc...");
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        let spans = [0, 81_000, 2_500_000, 12_340_000_000].map(span_text);
        assert_eq!(spans, ["0 us", "81 us", "2.5 ms", "12.3 s"]);
        assert!(span_text(u64::MAX).ends_with(" s"));
    }
}
