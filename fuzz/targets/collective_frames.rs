//! Arbitrary bytes of a peer in a collective operation.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::algo::message::fuzz::frames);
});
