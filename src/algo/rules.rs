//! Algorithm rules. A rule selects an algorithm for a set of calls and overrides the order of the
//! table. Rules come from the options of the back end, the environment or a tuning file.
//!
//! A rule is ignored for calls that its algorithm does not support, so that one tuning file serves
//! many groups. This module performs no input or output; the back end reads the options, the
//! environment and the file.

use super::row::{Algorithm, GroupShape};
use super::table::algorithms;
use crate::base::error::{Error, Result};
use crate::base::renamed::{self, NameKind};
use crate::base::sort::sort_by_key;
use crate::transport::OpKind;
use std::fmt;
use std::ops::RangeInclusive;

/// The source of a rule. The variants are in order of precedence: of the rules that support a call,
/// the rule with the first source applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleSource {
    /// The options of the back end.
    Options,
    /// The environment.
    Environment,
    /// The tuning file. The number is the row of the file, counted from 1.
    File(usize),
}

impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options => f.write_str("options"),
            Self::Environment => f.write_str("environment"),
            Self::File(row) => write!(f, "tuning file, row {row}"),
        }
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct AlgorithmRule {
    /// The operation.
    pub kind: OpKind,
    /// The algorithm for the operation.
    pub algorithm: &'static Algorithm,
    /// The range of count arguments in bytes to which the rule applies. In an operation whose
    /// counts only the sender and the receiver know, the count argument is unlimited, so only a
    /// rule with an unlimited range applies.
    pub bytes: RangeInclusive<usize>,
    /// The range of group sizes to which the rule applies.
    pub ranks: RangeInclusive<usize>,
    /// The range of node counts to which the rule applies.
    pub nodes: RangeInclusive<usize>,
    /// The source of the rule.
    pub source: RuleSource,
}

impl PartialEq for AlgorithmRule {
    fn eq(&self, other: &Self) -> bool {
        let key = |rule: &Self| (rule.kind, rule.algorithm.name, rule.source);
        let ranges = |rule: &Self| [rule.bytes.clone(), rule.ranks.clone(), rule.nodes.clone()];
        key(self) == key(other) && ranges(self) == ranges(other)
    }
}

impl Eq for AlgorithmRule {}

impl AlgorithmRule {
    /// Returns a rule for every call of an operation.
    pub fn for_all_calls(kind: OpKind, algorithm: &'static Algorithm, source: RuleSource) -> Self {
        let all = || 0..=usize::MAX;
        Self { kind, algorithm, bytes: all(), ranks: all(), nodes: all(), source }
    }

    fn is_for_shape(&self, shape: &GroupShape) -> bool {
        self.ranks.contains(&shape.ranks) && self.nodes.contains(&shape.nodes)
    }
}

/// The rules of one group, in order of precedence.
#[derive(Debug, Default)]
pub struct AlgorithmRules {
    /// The rules by operation. Most groups have none.
    by_kind: Option<Box<[Vec<AlgorithmRule>; OpKind::ALL.len()]>>,
}

impl AlgorithmRules {
    /// Returns the subset of `rules` that applies to a group of this shape.
    pub fn new(mut rules: Vec<AlgorithmRule>, shape: &GroupShape) -> Self {
        sort_by_key(&mut rules, |rule| rule.source);
        let mut all = Self::default();
        for rule in rules.into_iter().filter(|rule| rule.is_for_shape(shape)) {
            all.by_kind.get_or_insert_default()[rule.kind as usize].push(rule);
        }
        all
    }

    /// Returns the rules for one operation.
    pub fn rules_for(&self, kind: OpKind) -> &[AlgorithmRule] {
        self.by_kind.as_ref().map_or(&[], |rules| &rules[kind as usize])
    }
}

/// Returns the operation with this name.
///
/// # Errors
/// `InvalidArgument`, with the names of all operations.
pub fn find_operation(name: &str) -> Result<OpKind> {
    OpKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = OpKind::ALL.map(OpKind::name).join(", ");
        Error::invalid(format!("unknown operation \"{name}\"; the operations are: {names}"))
    })
}

/// Returns the algorithm of an operation with this name.
///
/// # Errors
/// `InvalidArgument`. If `name` is a former name of an algorithm, the message contains the present
/// name, otherwise the names of all algorithms of the operation.
pub fn find_algorithm(kind: OpKind, name: &str) -> Result<&'static Algorithm> {
    algorithms(kind).find(|row| row.name == name).ok_or_else(|| {
        if let Some(error) = former_algorithm_error(kind, name) {
            return error;
        }
        let names: Vec<&str> = algorithms(kind).map(|row| row.name).collect();
        let (kind, names) = (kind.name(), names.join(", "));
        Error::invalid(format!("{kind} has no algorithm \"{name}\"; its algorithms are: {names}"))
    })
}

/// Returns the error for a former name of one of the operation's algorithms, or `None` for any
/// other name.
pub fn former_algorithm_error(kind: OpKind, name: &str) -> Option<Error> {
    let new = renamed::new_name(NameKind::Algorithm, name)?;
    let is_of_kind = algorithms(kind).any(|row| row.name == new);
    renamed::former_name_error(NameKind::Algorithm, name).filter(|_| is_of_kind)
}

/// Parses rules such as `all_reduce=ring;broadcast=binomial`. The separator is a semicolon or a
/// comma.
///
/// # Errors
/// `InvalidArgument`, with the invalid entry and the valid names.
pub fn parse_rules(text: &str, source: RuleSource) -> Result<Vec<AlgorithmRule>> {
    let entries = text.split([';', ',']).map(str::trim).filter(|entry| !entry.is_empty());
    let rule = |entry: &str| {
        let Some((kind, name)) = entry.split_once('=') else {
            let message = format!("\"{entry}\" is not of the form OPERATION=ALGORITHM");
            return Err(Error::invalid(message));
        };
        let kind = find_operation(kind.trim())?;
        Ok(AlgorithmRule::for_all_calls(kind, find_algorithm(kind, name.trim())?, source))
    };
    entries.map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::operation::AlgorithmRequest;
    use crate::algo::select::select;
    use crate::base::nodes::NodeMap;
    use crate::base::renamed::NAME_CHANGES;

    fn renamed_algorithms() -> impl Iterator<Item = (OpKind, &'static str, &'static str)> {
        let changes = NAME_CHANGES.iter().filter(|change| change.kind == NameKind::Algorithm);
        changes.flat_map(|change| {
            let of_kind = |&kind: &OpKind| algorithms(kind).any(|row| row.name == change.new);
            let kinds: Vec<_> = OpKind::ALL.into_iter().filter(of_kind).collect();
            assert!(!kinds.is_empty(), "no operation has an algorithm {}", change.new);
            kinds.into_iter().map(|kind| (kind, change.old, change.new))
        })
    }

    #[test]
    fn rules_refuse_former_names_with_the_present_name() {
        for (kind, old, new) in renamed_algorithms() {
            let error = parse_rules(&format!("{}={old}", kind.name()), RuleSource::Environment)
                .unwrap_err();
            let expected = format!("algorithm \"{old}\" is now called \"{new}\"");
            assert!(error.message().starts_with(&expected), "{error}");
            assert_eq!(
                parse_rules(&format!("{}={new}", kind.name()), RuleSource::Options).unwrap().len(),
                1
            );
        }
    }

    #[test]
    fn calls_refuse_former_names_with_the_present_name() {
        let rules = AlgorithmRules::default();
        for (kind, old, new) in renamed_algorithms() {
            for canonical in [false, true] {
                let wanted = AlgorithmRequest { name: Some(old), canonical, at_once: false };
                for labels in [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 3]] {
                    let shape = GroupShape::of(&NodeMap::by_label(&labels), false);
                    let error = select(kind, 8, &shape, wanted, &rules).unwrap_err();
                    let expected = format!("algorithm \"{old}\" is now called \"{new}\"");
                    assert!(error.message().starts_with(&expected), "{error}");
                }
            }
        }
    }

    #[test]
    fn no_algorithm_has_a_former_name() {
        for kind in OpKind::ALL {
            for row in algorithms(kind) {
                assert!(renamed::new_name(NameKind::Algorithm, row.name).is_none(), "{}", row.name);
            }
        }
    }

    #[test]
    fn former_name_of_another_operation_lists_algorithms() {
        let error = find_algorithm(OpKind::AllReduce, "tree").unwrap_err();
        assert!(error.message().contains("its algorithms are: inline, eager"), "{error}");
    }
}
