//! Histories on a simulated machine, compared with a list of what was written.

#![allow(clippy::disallowed_methods)]

mod ahead;
mod crashes;
mod damage;
mod faults;
mod rig;
mod room;
mod tail;
mod threads;
