//! Where in a program a call was made: captured cheaply, put into words only when somebody reads
//! it.
//!
//! What is above the call inside the library is left out, and the rest is bounded.

use super::debug;
use std::backtrace::Backtrace;

/// The longest text in bytes.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// What the names of the library's exported functions begin with.
const EXPORTED_PREFIX: &str = "dist_";

/// The calling thread's frames; `None` where nobody wants them.
pub fn capture() -> Option<Backtrace> {
    debug::is_backtrace_enabled().then(Backtrace::force_capture)
}

/// In words, one or two lines for each frame, from the exported function on.
pub fn render(backtrace: &Backtrace) -> String {
    trim_frames(&backtrace.to_string())
}

/// From the first exported function on, where there is one, and whole lines only.
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
        // Where nothing has a name, nothing is left out.
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
