//! Bytes become lines: prefixed for the console, and the last ones remembered for the report.
//!
//! Memory is bounded whatever a rank writes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The longest line that is passed on whole; a longer one goes in pieces of this size.
pub(crate) const MAX_LINE: usize = 64 * 1024;

/// How many lines of a stream are remembered, and how many bytes of each.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 1000;

/// The last lines of a stream, shared between the thread that reads it and the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Tail {
    /// The lines, oldest first. Bytes that are no text are shown as such.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }

    fn push(&self, line: &[u8]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recycled = if lines.len() == TAIL_LINES { lines.pop_front() } else { None };
        let mut kept = recycled.unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(&line[..line.len().min(TAIL_LINE_BYTES)]);
        lines.push_back(kept);
    }
}

/// Cuts one stream into lines.
#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Vec<u8>,
    pending: Vec<u8>,
    tail: Tail,
}

impl Lines {
    /// Lines will begin with `prefix`; the last ones are kept in `tail`.
    pub(crate) fn new(prefix: String, tail: Tail) -> Self {
        Self { prefix: prefix.into_bytes(), pending: Vec::new(), tail }
    }

    /// Appends to `out` every line that `bytes` completes, prefixed and with its end.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.pending.len();
            if let Some(end) = bytes.iter().take(room + 1).position(|&byte| byte == b'\n') {
                self.pending.extend_from_slice(&bytes[..end]);
                bytes = &bytes[end + 1..];
                self.emit(out);
            } else {
                let (piece, rest) = bytes.split_at(bytes.len().min(room));
                self.pending.extend_from_slice(piece);
                bytes = rest;
                // A line of exactly the full length waits for what comes next: it may be its end.
                if !bytes.is_empty() {
                    self.emit(out);
                }
            }
        }
    }

    /// Appends what is left when the stream ends without a line end.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.emit(out);
        }
    }

    fn emit(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.pending);
        out.push(b'\n');
        self.tail.push(&self.pending);
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> (String, Vec<String>) {
        let tail = Tail::default();
        let mut lines = Lines::new("[1] ".to_owned(), tail.clone());
        let mut out = Vec::new();
        for chunk in chunks {
            lines.feed(chunk, &mut out);
        }
        lines.finish(&mut out);
        (String::from_utf8(out).unwrap(), tail.lines())
    }

    #[test]
    fn lines_are_whole_however_the_bytes_arrive() {
        let (out, tail) = cut(&[b"a", b"b\n\nc", b"", b"d"]);
        assert_eq!(out, "[1] ab\n[1] \n[1] cd\n");
        assert_eq!(tail, ["ab", "", "cd"]);
        assert_eq!(cut(&[]).0, "");
    }

    #[test]
    fn a_long_line_goes_in_pieces_and_a_full_one_whole() {
        let long = vec![b'x'; MAX_LINE + 5];
        let (out, tail) = cut(&[&long, b"\n"]);
        assert_eq!(out.lines().map(str::len).collect::<Vec<_>>(), [MAX_LINE + 4, 5 + 4]);
        assert_eq!(tail[0].len(), TAIL_LINE_BYTES);
        let full = [vec![b'x'; MAX_LINE], b"\ny\n".to_vec()].concat();
        assert_eq!(cut(&[&full]).0.lines().count(), 2);
        assert_eq!(cut(&[&full[..MAX_LINE], b"\ny\n"]).0.lines().count(), 2);
    }

    #[test]
    fn only_the_last_lines_are_remembered() {
        let text: String = (0..50).map(|number| format!("{number}\n")).collect();
        let (_, tail) = cut(&[text.as_bytes()]);
        assert_eq!(tail.len(), TAIL_LINES);
        assert_eq!((tail[0].as_str(), tail[19].as_str()), ("30", "49"));
    }
}
