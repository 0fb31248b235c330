//! What would run, for `dist_group_describe`: for each operation, which algorithm from which size on, and who chose it.

use crate::algo::rules::Rules;
use crate::algo::{Shape, Wanted, algorithms, select};
use crate::transport::OpKind;
use serde_json::{Map, Value, json};

/// The operations of which nobody knows all counts.
const PAIRWISE: [OpKind; 3] = [OpKind::GatherV, OpKind::ScatterV, OpKind::AllToAllV];

/// For each operation, what is chosen and what there is.
pub(super) fn describe(shape: &Shape, rules: &Rules) -> Value {
    let mut all = Map::new();
    for kind in OpKind::ALL {
        let known: Vec<_> = algorithms(kind)
            .map(|row| json!({ "name": row.name, "description": row.description }))
            .collect();
        let chosen = chosen(kind, shape, rules);
        all.insert(kind.name().to_owned(), json!({ "chosen": chosen, "known": known }));
    }
    Value::Object(all)
}

fn chosen(kind: OpKind, shape: &Shape, rules: &Rules) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    let mut last = None;
    for bytes in sizes(kind, rules) {
        let size = if PAIRWISE.contains(&kind) { usize::MAX } else { bytes };
        let Ok(choice) = select(kind, size, shape, Wanted::default(), rules) else { continue };
        let because = choice.rule.map(|rule| rule.source);
        if last != Some((choice.algorithm.name, because)) {
            let said = because.map_or("table".to_owned(), |source| source.to_string());
            let name = choice.algorithm.name;
            choices.push(json!({ "from_bytes": bytes, "algorithm": name, "because": said }));
            last = Some((name, because));
        }
    }
    choices
}

/// Where a choice may change: where a rule begins or ends, next to every power of two, and past an inline payload.
fn sizes(kind: OpKind, rules: &Rules) -> Vec<usize> {
    let ends = rules.of(kind).iter().flat_map(|rule| {
        [Some(*rule.bytes.start()), rule.bytes.end().checked_add(1)].into_iter().flatten()
    });
    let powers = (0..40).flat_map(|exponent| [1 << exponent, (1 << exponent) + 1]);
    let mut sizes: Vec<usize> = powers
        .chain([0, 48, 49])
        .chain((3..=64).flat_map(|n| [(8 << 10) / n + 1, (64 << 10) / n + 1]))
        .chain(ends)
        .collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::rules::{Rule, Source, algorithm};
    use crate::base::nodes::Nodes;

    #[test]
    fn it_says_who_chose_from_which_size_on() {
        let shape = Shape::of(&Nodes::by_label(&[0, 0]), false);
        let row = algorithm(OpKind::AllReduce, "two_shot").unwrap();
        let rule = Rule::always(OpKind::AllReduce, row, Source::File(3));
        let rules = Rules::new(vec![Rule { bytes: 1001..=2000, ..rule }], &shape);
        let all = describe(&shape, &rules);
        let expected = [
            (0, "inline", "table"),
            (49, "one_shot", "table"),
            (1001, "two_shot", "tuning file, row 3"),
            (2001, "one_shot", "table"),
            ((64 << 10) + 1, "two_shot", "table"),
        ];
        let expected = expected.map(|(from, name, because)| {
            json!({ "from_bytes": from, "algorithm": name, "because": because })
        });
        assert_eq!(all["all_reduce"]["chosen"], json!(expected));
        assert_eq!(all["gather_v"]["chosen"].as_array().unwrap().len(), 1);
    }
}
