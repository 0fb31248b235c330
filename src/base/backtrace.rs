//! Back-traces of calls into the library. A capture is cheap; the text is made only when a program
//! requests it.
//!
//! The text starts with the exported function that the program called, without the library's inner
//! frames, and has a maximum length.

use super::debug;
use std::backtrace::Backtrace;

/// The maximum length of the text in bytes.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// The prefix of the library's exported functions.
const EXPORTED_PREFIX: &str = "dist_";

/// Captures the frames of the calling thread, or returns `None` if back-traces are disabled.
pub fn capture() -> Option<Backtrace> {
    debug::is_backtrace_enabled().then(Backtrace::force_capture)
}

/// Renders a back-trace, one or two lines per frame, starting with the exported function.
pub fn render(backtrace: &Backtrace) -> String {
    trim_frames(&backtrace.to_string())
}

/// Omits the lines before the first exported function, if there is one. Cuts a text of more than
/// [`MAX_TEXT_BYTES`] at the end of a line.
fn trim_frames(text: &str) -> String {
    let is_exported = |line: &&str| {
        let name = line.split_once(": ").map(|(_, name)| name.rsplit("::").next().unwrap_or(name));
        name.is_some_and(|name| name.starts_with(EXPORTED_PREFIX))
    };
    let first_kept = text.lines().position(|line| is_exported(&line)).unwrap_or(0);
    let mut short = String::new();
    for line in text.lines().skip(first_kept) {
        if short.len() + line.len() >= MAX_TEXT_BYTES {
            short.push_str("...\n");
            break;
        }
        short.push_str(line);
        short.push('\n');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_frames_are_omitted_and_length_is_bounded() {
        let text = "   0: std::backtrace::x\n             at a.rs:1\n   1: dist::ffi::guard::status\n   \
                    2: dist::ffi::collective::dist_barrier\n             at b.rs:2\n   3: train\n   4: main\n";
        let short = trim_frames(text);
        assert!(short.starts_with("   2: dist::ffi::collective::dist_barrier\n"), "{short}");
        assert!(short.ends_with("   4: main\n"), "{short}");
        // Without names, no frame is omitted.
        let unknown = "   0: <unknown>\n   1: <unknown>\n";
        assert_eq!(trim_frames(unknown), unknown);
        let deep: String = (0..10_000).map(|i| format!("{i}: f\n")).collect();
        assert!(trim_frames(&deep).len() <= MAX_TEXT_BYTES + 4);
    }

    #[test]
    fn a_captured_place_has_its_functions() {
        assert!(render(&Backtrace::force_capture()).contains("a_captured_place_has_its_functions"));
    }
}
