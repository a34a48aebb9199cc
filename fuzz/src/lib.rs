//! What the targets run. Decoders and operations are those of the ordinary tests: each find becomes a case there.
//!
//! `cargo install cargo-fuzz`, a nightly toolchain, then `cargo xtask fuzz [TARGET...] --seconds N`.

#[path = "../../crates/format/tests/damage/decoders.rs"]
pub mod decoders;
pub mod ops;
#[path = "../../crates/terrane/tests/support/mod.rs"]
pub mod support;
