//! The code that all programs share: it runs a program and reports its failure, writes output, and
//! formats numbers for users.

use clap::FromArgMatches;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The exit status of a program that failed.
pub const EXIT_FAILURE: u8 = 1;
/// The exit status for a wrong command line or unusable input.
pub const EXIT_USAGE: u8 = 2;

/// The largest number of ranges that [`ranges_text`] names.
const MAX_RANGES_SHOWN: usize = 16;

/// The reason why a program ends early, and its exit status.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// The message for the user. An empty message is not printed.
    pub message: String,
}

impl Failure {
    /// Creates a failure with exit status 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self { status: EXIT_FAILURE, message: message.into() }
    }

    /// Creates a failure for a wrong command line or unusable input.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { status: EXIT_USAGE, message: message.into() }
    }

    /// Returns true if a signal ended the program.
    pub fn is_signal(&self) -> bool {
        self.status > 128
    }
}

impl From<dist::base::Error> for Failure {
    fn from(error: dist::base::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Parses the words of this process by the description `command` of its command line, and runs
/// `body`, which returns the exit status.
pub fn run_program<Options: FromArgMatches, ProgramFailure: Into<Failure>>(
    mut command: clap::Command,
    body: impl FnOnce(&Options) -> Result<u8, ProgramFailure>,
) -> ExitCode {
    let name = command.get_name().to_owned();
    let parsed = command.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| {
        Options::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    });
    let options = match parsed {
        Ok(options) => options,
        Err(error) => {
            // clap prints help to standard output and errors to standard error.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE));
        }
    };
    match body(&options).map_err(Into::into) {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, message }) => {
            if !message.is_empty() {
                report_error(&name, &message);
            }
            ExitCode::from(status)
        }
    }
}

/// Writes to standard output and flushes it.
pub fn write_output(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes.as_ref()).and_then(|()| out.flush()).map_err(|cause| match cause.kind() {
        // The reader has closed the pipe, as in `dist-store list | head`.
        io::ErrorKind::BrokenPipe => Failure { status: 0, message: String::new() },
        _ => Failure::new(format!("cannot write to standard output: {cause}")),
    })
}

/// Writes to standard error, and ignores a closed stream.
pub fn write_error(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Writes a message of the program `name` to standard error.
pub fn report_error(name: &str, message: &str) {
    write_error(&format!("{name}: {message}\n"));
}

/// Formats ascending numbers as a list in which ranges are shortened, for example "0, 2-5, 9".
/// Counts the numbers after the first [`MAX_RANGES_SHOWN`] ranges.
pub fn ranges_text(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let named = ranges.iter().take(MAX_RANGES_SHOWN).map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    let named: Vec<String> = named.collect();
    let unnamed = ranges.iter().skip(MAX_RANGES_SHOWN);
    let rest: usize = unnamed.map(|(first, last)| last - first + 1).sum();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    named.join(", ") + &more
}

/// Formats a count with its noun: "1 key", "2 keys".
pub fn count_text(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_become_ranges() {
        assert_eq!(ranges_text(&[0, 1, 3]), "0, 1, 3");
        assert_eq!(ranges_text(&[2, 3, 4, 5, 9]), "2-5, 9");
        assert_eq!(ranges_text(&[]), "");
        let odd: Vec<usize> = (0..100).filter(|n| n % 2 == 1).collect();
        assert!(ranges_text(&odd).ends_with("31 and 34 more"), "{}", ranges_text(&odd));
    }

    #[test]
    fn counts_have_a_plural() {
        assert_eq!([count_text(1, "cell"), count_text(2, "cell")], ["1 cell", "2 cells"]);
    }
}
