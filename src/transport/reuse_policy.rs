//! How soon a rank uses its part of shared memory again: what serves the caches of the machine.
//!
//! What one core has written and another has read lies in the caches of both for a while. Where the
//! last-level cache holds copies of what lies there, it is written again soonest in those near
//! caches. Where it holds what has been thrown out of them, a line that two near caches have takes
//! several times as long to be written again as one that has left both. (On an EPYC of the fourth
//! generation, whose second-level caches have 1 MiB, a slot is written with 12 GB/s where each rank
//! has 256 KiB of them, and with 45 where it has 1 MiB; an all_reduce of 4 MiB takes 650 and 190
//! microseconds. On a Xeon of the fourth generation it is the other way round.)

/// One of the two ways. The same for all ranks that share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReusePolicy {
    /// While it is in the near caches.
    WhileCached,
    /// Once it has left them.
    AfterEviction,
}

impl ReusePolicy {
    /// What serves this machine.
    pub fn for_this_cpu() -> Self {
        if is_zen() { Self::AfterEviction } else { Self::WhileCached }
    }

    /// The name by which ranks tell each other.
    pub fn name(self) -> &'static str {
        match self {
            Self::WhileCached => "soon",
            Self::AfterEviction => "late",
        }
    }

    /// The one that has this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::WhileCached, Self::AfterEviction].into_iter().find(|reuse| reuse.name() == name)
    }
}

/// Whether the processor is one of AMD's, or of Hygon's, which are built alike.
#[cfg(target_arch = "x86_64")]
fn is_zen() -> bool {
    let id = std::arch::x86_64::__cpuid(0);
    let maker = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
    let maker = maker.as_flattened();
    maker == b"AuthenticAMD" || maker == b"HygonGenuine"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_zen() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_round_trip() {
        for reuse in [ReusePolicy::WhileCached, ReusePolicy::AfterEviction] {
            assert_eq!(ReusePolicy::from_name(reuse.name()), Some(reuse));
        }
        assert_eq!(ReusePolicy::from_name("Soon"), None);
    }
}
