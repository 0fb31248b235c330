//! What the ranks of a group may keep in the store that they have met in: each group has a part of
//! it for itself, under the id that no other group ever had.
//!
//! Must not know: what is kept there.

use crate::backend::Keys;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::ids::GroupId;
use crate::store::Store;
use std::sync::{Arc, Weak};

/// A group's part of a store.
#[derive(Debug)]
struct Part {
    store: Arc<dyn Store>,
    prefix: String,
}

/// The part of a group; `None` where nobody has the store any more. Only what is returned keeps it:
/// a group by itself does not, since few need it once their ranks have met.
pub(super) fn of(store: &Weak<dyn Store>, id: GroupId) -> Option<Arc<dyn Keys>> {
    let store = store.upgrade()?;
    Some(Arc::new(Part { store, prefix: format!("dist/{id}/backend/") }))
}

impl Part {
    fn key(&self, key: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }
}

impl Keys for Part {
    fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> Result<()> {
        self.store.set(&self.key(key), value, deadline)
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        self.store.get(&self.key(key), deadline)
    }

    fn add(&self, key: &str, amount: i64, deadline: &Deadline) -> Result<i64> {
        self.store.add(&self.key(key), amount, deadline)
    }

    fn has(&self, key: &str, deadline: &Deadline) -> Result<bool> {
        self.store.check(&[&self.key(key)], deadline)
    }

    fn delete(&self, key: &str, deadline: &Deadline) -> Result<bool> {
        self.store.delete_key(&self.key(key), deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;
    use crate::process::this;
    use crate::store::HashStore;

    #[test]
    fn groups_do_not_see_each_others_keys() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let weak = Arc::downgrade(&store);
        let soon = Deadline::after_ms(60_000);
        let [one, two] =
            [Nonce::default(), this::fresh_nonce().unwrap()].map(|id| of(&weak, id).unwrap());
        one.set("k", b"1", &soon).unwrap();
        assert_eq!(one.get("k", &soon).unwrap(), b"1");
        assert_eq!((one.has("k", &soon), two.has("k", &soon)), (Ok(true), Ok(false)));
        assert_eq!((two.add("k", 5, &soon), one.add("k", 5, &soon)), (Ok(5), Ok(6)));
        assert_eq!((two.delete("k", &soon), one.has("k", &soon)), (Ok(true), Ok(true)));
        drop((one, two, store));
        assert!(of(&weak, Nonce::default()).is_none());
    }
}
