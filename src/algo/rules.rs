//! Overrides of the table: which algorithm to take for which calls, as somebody asked for by
//! options, environment or a tuning file.
//!
//! A rule that cannot do a call is passed over, so that one file serves many groups. Pure: reading
//! them is the back end's.

use super::select::GroupShape;
use super::table::{Algorithm, algorithms};
use crate::base::error::{Error, Result};
use crate::base::renamed::{self, NameKind};
use crate::transport::OpKind;
use std::fmt;
use std::ops::RangeInclusive;

/// Who asked for an override; the first of them that can do a call counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleSource {
    /// The options of the back end.
    Options,
    /// The environment.
    Environment,
    /// The row of the tuning file, from 1.
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

/// One override.
#[derive(Clone, Debug)]
pub struct AlgorithmRule {
    /// The operation.
    pub kind: OpKind,
    /// What to take for it.
    pub algorithm: &'static Algorithm,
    /// For count arguments of so many bytes. Where ranks compare counts pairwise nobody knows them,
    /// and a rule has no limits.
    pub bytes: RangeInclusive<usize>,
    /// In groups of so many ranks.
    pub ranks: RangeInclusive<usize>,
    /// On so many nodes.
    pub nodes: RangeInclusive<usize>,
    /// Who asked for it.
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
    /// For every call of an operation.
    pub fn for_all_calls(kind: OpKind, algorithm: &'static Algorithm, source: RuleSource) -> Self {
        let all = || 0..=usize::MAX;
        Self { kind, algorithm, bytes: all(), ranks: all(), nodes: all(), source }
    }

    fn is_for_shape(&self, shape: &GroupShape) -> bool {
        self.ranks.contains(&shape.ranks) && self.nodes.contains(&shape.nodes)
    }
}

/// The overrides of one group, in order of precedence.
#[derive(Debug, Default)]
pub struct AlgorithmRules {
    /// Most groups have none.
    by_kind: Option<Box<[Vec<AlgorithmRule>; OpKind::ALL.len()]>>,
}

impl AlgorithmRules {
    /// Those of `rules` that a group of this shape has any use for.
    pub fn new(mut rules: Vec<AlgorithmRule>, shape: &GroupShape) -> Self {
        rules.sort_by_key(|rule| rule.source);
        let mut all = Self::default();
        for rule in rules.into_iter().filter(|rule| rule.is_for_shape(shape)) {
            all.by_kind.get_or_insert_default()[rule.kind as usize].push(rule);
        }
        all
    }

    /// Those for one operation.
    pub fn rules_for(&self, kind: OpKind) -> &[AlgorithmRule] {
        self.by_kind.as_ref().map_or(&[], |rules| &rules[kind as usize])
    }
}

/// The operation with this name.
///
/// # Errors
/// `InvalidArgument`, listing those there are.
pub fn find_operation(name: &str) -> Result<OpKind> {
    OpKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = OpKind::ALL.map(OpKind::name).join(", ");
        Error::invalid(format!("there is no operation \"{name}\"; there are: {names}"))
    })
}

/// The algorithm of an operation with this name.
///
/// # Errors
/// `InvalidArgument`, with the present name if this is a former one, else with the names of all
/// algorithms of the operation.
pub fn find_algorithm(kind: OpKind, name: &str) -> Result<&'static Algorithm> {
    algorithms(kind).find(|row| row.name == name).ok_or_else(|| {
        if let Some(error) = former_algorithm_error(kind, name) {
            return error;
        }
        let names: Vec<&str> = algorithms(kind).map(|row| row.name).collect();
        let (kind, names) = (kind.name(), names.join(", "));
        Error::invalid(format!("{kind} has no algorithm \"{name}\"; there are: {names}"))
    })
}

/// The refusal of a former name of one of the operation's algorithms; `None` for any other name.
pub fn former_algorithm_error(kind: OpKind, name: &str) -> Option<Error> {
    let new = renamed::new_name(NameKind::Algorithm, name)?;
    let is_of_kind = algorithms(kind).any(|row| row.name == new);
    renamed::former_name_error(NameKind::Algorithm, name).filter(|_| is_of_kind)
}

/// What "all_reduce=ring;broadcast=binomial" asks for; commas are as good as semicolons.
///
/// # Errors
/// `InvalidArgument`, naming the entry and what there is.
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
    use crate::algo::select::{AlgorithmRequest, select};
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
                let wanted = AlgorithmRequest { name: Some(old), canonical };
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
        assert!(error.message().contains("there are: inline, eager"), "{error}");
    }
}
