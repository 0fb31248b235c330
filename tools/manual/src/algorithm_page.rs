//! The reference page of the algorithms, from the library's table.

use crate::GeneratedFile;
use crate::reference::GENERATED;
use dist::algo::algorithms;
use dist::algo::row::AlgorithmBody;
use dist::transport::OpKind;
use std::fmt::Write as _;

/// Returns the page of all algorithms.
pub(crate) fn algorithm_page() -> GeneratedFile {
    let mut text = format!(
        "# Algorithms\n\n{GENERATED}\n\
         With this page you can look up the algorithms of each operation and select one by its \
         name.\n[Choosing algorithms](../tuning.md) says how. In each table, the library takes the \
         first algorithm that supports\nthe call and pays for its size. *Rank order* means that the \
         result does not depend on the hosts of the ranks.\n"
    );
    for kind in OpKind::ALL {
        let mut rows = algorithms(kind).peekable();
        if rows.peek().is_none() {
            continue;
        }
        write!(
            text,
            "\n## {}\n\n| algorithm | used | rank order | method |\n| --- | --- | --- | --- |\n",
            kind.name()
        )
        .expect("a text");
        for row in rows {
            let place = match row.body {
                AlgorithmBody::OneStep(_) | AlgorithmBody::Shared(_) => "inside a host",
                AlgorithmBody::Message(_) => "between hosts",
                AlgorithmBody::Hierarchical(_) => "hosts with several ranks",
            };
            let ordered = if row.ordered { "yes" } else { "no" };
            let method = row.description.replace('|', "\\|");
            writeln!(text, "| `{}` | {place} | {ordered} | {method} |", row.name).expect("a text");
        }
    }
    GeneratedFile::new("algorithms.md", text)
}
