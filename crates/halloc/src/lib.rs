//! Halloc: who has which part of a persistent memory.
//!
//! One file, mapped, is divided once into pools of objects of one size ([`terrane_format::pm`]): subtables, memtables, and zones,
//! which hold records. There is no log: one word for each object says who has it, and that one word changes from one state to the next
//! as a whole.
//!
//! The life of an object, after the reference ("Revisiting the Design of LSM-tree Based OLTP Storage Engine with Persistent Memory",
//! VLDB 2021):
//! 1. [`Pool::get`] takes it off the freelist: one word is read. Nothing is flushed: after a crash it is free.
//! 2. Its owner fills it, flushes that, and links it to whatever it belongs to.
//! 3. [`Fresh::commit`] stores its word, which says so, flushes it and fences: from then on it is taken, after a crash too. Links
//!    to an object that was not committed lead nowhere ([`Pool::check`] says so), so none is ever lost. With what [`Fresh::write`] wrote
//!    a fence more comes before that, so an allocation takes one read of the memory, one flush and one fence, and a filled one two fences.
//! 4. [`Pool::release`] clears the words of objects that nothing refers to any more, with one fence for all of them.
//!
//! What is never committed is free again when the memory is opened next: [`Lent`] is such an object, for what is to vanish with the
//! process.
//!
//! ```
//! use std::path::Path;
//! use terrane_halloc::{Halloc, Plan};
//! use terrane_format::pm::PoolKind;
//! use terrane_media::{Media, PmemMode, sim::SimMedia};
//!
//! # fn main() -> terrane_base::Result<()> {
//! let media = SimMedia::new(1);
//! let plan = Plan { bytes: 1 << 20, subtables: 16, memtables: 16, zone_bytes: 16 << 10 };
//! Halloc::create(&*media, Path::new("/pm"), &plan, [7; 16], 0)?;
//! let halloc = Halloc::open(&*media, Path::new("/pm"), PmemMode::Dax, [7; 16], 0)?;
//!
//! let zones = halloc.pool(PoolKind::Zones);
//! let zone = zones.get()?;
//! zone.write(0, b"a record")?;
//! let number = zone.commit(42)?;
//! assert_eq!(zones.check(number)?, Some(42));
//! zones.release(&[number])?;
//! halloc.close(&*media)
//! # }
//! ```

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod freelist;
mod halloc;
mod pool;

pub use halloc::{Halloc, Plan};
pub use pool::{Fresh, Lent, Pool};
pub use terrane_format::pm::{Known, MAX_TAG};

#[cfg(all(test, loom))]
mod model;
