#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrane_fuzz::decoders::chain(data));
