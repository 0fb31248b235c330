//! Splits the output of a rank into lines, adds a prefix to each line for the console, and keeps
//! the last lines for the report.
//!
//! The memory is bounded, even if a rank writes very long lines.

use dist::base::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The longest line that is forwarded as one line. A longer line is forwarded in pieces of this
/// size.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;

/// The number of last lines that are kept of each stream.
const TAIL_LINES: usize = 20;
/// The number of bytes that are kept of such a line.
const TAIL_LINE_BYTES: usize = 1000;

/// The last lines of a stream, shared between the thread that reads it and the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputTail(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl OutputTail {
    /// Returns the lines, oldest first, with replacement characters for invalid UTF-8.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = lock(&self.0);
        lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }

    fn push(&self, line: &[u8]) {
        let mut lines = lock(&self.0);
        let recycled = if lines.len() == TAIL_LINES { lines.pop_front() } else { None };
        let mut copy = recycled.unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(&line[..line.len().min(TAIL_LINE_BYTES)]);
        lines.push_back(copy);
    }
}

/// Splits one stream into lines.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    prefix: Vec<u8>,
    pending: Vec<u8>,
    tail: OutputTail,
}

impl LineSplitter {
    /// Creates a splitter that starts each line with `prefix` and keeps the last lines in `tail`.
    pub(crate) fn new(prefix: String, tail: OutputTail) -> Self {
        Self { prefix: prefix.into_bytes(), pending: Vec::new(), tail }
    }

    /// Appends each line that `bytes` completes to `out`, with prefix and line end.
    pub(crate) fn split(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE_BYTES - self.pending.len();
            if let Some(end) = bytes.iter().take(room + 1).position(|&byte| byte == b'\n') {
                self.pending.extend_from_slice(&bytes[..end]);
                bytes = &bytes[end + 1..];
                self.emit_line(out);
            } else {
                let (piece, rest) = bytes.split_at(bytes.len().min(room));
                self.pending.extend_from_slice(piece);
                bytes = rest;
                // The pending line has exactly the maximum length. If no byte follows, wait for the
                // next byte, which may be the line end.
                if !bytes.is_empty() {
                    self.emit_line(out);
                }
            }
        }
    }

    /// Appends an unfinished last line after the stream has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.emit_line(out);
        }
    }

    fn emit_line(&mut self, out: &mut Vec<u8>) {
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

    fn split_chunks(chunks: &[&[u8]]) -> (String, Vec<String>) {
        let tail = OutputTail::default();
        let mut lines = LineSplitter::new("[1] ".to_owned(), tail.clone());
        let mut out = Vec::new();
        for chunk in chunks {
            lines.split(chunk, &mut out);
        }
        lines.finish(&mut out);
        (String::from_utf8(out).unwrap(), tail.lines())
    }

    #[test]
    fn lines_are_whole_however_the_bytes_arrive() {
        let (out, tail) = split_chunks(&[b"a", b"b\n\nc", b"", b"d"]);
        assert_eq!(out, "[1] ab\n[1] \n[1] cd\n");
        assert_eq!(tail, ["ab", "", "cd"]);
        assert_eq!(split_chunks(&[]).0, "");
    }

    #[test]
    fn long_line_is_split_and_full_line_is_not() {
        let long = vec![b'x'; MAX_LINE_BYTES + 5];
        let (out, tail) = split_chunks(&[&long, b"\n"]);
        assert_eq!(out.lines().map(str::len).collect::<Vec<_>>(), [MAX_LINE_BYTES + 4, 5 + 4]);
        assert_eq!(tail[0].len(), TAIL_LINE_BYTES);
        let full = [vec![b'x'; MAX_LINE_BYTES], b"\ny\n".to_vec()].concat();
        assert_eq!(split_chunks(&[&full]).0.lines().count(), 2);
        assert_eq!(split_chunks(&[&full[..MAX_LINE_BYTES], b"\ny\n"]).0.lines().count(), 2);
    }

    #[test]
    fn only_the_last_lines_are_remembered() {
        let text: String = (0..50).map(|number| format!("{number}\n")).collect();
        let (_, tail) = split_chunks(&[text.as_bytes()]);
        assert_eq!(tail.len(), TAIL_LINES);
        assert_eq!((tail[0].as_str(), tail[19].as_str()), ("30", "49"));
    }
}
