//! Saves the global values and the optimizer's states as one byte string, and loads them.
//!
//! The format has these parts in order, with little-endian numbers:
//!
//! 1. A magic number.
//! 2. The length of the header as a 64-bit number.
//! 3. The header: JSON with the number of steps and the names and sizes of the parameters.
//! 4. For each parameter, the global values and the state as f32.

use super::Outer;
use crate::api::collective::bytes::BytesCall;
use crate::api::collective::call::CallOptions;
use crate::api::work::callbacks;
use crate::base::buffer::Src;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};

const MAGIC: &[u8; 8] = b"DISTOUT1";

const SIZE: usize = size_of::<f32>();

impl Outer {
    /// Returns the data for a checkpoint, equal on all ranks between outer steps. The caller saves
    /// the parameters of this rank.
    ///
    /// # Errors
    /// `InvalidArgument` if a step has failed and was not retried.
    pub fn save(&self) -> Result<Vec<u8>> {
        if self.lock().pending.is_some() {
            return Err(unfinished());
        }
        let header = self.header(self.counter.get(0)).to_string().into_bytes();
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
        for member in self.fragments.iter().flat_map(|fragment| &fragment.members) {
            for array in [&member.global, &member.state] {
                array.write_to(0..array.len(), &mut bytes);
            }
        }
        Ok(bytes)
    }

    fn header(&self, steps: u64) -> Value {
        let members = self.fragments.iter().flat_map(|fragment| &fragment.members);
        let params: Vec<Value> = members
            .map(|member| {
                let name = &self.params[member.index].name;
                json!({ "name": name, "count": member.global.len(), "state": member.state.len() })
            })
            .collect();
        json!({ "steps": steps, "params": params })
    }

    /// Loads the data that [`Self::save`] returned from the root on all ranks. The parameters of
    /// all ranks become the global values.
    ///
    /// # Errors
    /// `InvalidArgument` on all ranks if the bytes have another format or other parameters; the
    /// errors of a broadcast.
    pub fn load(&self, bytes: &[u8], root: Rank) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_outer_load")?;
        if self.lock().pending.is_some() {
            return Err(unfinished());
        }
        let Some(first) = self.fragments.first() else { return Ok(()) };
        let group = first.reducer.lock().group()?;
        let sent = if group.rank() == root { bytes } else { &[] };
        let options = CallOptions { timeout_ms: self.options.timeout_ms, ..CallOptions::DEFAULT };
        let received = group.run_bytes(&BytesCall::broadcast(Src::from(sent), root), &options)?;
        let received = received.and_then(|strings| strings.into_iter().next());
        self.take(received.as_deref().unwrap_or(sent))?;
        self.fragments.iter().for_each(|fragment| fragment.restore(&self.params));
        Ok(())
    }

    fn take(&self, bytes: &[u8]) -> Result<()> {
        let wrong = |what: &str| Error::invalid(format!("bytes (a saved outer optimizer): {what}"));
        let none = || wrong("not an output of dist_outer_save");
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(none)?;
        let head = rest.split_first_chunk::<8>().filter(|_| magic == MAGIC);
        let (len, rest) = head.ok_or_else(none)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (header, mut data) =
            rest.split_at_checked(len).ok_or_else(|| wrong("it is truncated"))?;
        let header: Value =
            serde_json::from_slice(header).map_err(|_| wrong("its header is not valid JSON"))?;
        let steps = header["steps"].as_u64().ok_or_else(|| wrong("it has no number of steps"))?;
        if header["params"] != self.header(0)["params"] {
            return Err(wrong(
                "its parameters, fragments or states differ from those of this optimizer",
            ));
        }
        let members = || self.fragments.iter().flat_map(|fragment| &fragment.members);
        let total: usize =
            members().map(|member| (member.global.len() + member.state.len()) * SIZE).sum();
        if data.len() != total {
            return Err(wrong("it is truncated"));
        }
        for member in members() {
            for array in [&member.global, &member.state] {
                let (part, rest) = data.split_at(array.len() * SIZE);
                array.read_from(0, part);
                data = rest;
            }
        }
        self.counter.set(0, steps);
        Ok(())
    }
}

fn unfinished() -> Error {
    Error::invalid("an outer step failed: repeat dist_outer_step after dist_outer_regroup")
}
