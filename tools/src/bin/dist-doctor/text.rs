//! Formats ranks, times and untrusted texts for users. The functions do no I/O.

use std::time::Duration;

/// The largest number of ranges that a list of ranks names.
const MAX_RANGES_SHOWN: usize = 16;

/// Formats an untrusted text as one line without terminal control characters, at most `longest`
/// characters.
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

/// Formats ascending rank numbers: "rank 3", "ranks 0, 2-5".
pub(crate) fn ranks_text(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let rest: usize =
        runs.iter().skip(MAX_RANGES_SHOWN).map(|(first, last)| last - first + 1).sum();
    let named: Vec<String> = runs
        .iter()
        .take(MAX_RANGES_SHOWN)
        .map(|&(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let noun = if numbers.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}{more}", named.join(", "))
}

/// Formats a count with its noun: "1 rank", "2 ranks".
pub(crate) fn count_text(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
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
        let odd: Vec<usize> = (0..100).filter(|n| n % 2 == 1).collect();
        assert!(ranks_text(&odd).ends_with("31 and 34 more"), "{}", ranks_text(&odd));
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
