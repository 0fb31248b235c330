//! Finds values that should be equal on all ranks and are not.
//!
//! Each rank computes one BLAKE3 hash for each parameter. The ranks first compare a single hash
//! over all these hashes. Only if it differs, they compare the hashes of the parameters.

use super::records;
use super::reducer_state::Reducer;
use super::sparse::SparseResult;
use super::values::ParamSelection;
use crate::api::collective::call::CallOptions;
use crate::api::work::callbacks;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// The number of bytes hashed at once.
const CHUNK: usize = 64 << 10;

/// The name of a parameter or gradient in a result line, and the values.
type NamedValues<'p> = (String, Src<'p>);

impl Reducer {
    /// Compares values between the ranks. Returns one line for each parameter that differs, and an
    /// empty list if none differs. The result is equal on all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` inside a step; the errors of an all-gather of byte strings.
    pub fn check(&self, values: ParamSelection) -> Result<Vec<String>> {
        callbacks::reject_blocking_in_callback("dist_reducer_check")?;
        let (group, memory, rows) = {
            let state = self.between_steps("values can be compared only between steps")?;
            let view = |(&param, result): (&usize, &SparseResult)| (param, result.values.view());
            let rows: HashMap<usize, Dst<'static>> = state.sparse.iter().map(view).collect();
            (state.group()?, Arc::clone(&state.memory), rows)
        };
        if let Some(param) = self.params.iter().find(|param| param.device.is_some()) {
            let message = format!(
                "parameter \"{}\" is in the memory of a device: values can be compared only in host memory",
                param.name
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if values.grads && self.options.is_sharded {
            let message = "with DIST_REDUCER_SHARDED the gradients differ between ranks: compare the parameters";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut all: Vec<NamedValues<'static>> = values
            .select(&self.params)
            .map(|param| (format!("parameter \"{}\"", param.name), param.data.as_src()))
            .collect();
        if values.grads {
            let trained = self.params.iter().enumerate().filter(|(_, param)| param.is_trained());
            all.extend(trained.map(|(index, param)| {
                let rows = rows.get(&index).copied();
                let grad = rows.or_else(|| memory.reduced_grad(index, &self.params));
                let grad = grad.unwrap_or(Dst::empty());
                (format!("the gradient of parameter \"{}\"", param.name), grad.as_src())
            }));
        }
        let hashes: Vec<u8> =
            all.iter().flat_map(|(_, values)| *hash(*values).as_bytes()).collect();
        let options = CallOptions { timeout_ms: self.options.timeout_ms, ..CallOptions::DEFAULT };
        if group.all_equal(&hashes, &options)?.is_none() {
            return Ok(Vec::new());
        }
        Ok(differences(&all, &records::gather(&group, &hashes, &options)?))
    }
}

/// Returns the hash of some values.
fn hash(values: Src<'_>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK.min(values.len())];
    let mut begin = 0;
    while begin < values.len() {
        let len = CHUNK.min(values.len() - begin);
        Dst::from(&mut chunk[..len]).copy_from(values.slice(begin, len));
        hasher.update(&chunk[..len]);
        begin += len;
    }
    hasher.finalize()
}

/// Describes the values that differ from those of rank 0, with the ranks that differ.
fn differences(all: &[NamedValues<'_>], gathered: &[Vec<u8>]) -> Vec<String> {
    let hash_of = |rank: usize, index: usize| {
        let (hashes, _) = gathered[rank].as_chunks::<{ blake3::OUT_LEN }>();
        hashes.get(index).copied()
    };
    let mut lines = Vec::new();
    for (index, (name, _)) in all.iter().enumerate() {
        let others: Vec<String> = (1..gathered.len())
            .filter(|&rank| hash_of(rank, index) != hash_of(0, index))
            .map(|rank| rank.to_string())
            .collect();
        if !others.is_empty() {
            lines.push(format!("{name} of rank {} differs from that of rank 0", others.join(", ")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_empty_values_are_hashed_whole() {
        let long = vec![7_u8; CHUNK * 2 + 3];
        assert_eq!(hash(Src::from(&long[..])), blake3::hash(&long));
        assert_eq!(hash(Src::empty()), blake3::hash(b""));
    }

    #[test]
    fn differences_name_parameters_and_ranks() {
        let hashes = |values: [u8; 2]| {
            values.iter().flat_map(|value| *blake3::hash(&[*value]).as_bytes()).collect::<Vec<u8>>()
        };
        let all = [("a".to_owned(), Src::empty()), ("b".to_owned(), Src::empty())];
        let gathered = [hashes([1, 2]), hashes([1, 3]), hashes([1, 2]), hashes([4, 5])];
        let found = differences(&all, &gathered);
        let expected = [
            "a of rank 3 differs from that of rank 0",
            "b of rank 1, 3 differs from that of rank 0",
        ];
        assert_eq!(found, expected);
    }
}
