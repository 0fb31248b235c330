//! The state that higher modules keep in a group: at most one value of each Rust type.
//!
//! A module that adds a feature to groups (for example subgroups or monitored barriers) creates its
//! state when the feature is first used. With this table, the group does not depend on these
//! modules. The values live as long as the group.

use crate::base::sync::lock;
use std::any::Any;
use std::sync::{Arc, Mutex};

/// The values of one group. Only few features have state, so a list is sufficient.
#[derive(Debug, Default)]
pub(in crate::api) struct GroupExtensions {
    values: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl GroupExtensions {
    /// Returns the value of this type. The first call creates the value.
    pub(in crate::api) fn get_or_init<T: Any + Send + Sync>(
        &self,
        create: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut values = lock(&self.values);
        let found = values.iter().find_map(|value| Arc::downcast(Arc::clone(value)).ok());
        found.unwrap_or_else(|| {
            let value = create();
            values.push(Arc::clone(&value) as Arc<dyn Any + Send + Sync>);
            value
        })
    }
}
