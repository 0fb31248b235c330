//! Selection of an algorithm from the table.
//!
//! The selection is a pure function of facts that all ranks agree on: the arguments of the call,
//! and the [`GroupShape`] and [`AlgorithmRules`] of the group. All ranks therefore select the same
//! algorithm.

use super::operation::AlgorithmRequest;
use super::row::{Algorithm, GroupShape};
use super::rules::{AlgorithmRule, AlgorithmRules, former_algorithm_error};
use super::table::algorithms;
use crate::base::error::{Error, Result};
use crate::base::plural::Plural;
use crate::transport::OpKind;

/// The selected algorithm, and the rule that selected it.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmChoice<'r> {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// The rule that selected the algorithm; `None` if the call named the algorithm, or if no rule
    /// applied.
    pub rule: Option<&'r AlgorithmRule>,
}

/// Selects the algorithm for a call of `bytes` bytes:
///
/// 1. If the call names an algorithm, that algorithm.
/// 2. Otherwise the algorithm of the first rule that supports the call.
/// 3. If there is no such rule, the first row of the table that supports the call and pays.
///
/// # Errors
/// `InvalidArgument` if no algorithm has the requested name, or if the named algorithm does not
/// support the call. The message lists the algorithms that support the call.
pub fn select<'r>(
    kind: OpKind,
    bytes: usize,
    shape: &GroupShape,
    request: AlgorithmRequest<'_>,
    rules: &'r AlgorithmRules,
) -> Result<AlgorithmChoice<'r>> {
    let can = |row: &Algorithm| {
        row.can_run(bytes, shape) && (row.ordered || !request.needs_ordered_row())
    };
    if let Some(name) = request.name {
        let named = algorithms(kind).find(|row| row.name == name && can(row));
        let algorithm =
            named.ok_or_else(|| no_such_algorithm_error(kind, bytes, shape, request, name))?;
        return Ok(AlgorithmChoice { algorithm, rule: None });
    }
    let fits = |rule: &&AlgorithmRule| rule.bytes.contains(&bytes) && can(rule.algorithm);
    if let Some(rule) = rules.rules_for(kind).iter().find(fits) {
        return Ok(AlgorithmChoice { algorithm: rule.algorithm, rule: Some(rule) });
    }
    let chosen = algorithms(kind).find(|row| can(row) && (row.pays)(bytes, shape));
    match chosen {
        Some(algorithm) => Ok(AlgorithmChoice { algorithm, rule: None }),
        None => Err(Error::internal(format!("no algorithm supports this {}", kind.name()))),
    }
}

#[cold]
fn no_such_algorithm_error(
    kind: OpKind,
    bytes: usize,
    shape: &GroupShape,
    request: AlgorithmRequest<'_>,
    name: &str,
) -> Error {
    if let Some(error) = former_algorithm_error(kind, name) {
        return error;
    }
    let is_able = |row: &&Algorithm| {
        row.can_run(bytes, shape) && (row.ordered || !request.needs_ordered_row())
    };
    let names: Vec<_> = algorithms(kind).filter(is_able).map(|row| row.name).collect();
    let order = match request {
        AlgorithmRequest { canonical: true, .. } => " that reduces in rank order",
        AlgorithmRequest { at_once: true, .. } => " that computes exact averages of integers",
        _ => "",
    };
    let size = if bytes == usize::MAX { "any size".into() } else { format!("{bytes} bytes") };
    Error::invalid(format!(
        "{} has no algorithm \"{name}\"{order} for {size} in a group of {} on {}; usable algorithms: {}",
        kind.name(),
        Plural(shape.ranks, "rank"),
        Plural(shape.nodes, "node"),
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::super::row::AlgorithmBody;
    use super::super::rules::RuleSource;
    use super::*;
    use crate::base::nodes::NodeMap;
    use crate::transport::ctrl_slot::INLINE_BYTES;

    fn choose(
        kind: OpKind,
        bytes: usize,
        shape: &GroupShape,
        name: Option<&str>,
    ) -> Result<&'static str> {
        let wanted = AlgorithmRequest { name, ..AlgorithmRequest::default() };
        select(kind, bytes, shape, wanted, &AlgorithmRules::default())
            .map(|choice| choice.algorithm.name)
    }

    fn shape(labels: &[usize]) -> GroupShape {
        GroupShape::of(&NodeMap::by_label(labels), false)
    }

    fn shapes() -> Vec<GroupShape> {
        let mut all = Vec::new();
        for ranks in 1..=64 {
            for labels in
                [vec![0; ranks], (0..ranks).collect(), (0..ranks).map(|r| r / 3).collect()]
            {
                for is_oversubscribed in [false, true] {
                    all.push(GroupShape { is_oversubscribed, ..shape(&labels) });
                }
            }
        }
        all
    }

    #[test]
    fn every_call_has_an_algorithm_and_names_are_unique() {
        for kind in OpKind::ALL {
            for shape in shapes() {
                for bytes in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 1 << 16, 1 << 20, usize::MAX] {
                    for canonical in [false, true] {
                        let wanted = AlgorithmRequest { canonical, ..Default::default() };
                        let rules = AlgorithmRules::default();
                        let choice = select(kind, bytes, &shape, wanted, &rules);
                        let row = choice.unwrap().algorithm;
                        assert!(row.can_run(bytes, &shape) && (row.ordered || !canonical));
                        // The ranks of one node must round their data only once.
                        let is_folded_in_steps =
                            matches!(row.body, AlgorithmBody::Message(_)) && !row.ordered;
                        assert!(
                            !(kind.is_reduction() && is_folded_in_steps)
                                || shape.max_ranks_per_node == 1
                        );
                    }
                }
            }
            let mut names: Vec<_> = algorithms(kind).map(|row| row.name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn unknown_name_error_lists_the_algorithms() {
        let one = shape(&[0, 0]);
        let error = choose(OpKind::AllReduce, 100, &one, Some("ring")).unwrap_err();
        assert!(error.message().ends_with("one_shot, two_shot"), "{error}");
        assert!(choose(OpKind::AllReduce, 100, &one, Some("inline")).is_err());
        assert_eq!(choose(OpKind::AllReduce, 8, &one, Some("two_shot")).unwrap(), "two_shot");
    }

    #[test]
    fn shape_decides_the_chosen_algorithm() {
        let chosen = |labels: &[usize], bytes| {
            choose(OpKind::AllReduce, bytes, &shape(labels), None).unwrap()
        };
        let apart: Vec<usize> = (0..16).collect();
        let sizes = [8, 4 << 10, 32 << 10, 1 << 20, 2 << 20];
        assert_eq!(
            sizes.map(|bytes| chosen(&apart, bytes)),
            [
                "recursive_doubling",
                "recursive_doubling",
                "recursive_doubling",
                "rabenseifner",
                "ring"
            ]
        );
        assert_eq!(chosen(&[0, 1], 8), "linear");
        assert_eq!(
            sizes.map(|bytes| chosen(&[0, 0, 1, 1], bytes))[2..4],
            ["two_level", "split_rail"]
        );
        assert_eq!(chosen(&[0, 0, 1], 1 << 20), "two_level");
        for name in ["ring", "linear", "split_rail"] {
            assert!(choose(OpKind::AllReduce, 8, &shape(&[0, 1, 1]), Some(name)).is_ok());
        }
        assert!(choose(OpKind::AllReduce, 8, &shape(&[0, 1]), Some("split_rail")).is_err());
        assert!(choose(OpKind::AllReduce, 8, &shape(&[0, 1]), Some("two_shot")).is_err());
    }

    #[test]
    fn canonical_call_refuses_unordered_algorithms() {
        let wanted = |name| AlgorithmRequest { name, canonical: true, at_once: false };
        let (apart, none) = (shape(&[0, 1, 1]), AlgorithmRules::default());
        let choose = |kind, bytes, name| select(kind, bytes, &apart, wanted(name), &none);
        let error = choose(OpKind::AllReduce, 100, Some("ring")).unwrap_err();
        assert!(error.message().contains("\"ring\" that reduces in rank order"), "{error}");
        assert!(error.message().ends_with("usable algorithms: linear, ordered"), "{error}");
        assert_eq!(choose(OpKind::AllReduce, 1 << 20, None).unwrap().algorithm.name, "ordered");
        assert_eq!(choose(OpKind::Broadcast, 8, Some("chain")).unwrap().algorithm.name, "chain");
    }

    #[test]
    fn first_applicable_rule_chooses_the_algorithm() {
        let row = |name| super::super::rules::find_algorithm(OpKind::AllReduce, name).unwrap();
        let rule =
            |name, source| AlgorithmRule::for_all_calls(OpKind::AllReduce, row(name), source);
        let file =
            |name, bytes, nodes| AlgorithmRule { bytes, nodes, ..rule(name, RuleSource::File(1)) };
        let rules = vec![
            file("rabenseifner", 0..=1000, 2..=2),
            file("recursive_doubling", 0..=usize::MAX, 3..=9),
            file("two_shot", 0..=usize::MAX, 0..=usize::MAX),
            rule("inline", RuleSource::Environment),
        ];
        let chosen = |labels: &[usize], bytes, canonical| {
            let wanted = AlgorithmRequest { canonical, ..AlgorithmRequest::default() };
            let shape = shape(labels);
            let rules = AlgorithmRules::new(rules.clone(), &shape);
            let choice = select(OpKind::AllReduce, bytes, &shape, wanted, &rules).unwrap();
            (choice.algorithm.name, choice.rule.map(|rule| rule.source))
        };
        let (env, row) = (Some(RuleSource::Environment), Some(RuleSource::File(1)));
        assert_eq!(chosen(&[0, 0], 8, false), ("inline", env));
        assert_eq!(chosen(&[0, 0], 100, false), ("two_shot", row));
        assert_eq!(chosen(&[0, 1], 100, false), ("rabenseifner", row));
        assert_eq!(chosen(&[0, 1], 100, true), ("linear", None));
        assert_eq!(chosen(&[0, 1], 1001, false), ("linear", None));
        assert_eq!(chosen(&[0, 1, 2], 8, false), ("recursive_doubling", row));
        assert_eq!(chosen(&[0, 1, 2], usize::MAX, false), ("recursive_doubling", row));
    }
}
