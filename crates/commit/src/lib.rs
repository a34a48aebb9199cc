//! Being written: the public shape of the commit room.

#![deny(unsafe_op_in_unsafe_fn)]

mod bucket;
mod ring;

pub use bucket::{Buckets, Group, Lead, Limits, Role};
pub use ring::{Boundary, Filled, MAX_UNITS, Orderer, Reservation, Ring};
