//! Hints that memory will be used soon.
#![cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    allow(unsafe_code, reason = "an instruction that the compiler has no name for")
)]

/// Asks for the cache line at an address, to be read.
#[inline]
pub fn to_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which neither faults nor changes anything that can be seen, wherever the address points.
    unsafe {
        std::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks for the cache line at an address, to be written: whoever writes it next need not wait until other cores have given it
/// up. Nothing waits for the hint, unlike for a store, which the next atomic read-modify-write would.
#[inline]
pub fn to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which neither faults nor changes anything that can be seen, wherever the address points.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
