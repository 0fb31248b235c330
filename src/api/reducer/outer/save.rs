//! Saves the global values and the optimizer's states as one byte string, and loads them.
//!
//! The header has the number of steps and the names and sizes of the parameters. After the header
//! come the global values and then the state of each parameter as little-endian f32.

use super::super::checkpoint::CheckpointFormat;
use super::super::records;
use super::Outer;
use crate::api::collective::call::CallOptions;
use crate::api::work::callbacks;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use serde_json::{Value, json};

const FORMAT: CheckpointFormat = CheckpointFormat {
    magic: *b"DISTOUT1",
    title: "a saved outer optimizer",
    source: "dist_outer_save",
    truncated: "it is truncated",
    invalid_header: "its header is not valid JSON",
};

const SIZE: usize = size_of::<f32>();

impl Outer {
    /// Returns the data for a checkpoint. Between outer steps, the data is equal on all ranks. It
    /// does not contain this rank's own parameter values, which the caller saves separately.
    ///
    /// # Errors
    /// `InvalidArgument` if a step has failed and was not retried.
    pub fn save(&self) -> Result<Vec<u8>> {
        if self.lock().pending.is_some() {
            return Err(unfinished());
        }
        let mut bytes = FORMAT.begin(&self.header(self.counter.get(0)));
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

    /// Loads data that [`Self::save`] returned. The root sends its `bytes` to all ranks; the
    /// `bytes` of other ranks are ignored. The parameters of all ranks become the loaded global
    /// values.
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
        let options = CallOptions { timeout_ms: self.options.timeout_ms, ..CallOptions::DEFAULT };
        self.take(&records::broadcast(&group, bytes, root, &options)?)?;
        self.fragments.iter().for_each(|fragment| fragment.restore(&self.params));
        Ok(())
    }

    fn take(&self, bytes: &[u8]) -> Result<()> {
        let wrong = |text: &str| FORMAT.error(text);
        let (header, mut data) = FORMAT.read(bytes)?;
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
            return Err(wrong(FORMAT.truncated));
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
