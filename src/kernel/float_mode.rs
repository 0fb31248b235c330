//! The floating-point mode of the calling thread: the rounding mode, the treatment of subnormal
//! numbers, and the exceptions that trap.
//!
//! The program may change the mode of its threads: a call of `fesetround` or `feenableexcept`, or a
//! library that was built with `-ffast-math`, whose start code sets FTZ and DAZ. A new thread
//! inherits the mode of its creator. The ranks of a group must compute the same bits, so the
//! arithmetic of the library runs in the default mode: rounding to nearest, subnormal numbers, and
//! no traps.
//!
//! A read of the mode takes 1 to 2 ns. The functions write the mode only if it is not the default.

/// Runs `work` in the default floating-point mode, and then restores the mode of the thread.
#[inline(always)]
pub fn with_default_float_mode<R>(work: impl FnOnce() -> R) -> R {
    let mode = FloatMode::current();
    if mode.is_default() { work() } else { with_replaced_mode(mode, work) }
}

/// Runs `work` in the default mode. `callers_mode` is the current mode, which is different.
#[cold]
#[inline(never)]
fn with_replaced_mode<R>(callers_mode: FloatMode, work: impl FnOnce() -> R) -> R {
    let _restore = RestoreOnDrop(callers_mode);
    FloatMode::DEFAULT.set();
    call_opaquely(work)
}

/// Calls `work`. The compiler does not move the arithmetic of a function that it does not inline
/// to a place before the call, where the mode is still the caller's.
#[inline(never)]
fn call_opaquely<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Restores a mode at the end of a scope, also if a panic ends the scope.
struct RestoreOnDrop(FloatMode);

impl Drop for RestoreOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The control word of the floating-point unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FloatMode(u64);

/// The register MXCSR. It also contains the flags of the exceptions that have occurred.
#[cfg(all(target_arch = "x86_64", not(miri)))]
impl FloatMode {
    /// The exception flags, which do not change results.
    const FLAGS: u64 = 0x3f;
    /// No trap, rounding to nearest, no FTZ, no DAZ.
    const DEFAULT: Self = Self(0x1f80);

    #[inline(always)]
    fn current() -> Self {
        let mut word = 0_u32;
        // SAFETY: the instruction stores four bytes in `word` and changes no register.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags));
        }
        Self(u64::from(word))
    }

    #[inline(always)]
    fn is_default(self) -> bool {
        self.0 & !Self::FLAGS == Self::DEFAULT.0
    }

    fn set(self) {
        let word = (self.0 & 0xffff) as u32;
        // SAFETY: the instruction reads four bytes. The word came from `current` or is the default,
        // so no reserved bit is set. The library makes no assumption on the mode outside of
        // `with_default_float_mode`, which restores it.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags));
        }
    }
}

/// The register FPCR, which contains no flags.
#[cfg(all(target_arch = "aarch64", not(miri)))]
impl FloatMode {
    /// No trap, rounding to nearest, no flushing to zero.
    const DEFAULT: Self = Self(0);

    #[inline(always)]
    fn current() -> Self {
        let word: u64;
        // SAFETY: the instruction reads a register that user code may read.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags))
        };
        Self(word)
    }

    #[inline(always)]
    fn is_default(self) -> bool {
        self == Self::DEFAULT
    }

    fn set(self) {
        // SAFETY: user code may write the register. The library makes no assumption on the mode
        // outside of `with_default_float_mode`, which restores it.
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) self.0, options(nostack, preserves_flags))
        };
    }
}

/// The library does not know the registers of other processors, and trusts the program there.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
impl FloatMode {
    const DEFAULT: Self = Self(0);

    fn current() -> Self {
        Self::DEFAULT
    }

    fn is_default(self) -> bool {
        self == Self::DEFAULT
    }

    fn set(self) {}
}

#[cfg(all(test, not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) mod tests {
    use super::*;

    /// Every mode of the processor that changes results: each rounding mode, and the flushing of
    /// subnormal numbers.
    #[cfg(target_arch = "x86_64")]
    const UNUSUAL: [u64; 5] = [0x3f80, 0x5f80, 0x7f80, 0x9fc0, 0xffc0];
    #[cfg(target_arch = "aarch64")]
    const UNUSUAL: [u64; 5] = [1 << 22, 2 << 22, 3 << 22, 1 << 24, 1 << 24 | 1 << 25 | 3 << 22];

    /// Runs `work` once in each unusual mode, and checks that it does not change the mode.
    pub(in crate::kernel) fn in_unusual_modes(mut work: impl FnMut()) {
        for word in UNUSUAL {
            let _restore = RestoreOnDrop(FloatMode::current());
            FloatMode(word).set();
            call_opaquely(&mut work);
            assert!(is_mode(word), "the mode was not restored");
        }
    }

    fn is_mode(word: u64) -> bool {
        #[cfg(target_arch = "x86_64")]
        return FloatMode::current().0 & !FloatMode::FLAGS == word;
        #[cfg(target_arch = "aarch64")]
        return FloatMode::current().0 == word;
    }

    #[test]
    fn work_runs_in_the_default_mode() {
        // The quotient is rounded up to nearest, so every other rounding mode changes one sign.
        let tenth = |one: f64| (std::hint::black_box(one) / std::hint::black_box(10.0)).to_bits();
        let tiny = || {
            let number = f32::from_bits(std::hint::black_box(7));
            (number * std::hint::black_box(1.0)).to_bits()
        };
        let work = || (tenth(1.0), tenth(-1.0), tiny());
        let expected = work();
        let mut differences = 0;
        in_unusual_modes(|| {
            differences += u32::from(work() != expected);
            assert_eq!(with_default_float_mode(work), expected);
        });
        assert_eq!(differences, 5, "an unusual mode has no effect on this processor");
    }

    #[test]
    fn a_panic_restores_the_mode() {
        in_unusual_modes(|| {
            let panicking = || with_default_float_mode(|| std::panic::resume_unwind(Box::new(())));
            assert!(std::panic::catch_unwind(panicking).is_err());
        });
    }
}
