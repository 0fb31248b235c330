//! Arbitrary bytes and spoilt messages to both sides of the handshake.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::store::tcp::fuzz::secret);
});
