//! The domains (ranks of one host that share memory) of the native groups that this process has
//! joined and not left. At the end of the process, it leaves the domains that are still open
//! ([`leave_all`]). Native back ends that are parts of other back ends are not among them: without
//! the other part, the process has not left in order.

use crate::base::sync::lock;
use crate::transport::SharedDomain;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

static OPEN_DOMAINS: Mutex<Vec<Weak<dyn SharedDomain>>> = Mutex::new(Vec::new());

/// The length of [`OPEN_DOMAINS`], which can be read without the lock.
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The membership of this rank in its domain. When it is dropped, the rank leaves the domain, even
/// if other objects still hold references to the domain.
#[derive(Debug)]
pub(super) struct DomainMembership(pub(super) Arc<dyn SharedDomain>);

impl DomainMembership {
    /// Makes this process leave the domain when it ends.
    pub(super) fn leave_at_exit(&self) {
        let mut open = lock(&OPEN_DOMAINS);
        open.push(Arc::downgrade(&self.0));
        OPEN_COUNT.store(open.len(), Ordering::Relaxed);
    }
}

impl Deref for DomainMembership {
    type Target = dyn SharedDomain;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl Drop for DomainMembership {
    fn drop(&mut self) {
        self.0.leave();
        let own = Arc::downgrade(&self.0);
        let mut open = lock(&OPEN_DOMAINS);
        open.retain(|known| !known.ptr_eq(&own));
        OPEN_COUNT.store(open.len(), Ordering::Relaxed);
    }
}

/// Returns whether this process must leave a domain when it ends. Takes no lock.
pub fn has_open_domains() -> bool {
    OPEN_COUNT.load(Ordering::Relaxed) != 0
}

/// Leaves all open domains, also those in which threads of this process are still inside calls.
pub fn leave_all() {
    let open: Vec<_> = lock(&OPEN_DOMAINS).iter().filter_map(Weak::upgrade).collect();
    open.iter().for_each(|domain| domain.leave());
}
