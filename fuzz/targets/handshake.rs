//! Fuzzes the handshake of authenticated connections: an attacker between both sides.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::security::fuzz::handshake);
});
