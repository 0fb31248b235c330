//! The definition of a new group, and the error for conflicting definitions. A definition has the
//! properties of the new group that must be equal on all ranks that create it.

use crate::api::membership::wire::{WireReader, WireWriter};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{MAX_WORLD_SIZE, Rank};
use std::fmt;

/// The maximum number of ranks that a list in a text shows.
const MAX_RANKS_SHOWN: usize = 64;
/// The maximum number of different definitions that an error shows.
pub(super) const MAX_DEFINITIONS_SHOWN: usize = 8;

/// The call that creates a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CreationCall {
    /// `dist_group_new`, called by all ranks of the parent.
    New = 0,
    /// `dist_group_new`, called by the members only.
    MembersOnly = 1,
    /// `dist_group_split`, called by all ranks of the parent.
    Split = 2,
}

impl CreationCall {
    /// Returns the call with this number. Returns `None` for an invalid number.
    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::New, Self::MembersOnly, Self::Split]
            .into_iter()
            .find(|&creation_call| creation_call as u8 == code)
    }
}

/// The properties of a new group that must be equal on all ranks that create it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupDefinition {
    creation_call: CreationCall,
    name: String,
    /// The members' ranks in the parent, in the order of the new ranks. Empty for a split, where
    /// the colours determine the members.
    ranks: Vec<Rank>,
    backend: String,
}

impl GroupDefinition {
    pub(super) fn new(
        creation_call: CreationCall,
        name: &str,
        ranks: &[Rank],
        backend: &str,
    ) -> Self {
        Self {
            creation_call,
            name: name.to_owned(),
            ranks: ranks.to_vec(),
            backend: backend.to_owned(),
        }
    }

    pub(super) fn creation_call(&self) -> CreationCall {
        self.creation_call
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = WireWriter(Vec::new());
        out.byte(self.creation_call as u8)
            .text(&self.name)
            .text(&self.backend)
            .len(self.ranks.len());
        for &rank in &self.ranks {
            out.len(rank);
        }
        out.0
    }

    /// Decodes a definition. Returns `None` for invalid bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = WireReader(bytes);
        let creation_call = CreationCall::from_code(input.byte()?)?;
        let (name, backend, count) = (input.text()?, input.text()?, input.len()?);
        if count > MAX_WORLD_SIZE {
            return None;
        }
        let ranks = (0..count).map(|_| input.len()).collect::<Option<_>>()?;
        input.0.is_empty().then_some(Self { creation_call, name, ranks, backend })
    }

    /// Returns a 16-byte hash of the definition.
    pub(super) fn fingerprint(&self) -> [u8; 16] {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(&self.encode()).as_bytes()[..16]);
        short
    }
}

impl fmt::Display for GroupDefinition {
    /// Formats the definition, for example `group "a" of ranks [0, 2] (back end native)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.creation_call {
            CreationCall::Split if self.backend.is_empty() => {
                f.write_str("a split without participation")
            }
            CreationCall::Split if self.name.is_empty() => {
                write!(f, "a split into unnamed groups (back end {})", self.backend)
            }
            CreationCall::Split => {
                write!(f, "a split into groups \"{}\" (back end {})", self.name, self.backend)
            }
            CreationCall::New | CreationCall::MembersOnly => {
                match self.name.as_str() {
                    "" => f.write_str("an unnamed group")?,
                    name => write!(f, "group \"{name}\"")?,
                }
                write!(f, " of ranks {}", format_rank_list(&self.ranks))?;
                let by = if self.creation_call == CreationCall::MembersOnly {
                    ", created by its members only"
                } else {
                    ""
                };
                write!(f, " (back end {}{by})", self.backend)
            }
        }
    }
}

/// Formats at most [`MAX_RANKS_SHOWN`] ranks as a list.
pub(super) fn format_rank_list(ranks: &[Rank]) -> String {
    let shown: Vec<String> = ranks.iter().take(MAX_RANKS_SHOWN).map(ToString::to_string).collect();
    let more = ranks.len() - shown.len();
    let rest = if more == 0 { String::new() } else { format!(", and {more} more") };
    format!("[{}{rest}]", shown.join(", "))
}

/// Returns "rank 1" or "ranks 1, 2".
pub(super) fn format_ranks(ranks: &[Rank]) -> String {
    let text = format_rank_list(ranks);
    let text = text.trim_start_matches('[').trim_end_matches(']');
    format!("rank{} {text}", if ranks.len() == 1 { "" } else { "s" })
}

/// Returns the error for ranks that disagree. The error names every definition and the ranks of the
/// parent that have it. `claims` has a rank and its definition in each entry.
pub(super) fn conflict_error(parent: &str, claims: &[(Rank, GroupDefinition)]) -> Error {
    let mut different: Vec<(Vec<Rank>, &GroupDefinition)> = Vec::new();
    for (rank, definition) in claims {
        match different.iter_mut().find(|(_, existing)| *existing == definition) {
            Some((ranks, _)) => ranks.push(*rank),
            None => different.push((vec![*rank], definition)),
        }
    }
    let more = different.len().saturating_sub(MAX_DEFINITIONS_SHOWN);
    different.truncate(MAX_DEFINITIONS_SHOWN);
    grouped_conflict_error(parent, &different, more)
}

/// Returns the same error as [`conflict_error`]. `different` has each definition once, with the
/// ranks that have it. `more` is the number of further definitions, which are not shown.
pub(super) fn grouped_conflict_error(
    parent: &str,
    different: &[(Vec<Rank>, &GroupDefinition)],
    more: usize,
) -> Error {
    let describe = |(ranks, definition): &(Vec<Rank>, &GroupDefinition)| {
        let verb = if ranks.len() == 1 { "defines" } else { "define" };
        format!("{} {verb} {definition}", format_ranks(ranks))
    };
    let mut statements: Vec<String> = different.iter().map(describe).collect();
    if more > 0 {
        statements.push(format!("and {more} more definitions"));
    }
    let lists: Vec<&[Rank]> = different.iter().map(|(_, known)| known.ranks()).collect();
    if let [one, other, ..] = lists[..]
        && one.len().max(other.len()) > MAX_RANKS_SHOWN
        && let Some(index) = (0..one.len().max(other.len())).find(|&i| one.get(i) != other.get(i))
    {
        statements.push(format!("the first two lists differ from index {index} on"));
    }
    let message = format!(
        "ranks of group {parent} define a new group differently: {}",
        statements.join("; ")
    );
    Error::new(ErrorKind::Mismatch, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_round_trips_and_differs_from_others() {
        let base = GroupDefinition::new(CreationCall::New, "g", &[0, 5, 65_535], "native");
        assert_eq!(GroupDefinition::decode(&base.encode()), Some(base.clone()));
        assert_eq!(GroupDefinition::decode(&[9, 0, 0]), None);
        for other in [
            GroupDefinition::new(CreationCall::MembersOnly, "g", &[0, 5, 65_535], "native"),
            GroupDefinition::new(CreationCall::New, "h", &[0, 5, 65_535], "native"),
            GroupDefinition::new(CreationCall::New, "g", &[5, 0, 65_535], "native"),
            GroupDefinition::new(CreationCall::New, "g", &[0, 5, 65_535], "other"),
        ] {
            assert_ne!(other.fingerprint(), base.fingerprint());
        }
    }

    #[test]
    fn conflict_error_lists_definitions_and_their_ranks() {
        let claim = |rank, ranks: &[Rank]| {
            (rank, GroupDefinition::new(CreationCall::New, "g", ranks, "native"))
        };
        let error =
            conflict_error("world", &[claim(0, &[0, 1]), claim(1, &[1, 0]), claim(2, &[0, 1])]);
        let text = error.message();
        for part in ["ranks 0, 2 define group \"g\" of ranks [0, 1]", "rank 1 defines", "[1, 0]"] {
            assert!(text.contains(part), "{text}");
        }
        let long: Vec<Rank> = (0..100).collect();
        let mut other = long.clone();
        other[90] = 200;
        let error = conflict_error("world", &[claim(0, &long), claim(1, &other)]);
        assert!(error.message().contains("differ from index 90 on"), "{error}");
        assert!(error.message().contains("63, and 36 more]"), "{error}");
    }

    #[test]
    fn conflict_error_lists_a_bounded_number_of_definitions() {
        let claims: Vec<_> = (0..MAX_DEFINITIONS_SHOWN + 2)
            .map(|rank| (rank, GroupDefinition::new(CreationCall::New, "g", &[rank], "native")))
            .collect();
        let error = conflict_error("world", &claims);
        assert!(error.message().contains("rank 7 defines group \"g\" of ranks [7]"), "{error}");
        assert!(!error.message().contains("rank 8 defines"), "{error}");
        assert!(error.message().contains("and 2 more definitions"), "{error}");
    }
}
