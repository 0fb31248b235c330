//! Arbitrary bytes on the connection between two leaders.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::transport::tcp::fuzz::control);
});
