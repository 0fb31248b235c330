//! Special instructions of the processor: prefetches, the load fence and the time stamp counter.
#![cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    allow(unsafe_code, reason = "instructions without a compiler intrinsic")
)]

/// Prefetches the cache line at an address for reading.
#[inline]
pub fn prefetch_to_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint. It neither faults nor changes anything observable, whatever the
    // address.
    unsafe {
        std::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Prefetches the cache line at an address for writing, so that a later store does not wait until
/// other cores have released the line. No instruction waits for a prefetch. A store, which would
/// also fetch the line, would delay the next atomic read-modify-write.
#[inline]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint. It neither faults nor changes anything observable, whatever the
    // address.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Waits until all earlier loads have completed. A loop that polls a cache line calls this between
/// two polls. Without the fence, the core has several speculative polls in flight when the line
/// changes, and must roll all of them back before it continues. On a 4th-generation EPYC, the core
/// then sees the change after 40 ns instead of 30 ns. A pause instruction has the same effect as
/// the fence there, but takes longer on Intel processors than the transfer of a line.
#[inline]
pub fn load_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction orders loads, and has no other effect.
    unsafe {
        std::arch::asm!("lfence", options(nostack, preserves_flags));
    }
}

/// Returns the time stamp counter of an x86-64 processor, the cheapest clock, in ticks of its own
/// unit. On other processors the result is always 0.
#[inline]
pub fn read_tsc() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction reads a register that every x86-64 processor has.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

/// Returns whether the time stamp counter ticks at a constant rate in every power state, so that it
/// measures time.
pub fn has_invariant_tsc() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::__cpuid;
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}
