//! The algorithm part of `dist_group_describe`. It contains, for each operation and each range of
//! sizes, the selected algorithm and the source of the selection (a rule or the table).

use crate::algo::rules::{AlgorithmRules, RuleSource};
use crate::algo::{AlgorithmRequest, GroupShape, algorithms, select};
use crate::transport::OpKind;
use crate::transport::ctrl_slot::INLINE_BYTES;
use serde_json::{Map, Value, json};

/// Returns, for each operation, the selected algorithms and the available algorithms.
pub(super) fn describe(shape: &GroupShape, rules: &AlgorithmRules) -> Value {
    let mut all = Map::new();
    for kind in OpKind::ALL {
        let known: Vec<_> = algorithms(kind)
            .map(|row| json!({ "name": row.name, "description": row.description }))
            .collect();
        let selected = selected_ranges(kind, shape, rules);
        all.insert(kind.name().to_owned(), json!({ "chosen": selected, "known": known }));
    }
    Value::Object(all)
}

fn selected_ranges(kind: OpKind, shape: &GroupShape, rules: &AlgorithmRules) -> Vec<Value> {
    let select_for = |bytes: usize| {
        let size = if kind.is_pairwise() { usize::MAX } else { bytes };
        let selection = select(kind, size, shape, AlgorithmRequest::default(), rules).ok()?;
        Some((selection.algorithm.name, selection.rule.map(|rule| rule.source)))
    };
    let to_json = |(bytes, choice): (usize, Option<(&str, Option<RuleSource>)>)| {
        let (name, rule_source) = choice?;
        let source_name = rule_source.map_or("table".to_owned(), |source| source.to_string());
        Some(json!({ "from_bytes": bytes, "algorithm": name, "source": source_name }))
    };
    selection_changes(&sample_sizes(kind, rules), select_for)
        .into_iter()
        .filter_map(to_json)
        .collect()
}

/// Returns the first size and each size at which the selection changes, together with the
/// selection. The function compares neighbours in `sizes`. If their selections differ, it finds the
/// exact size of the change by bisection.
fn selection_changes<T: Copy + PartialEq>(
    sizes: &[usize],
    choose: impl Fn(usize) -> T,
) -> Vec<(usize, T)> {
    let first = sizes.first().map(|&size| (size, choose(size)));
    let mut found: Vec<(usize, T)> = first.into_iter().collect();
    for pair in sizes.windows(2) {
        let (mut low, next) = (pair[0], pair[1]);
        let mut last = choose(low);
        // There may be several changes between two neighbours.
        while choose(next) != last {
            let mut high = next;
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if choose(middle) == last { low = middle } else { high = middle }
            }
            (low, last) = (high, choose(high));
            found.push((low, last));
        }
    }
    found
}

/// Returns the sizes that [`selection_changes`] compares. Between two neighbours, there is at most
/// one limit of each row of the table. The sizes are the limits of all rules, each power of two and
/// its successor, and the limit of inline payloads and its successor.
fn sample_sizes(kind: OpKind, rules: &AlgorithmRules) -> Vec<usize> {
    let ends = rules.rules_for(kind).iter().flat_map(|rule| {
        [Some(*rule.bytes.start()), rule.bytes.end().checked_add(1)].into_iter().flatten()
    });
    let powers = (0..40).flat_map(|exponent| [1 << exponent, (1 << exponent) + 1]);
    let mut sizes: Vec<usize> =
        powers.chain([0, INLINE_BYTES, INLINE_BYTES + 1]).chain(ends).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::rules::{AlgorithmRule, find_algorithm};
    use crate::base::nodes::NodeMap;

    #[test]
    fn describe_lists_algorithm_source_and_first_size() {
        let shape = GroupShape::of(&NodeMap::by_label(&[0, 0]), false);
        let row = find_algorithm(OpKind::AllReduce, "two_shot").unwrap();
        let rule = AlgorithmRule::for_all_calls(OpKind::AllReduce, row, RuleSource::File(3));
        let rules = AlgorithmRules::new(vec![AlgorithmRule { bytes: 1001..=2000, ..rule }], &shape);
        let all = describe(&shape, &rules);
        let expected = [
            (0, "inline", "table"),
            (INLINE_BYTES + 1, "eager", "table"),
            (1001, "two_shot", "tuning file, row 3"),
            (2001, "eager", "table"),
            (4096, "one_shot", "table"),
            ((64 << 10) + 1, "two_shot", "table"),
        ];
        let expected = expected.map(|(from, name, because)| {
            json!({ "from_bytes": from, "algorithm": name, "source": because })
        });
        assert_eq!(all["all_reduce"]["chosen"], json!(expected));
        assert_eq!(all["gather_v"]["chosen"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn limits_that_depend_on_the_number_of_ranks_are_exact() {
        for ranks in [5, 7, 100] {
            let shape = GroupShape::of(&NodeMap::one_per_rank(ranks), false);
            let rules = AlgorithmRules::default();
            let all = describe(&shape, &rules);
            let chosen = all["reduce"]["chosen"].as_array().unwrap();
            let from: Vec<_> = chosen.iter().map(|row| row["from_bytes"].as_u64()).collect();
            assert_eq!(from, [Some(0), Some(ranks as u64 * (16 << 10) + 1)]);
            for kind in OpKind::ALL {
                for row in all[kind.name()]["chosen"].as_array().unwrap() {
                    let from = usize::try_from(row["from_bytes"].as_u64().unwrap()).unwrap();
                    let chosen = |bytes| {
                        let choice =
                            select(kind, bytes, &shape, AlgorithmRequest::default(), &rules);
                        choice.unwrap().algorithm.name
                    };
                    if !kind.is_pairwise() {
                        assert_eq!(chosen(from), row["algorithm"]);
                        assert!(from == 0 || chosen(from - 1) != row["algorithm"]);
                    }
                }
            }
        }
    }

    #[test]
    fn changes_between_two_samples_are_all_found() {
        let choose = |bytes| match bytes {
            0..13 => "a",
            13..29 => "b",
            _ => "a or c",
        };
        assert_eq!(selection_changes(&[0, 8, 1000], choose), [(0, "a"), (13, "b"), (29, "a or c")]);
        assert_eq!(selection_changes(&[0, 13, 14], choose), [(0, "a"), (13, "b")]);
        assert_eq!(selection_changes(&[5], choose), [(5, "a")]);
    }
}
