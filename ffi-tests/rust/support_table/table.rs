//! Formats the answers of all back ends as a table, in which equal answers share a row.

use crate::backend_queries::{
    BackendQueryFn, BufferDevice, OLDEST_MINOR, OperationKind, backends, nccl_minimum_version,
    query,
};
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// The answers of the back ends to one query, one cell each.
type TableCells = Vec<String>;

/// Operators and types with equal answers, and their cells.
type TablePart = (Vec<ReduceOp>, Vec<DataType>, TableCells);

/// Returns the table as Markdown.
pub(crate) fn markdown() -> String {
    let backends = backends();
    let names: Vec<String> = backends.iter().map(|(name, _)| format!("`{name}`")).collect();
    let mut text = format!(
        "| operation | operator | types | {} |\n|---|---|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let all = OperationKind::all();
    let answers = all.into_iter().map(|kind| (kind.name, table_parts(kind, &backends)));
    for (parts, kinds) in group_by_key(answers.map(|(name, parts)| (parts, name))) {
        // A cell is empty if it equals the cell above it.
        let mut kinds = words(&kinds, |name| format!("`{name}`"));
        let mut above: &[ReduceOp] = &[];
        for (ops, dtypes, cells) in &parts {
            let op = if ops == above { String::new() } else { words(ops, |op| op.name().into()) };
            let types = match dtypes.len() {
                all if all == DataType::ALL.len() => "all".to_owned(),
                _ => words(dtypes, |dtype| dtype.name().into()),
            };
            text += &format!("| {kinds} | {op} | {types} | {} |\n", cells.join(" | "));
            kinds.clear();
            above = ops;
        }
    }
    text
}

/// Returns the rows of one operation: its operators and types, grouped by equal answers.
fn table_parts(kind: OperationKind, backends: &[(&'static str, BackendQueryFn)]) -> Vec<TablePart> {
    let answer = |dtype, op| -> TableCells {
        backends.iter().map(|(name, ask)| cell(name, ask, kind, dtype, op)).collect()
    };
    if !kind.has_elements() {
        return vec![(Vec::new(), Vec::new(), answer(None, None))];
    }
    let ops: Vec<Option<ReduceOp>> = match kind.reduces() {
        true => ReduceOp::ALL.map(Some).into(),
        false => vec![None],
    };
    let of_op = ops.into_iter().map(|op| {
        let answers = DataType::ALL.map(|dtype| (answer(Some(dtype), op), dtype));
        let mut rows = group_by_key(answers.into_iter());
        // A combination that no back end supports is undefined, for example the minimum of complex
        // numbers.
        rows.retain(|(cells, _)| cells.iter().any(|cell| cell != NONE));
        (rows, op)
    });
    let mut all = Vec::new();
    for (rows, ops) in group_by_key(of_op) {
        let ops: Vec<ReduceOp> = ops.into_iter().flatten().collect();
        all.extend(rows.into_iter().map(|(cells, dtypes)| (ops.clone(), dtypes, cells)));
    }
    all
}

const NONE: &str = "–";

/// Returns the kinds of memory in which a back end supports a call.
fn cell(
    name: &str,
    supports: &BackendQueryFn,
    kind: OperationKind,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
) -> String {
    let query_on = |on| query(kind, dtype, op, on);
    let mut words = Vec::new();
    if supports(&query_on(BufferDevice::Host)) {
        words.push("host".to_owned());
    }
    if supports(&query_on(BufferDevice::Gpu)) {
        let since =
            (name == "nccl").then(|| nccl_minimum_version(&query_on(BufferDevice::Gpu))).flatten();
        let minor = since.map_or(0, |since| since / 100 % 100);
        words.push(if minor > OLDEST_MINOR {
            format!("GPU, from 2.{minor}")
        } else {
            "GPU".into()
        });
    }
    if words.is_empty() { NONE.into() } else { words.join("; ") }
}

/// Groups the items by key, in the order of first appearance.
fn group_by_key<K: PartialEq, V>(items: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

fn words<T>(items: &[T], word: impl Fn(&T) -> String) -> String {
    items.iter().map(word).collect::<Vec<_>>().join(", ")
}
