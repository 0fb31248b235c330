//! Arbitrary bytes of a peer to the engine of messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::transport::matching::fuzz::frames);
});
