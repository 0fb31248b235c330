//! What a processor is asked apart from computing: for cache lines that will be used soon, for one
//! look at a time, for its ticks.
#![cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    allow(unsafe_code, reason = "instructions that the compiler has no name for")
)]

/// Asks for the cache line at an address, to be read.
#[inline]
pub fn prefetch_to_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which neither faults nor changes anything that can be seen, wherever the
    // address points.
    unsafe {
        std::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks for the cache line at an address, to be written: whoever writes it next need not wait until
/// other cores have given it up. Nothing waits for the hint, unlike for a store, which the next
/// atomic read-modify-write would.
#[inline]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which neither faults nor changes anything that can be seen, wherever the
    // address points.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Waits until all loads before have been made. A core that looks at memory again and again has
/// begun many looks without this when a line changes, and takes all of them back before it goes on:
/// on an EPYC of the fourth generation a line is seen 10 nanoseconds later then, of 40. A pause
/// serves as well there, but lasts longer on Intel's than a line takes.
#[inline]
pub fn load_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: orders loads, and does nothing else.
    unsafe {
        std::arch::asm!("lfence", options(nostack, preserves_flags));
    }
}

/// How far the time stamp counter has come, which is the cheapest look at the time, in units of its
/// own; elsewhere time stands still.
#[inline]
pub fn read_tsc() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: reads a register that every processor of this kind has.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

/// Whether ticks come at one pace, whatever the processor does, and so tell the time.
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
