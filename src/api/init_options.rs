//! The arguments of `dist_init`.

use crate::store::Store;
use std::sync::Arc;

/// The arguments of `dist_init`. Absent values come from the URL or the environment.
#[derive(Debug, Default)]
pub struct InitOptions {
    /// The name of the back end.
    pub backend: Option<String>,
    /// The init method: `env://`, `tcp://…` or `file://…`; `None` selects `env://`.
    pub init_method: Option<String>,
    /// The rendezvous store, in place of an init method.
    pub store: Option<Arc<dyn Store>>,
    /// The rank of this process.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub size: Option<usize>,
    /// The deadline of operations in milliseconds; 0 selects the default.
    pub timeout_ms: u64,
    /// The deadline of `dist_init` in milliseconds; 0 selects the default.
    pub connect_timeout_ms: u64,
    /// The options of the back end, as "key=value;key=value"; may be empty.
    pub backend_options: String,
    /// The GPU of this rank; `None` if the group has no GPU.
    pub device: Option<usize>,
    /// The world group's name; `None` selects "world".
    pub group_name: Option<String>,
}
