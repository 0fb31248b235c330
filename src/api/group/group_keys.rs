//! The keys in the rendezvous store that belong to one group. The group's back end stores data
//! under these keys. Each key starts with the group's unique id.
//!
//! This module does not depend on the content of the data.

use crate::backend::GroupKeyStore;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::ids::GroupId;
use crate::store::Store;
use std::sync::{Arc, Weak};

/// The keys of one group in a store.
#[derive(Debug)]
struct GroupKeySpace {
    store: Arc<dyn Store>,
    prefix: String,
}

/// Opens a group's keys in the store. Returns `None` if the store was dropped. The returned object
/// holds a strong reference to the store. A group holds only a weak reference, because few groups
/// use the store after the rendezvous.
pub(in crate::api) fn open_group_keys(
    store: &Weak<dyn Store>,
    id: GroupId,
) -> Option<Arc<dyn GroupKeyStore>> {
    let store = store.upgrade()?;
    Some(Arc::new(GroupKeySpace { store, prefix: format!("dist/{id}/backend/") }))
}

impl GroupKeySpace {
    fn prefixed_key(&self, key: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }
}

impl GroupKeyStore for GroupKeySpace {
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()> {
        self.store.set(&self.prefixed_key(key), value, deadline)
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        self.store.get(&self.prefixed_key(key), deadline)
    }

    fn add(&self, key: &str, amount: i64, deadline: &Deadline) -> Result<i64> {
        self.store.add(&self.prefixed_key(key), amount, deadline)
    }

    fn contains_key(&self, key: &str, deadline: &Deadline) -> Result<bool> {
        self.store.check(&[&self.prefixed_key(key)], deadline)
    }

    fn delete(&self, key: &str, deadline: &Deadline) -> Result<bool> {
        self.store.delete_key(&self.prefixed_key(key), deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;
    use crate::process::this_process;
    use crate::store::HashStore;

    #[test]
    fn groups_do_not_see_each_others_keys() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let weak = Arc::downgrade(&store);
        let soon = Deadline::after_ms(60_000);
        let [one, two] = [Nonce::default(), this_process::random_nonce().unwrap()]
            .map(|id| open_group_keys(&weak, id).unwrap());
        one.set("k", b"1", &soon).unwrap();
        assert_eq!(one.get("k", &soon).unwrap(), b"1");
        assert_eq!(
            (one.contains_key("k", &soon), two.contains_key("k", &soon)),
            (Ok(true), Ok(false))
        );
        assert_eq!((two.add("k", 5, &soon), one.add("k", 5, &soon)), (Ok(5), Ok(6)));
        assert_eq!((two.delete("k", &soon), one.contains_key("k", &soon)), (Ok(true), Ok(true)));
        drop((one, two, store));
        assert!(open_group_keys(&weak, Nonce::default()).is_none());
    }
}
