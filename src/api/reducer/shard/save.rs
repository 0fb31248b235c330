//! Saves the states of all ranks as one byte string, and loads them on any number of ranks.
//!
//! The header has the names of the states and the names and sizes of the parameters. After the
//! header come the states of each parameter, one state after the other, with one little-endian f32
//! for each element. The format has no padding, and does not depend on the number of ranks or on
//! buckets.

use super::super::checkpoint::CheckpointFormat;
use super::super::param::Param;
use super::super::records;
use super::super::shard_split::{ShardSplit, SplitPiece};
use super::Shard;
use super::local::{LocalShard, PiecesByParam};
use crate::api::collective::bytes::BytesCall;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

const FORMAT: CheckpointFormat = CheckpointFormat {
    magic: *b"DISTSHD1",
    title: "saved states",
    source: "dist_shard_save",
    truncated: "they are truncated",
    invalid_header: "their header is not valid JSON",
};

const SIZE: usize = size_of::<f32>();

/// For each parameter, by name: the offset of its states in the saved bytes, and its number of
/// elements.
struct ShardContents<'c> {
    params: HashMap<&'c str, (usize, usize)>,
}

/// Returns the size of all states of a parameter in bytes.
fn param_bytes(count: usize, states: usize) -> Option<usize> {
    count.checked_mul(states)?.checked_mul(SIZE)
}

fn header(params: &[Param], states: &[String]) -> Value {
    let params: Vec<Value> = params
        .iter()
        .filter(|param| param.is_trained())
        .map(|param| json!({ "name": param.name, "count": param.count }))
        .collect();
    json!({ "states": states, "params": params })
}

impl Shard {
    /// Gathers all states at the root; returns `None` on other ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank that does not exist; `OutOfMemory`; the errors of a gather of
    /// byte strings.
    pub fn save(&self, root: Rank) -> Result<Option<Vec<u8>>> {
        callbacks::reject_blocking_in_callback("dist_shard_save")?;
        let group = self.usable_group()?;
        let mut own = Vec::new();
        let local = self.local_shard();
        for held in local.own() {
            local.write_states(held, &mut own);
        }
        let call = BytesCall::gather(Src::from(&own[..]), root);
        let Some(parts) = group.run_bytes(&call, &self.call_options())? else { return Ok(None) };
        self.assemble(&parts, &local.split).map(Some)
    }

    /// Combines the parts of all ranks.
    fn assemble(&self, parts: &[Vec<u8>], split: &ShardSplit) -> Result<Vec<u8>> {
        let (params, states) = (&self.reducer.params, &self.options.states);
        let mut bytes = FORMAT.begin(&header(params, states));
        let mut begins = vec![0; params.len()];
        for (begin, param) in begins.iter_mut().zip(params).filter(|(_, param)| param.is_trained())
        {
            *begin = bytes.len();
            let len = param_bytes(param.count, states.len()).ok_or_else(too_large)?;
            bytes.try_reserve(len).map_err(|_| too_large())?;
            bytes.resize(bytes.len() + len, 0);
        }
        let memory = Arc::clone(&self.reducer.lock().memory);
        for (rank, part) in parts.iter().enumerate() {
            let mut left = part.as_slice();
            for piece in split.pieces(&memory.layout, rank) {
                for state in 0..states.len() {
                    let (values, rest) =
                        left.split_at_checked(piece.count * SIZE).ok_or_else(|| {
                            let message =
                                format!("the states of rank {rank} have an unknown format");
                            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
                        })?;
                    let of_state = state * params[piece.param].count + piece.begin;
                    let begin = begins[piece.param] + of_state * SIZE;
                    bytes[begin..begin + values.len()].copy_from_slice(values);
                    left = rest;
                }
            }
        }
        Ok(bytes)
    }

    /// Loads the states that [`Self::save`] returned, on any number of ranks. Only the root's
    /// `bytes` are used.
    ///
    /// # Errors
    /// `InvalidArgument` on all ranks if the root's bytes are no states, or belong to other
    /// parameters or another optimizer; the errors of a broadcast.
    pub fn load(&self, bytes: &[u8], root: Rank) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_shard_load")?;
        let group = self.usable_group()?;
        let options = self.call_options();
        let is_root = group.rank() == root;
        let read = if is_root { Some(self.read(bytes)) } else { None };
        // The broadcast tells all ranks whether the root can continue.
        let verdict = match &read {
            Some(Err(error)) => error.message().as_bytes(),
            _ => &[],
        };
        let message = records::broadcast(&group, verdict, root, &options)?;
        let contents = read.transpose()?;
        if !message.is_empty() && !is_root {
            return Err(Error::invalid(String::from_utf8_lossy(&message).into_owned()));
        }
        let local = self.local_shard();
        let loader = ShardLoader { group: &group, options: &options, root, local: &local };
        let wanted = local.by_param();
        for (index, param) in self.reducer.params.iter().enumerate() {
            if !param.is_trained() {
                continue;
            }
            for number in 0..self.options.states.len() {
                let from = contents.as_ref().and_then(|contents| {
                    let &(begin, count) = contents.params.get(param.name.as_str())?;
                    let begin = begin + number * count * SIZE;
                    bytes.get(begin..begin + count * SIZE)
                });
                let whole =
                    SplitPiece { param: index, begin: 0, count: param.count, bucket: 0, at: 0 };
                let loaded = loader.load(from, &whole, number, &wanted);
                loaded.context(|| format!("parameter \"{}\"", param.name))?;
            }
        }
        Ok(())
    }

    /// Finds the parameters of this shard in saved bytes.
    fn read<'b>(&'b self, bytes: &'b [u8]) -> Result<ShardContents<'b>> {
        let wrong = |text: &str| FORMAT.error(text);
        let (header, data) = FORMAT.read(bytes)?;
        let names: Vec<&str> =
            header["states"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if names != self.options.states.iter().map(String::as_str).collect::<Vec<_>>() {
            let own = &self.options.states;
            return Err(wrong(&format!(
                "their names are {names:?}, but the states of the shard are {own:?}"
            )));
        }
        let mut begin = bytes.len() - data.len();
        let mut saved: HashMap<String, (usize, usize)> = HashMap::new();
        for param in header["params"].as_array().into_iter().flatten() {
            let name = param["name"].as_str().unwrap_or_default();
            let count = param["count"].as_u64().and_then(|count| usize::try_from(count).ok());
            let end = count.and_then(|count| {
                Some((count, begin.checked_add(param_bytes(count, names.len())?)?))
            });
            let (count, end) = end
                .filter(|&(_, end)| end <= bytes.len())
                .ok_or_else(|| wrong(FORMAT.truncated))?;
            saved.insert(name.to_owned(), (begin, count));
            begin = end;
        }
        if begin != bytes.len() {
            return Err(wrong("they are longer than their header states"));
        }
        let mut params = HashMap::new();
        for param in self.reducer.params.iter().filter(|param| param.is_trained()) {
            let name = param.name.as_str();
            let &(begin, count) = saved
                .get(name)
                .ok_or_else(|| wrong(&format!("they lack the parameter \"{name}\"")))?;
            if count != param.count {
                let message = format!(
                    "parameter \"{name}\" has {count} elements in them, but {} in the shard",
                    param.count
                );
                return Err(wrong(&message));
            }
            params.insert(name, (begin, count));
        }
        if saved.len() > params.len() {
            let more = saved.keys().find(|name| !params.contains_key(name.as_str()));
            return Err(wrong(&format!("they have the parameter {more:?}, which the shard lacks")));
        }
        Ok(ShardContents { params })
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::OutOfMemory, "cannot allocate memory for the states of all ranks")
}

/// Sends states from the root to all ranks, one parameter at a time.
struct ShardLoader<'l> {
    group: &'l Group,
    options: &'l CallOptions,
    root: Rank,
    local: &'l LocalShard,
}

impl ShardLoader<'_> {
    fn load(
        &self,
        from: Option<&[u8]>,
        whole: &SplitPiece,
        state: usize,
        wanted: &PiecesByParam,
    ) -> Result<()> {
        let mut room = from.map_or_else(|| vec![0; whole.count * SIZE], <[u8]>::to_vec);
        let view = Dst::from(room.as_mut_slice());
        let call = Call::broadcast(view, DataType::U8, self.root, self.group.rank());
        self.group.run(call, self.options)?;
        self.local.take_state(wanted, state, whole, &room);
        Ok(())
    }
}
