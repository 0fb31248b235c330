//! Parses a command of a worker: a verb, arguments, and `key=value` pairs.

use std::str::FromStr;

/// A parsed command.
#[derive(Clone, Debug)]
pub(super) struct CommandWords<'a> {
    line: &'a str,
    verb: &'a str,
    arguments: Vec<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> CommandWords<'a> {
    pub(super) fn parse(line: &'a str) -> Self {
        let line = line.trim();
        let mut words = line.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let (pairs, arguments): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        let pairs = pairs.into_iter().filter_map(|word| word.split_once('=')).collect();
        Self { line, verb, arguments, pairs }
    }

    /// Returns the whole command.
    pub(super) fn line(&self) -> &'a str {
        self.line
    }

    /// Returns the first word.
    pub(super) fn verb(&self) -> &'a str {
        self.verb
    }

    /// Returns the text after the first word.
    pub(super) fn rest(&self) -> &'a str {
        self.line[self.verb.len()..].trim_start()
    }

    /// Returns the argument at an index.
    pub(super) fn at(&self, index: usize) -> &'a str {
        self.arguments.get(index).copied().unwrap_or_else(|| panic!("too short: {}", self.line))
    }

    /// Returns the value of a pair.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// Returns the value of a pair as a number.
    pub(super) fn number<T: FromStr>(&self, key: &str) -> Option<T> {
        let parse = |value: &str| value.parse().ok();
        self.text(key).map(|value| parse(value).unwrap_or_else(|| panic!("{key}={value}")))
    }

    /// Returns the number of elements: the last argument, or the second last if a root follows.
    pub(super) fn count(&self) -> usize {
        let behind = usize::from(self.is_rooted());
        self.at(self.arguments.len() - 1 - behind).parse().unwrap()
    }

    /// Returns the root, which is the last argument.
    pub(super) fn root(&self) -> i32 {
        self.at(self.arguments.len() - 1).parse().unwrap()
    }

    fn is_rooted(&self) -> bool {
        matches!(self.verb, "reduce" | "broadcast")
    }
}
