//! What was committed, after a crash or a close.
//!
//! 1. The allocator's words say which zones a memtable has, and in which order.
//! 2. The words of all memtables say which items are committed; what they say is made durable, for it will be told. Those of the
//!    highest LSN are counted: if they are fewer than that commit has, it was under way, and each of them is taken back.
//! 3. Zones behind the last item of their memtable, and those of memtables that there are not, were opened for what was not
//!    committed. They are given back before anything is written.
//!
//! A crash at any point of this leaves it to be done again: what is taken back is no longer counted, and of what is left of that commit
//! there are fewer still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, Lsn, Result};
use terrane_format::chain::{ChainMemtable, GIDX_AT, Gidx, ItemHeader};
use terrane_format::pm::PoolKind;

use crate::chain::{Chain, item_at, memtable, of_zone_tag};
use crate::space::Space;

/// What a memory has.
#[derive(Debug)]
pub struct Recovered {
    /// The memtables, by subtable and generation. Items can be added to each.
    pub chains: Vec<Chain>,
    /// Where the next commit may begin.
    pub next_lsn: Lsn,
    /// The commit that was taken back, if one was.
    pub undone: Option<Lsn>,
    /// Zones that were given back.
    pub reclaimed: u64,
}

/// A memtable as it is found.
struct Found {
    number: u32,
    of: ChainMemtable,
    gidx: Gidx,
    /// By slot, from 0 on without gaps.
    zones: Vec<u32>,
    /// The header of the last committed item.
    last: Option<ItemHeader>,
}

impl Found {
    fn last_lsn(&self) -> Option<Lsn> {
        self.last.map(|item| item.lsn)
    }

    fn look(&mut self, space: &Space) -> Result<()> {
        let corruption = |what: String| {
            let whose = format!("memtable {} of subtable {} {what}", self.number, self.of.subtable);
            space.in_file(Error::corruption(whose))
        };
        self.last = match self.gidx.current {
            None => None,
            Some(position) => {
                let zone = self.zones.get(position.slot() as usize).copied();
                let zone = zone.ok_or_else(|| corruption(format!("has lost zone {}", position.slot())))?;
                let item = item_at(space, self.of.salt(self.number), space.zones().place(zone)?, position)?;
                if item.lsn < self.of.from_lsn {
                    return Err(corruption("has a last item that is older than itself".into()));
                }
                Some(item)
            }
        };
        Ok(())
    }
}

/// Finds out what was committed. All commits that end at or before the LSN `settled` were, whatever has become of them since: memtables
/// that had items of them may have been released. A memtable that was being released may come back as an empty chain. All memtables
/// that commits go to are in this one memory: items elsewhere would be missed. Comes first: there must be no chain of this space yet.
///
/// # Errors
/// [`terrane_base::ErrorKind::InvalidArgument`] if there is a chain;
/// [`terrane_base::ErrorKind::Corruption`] for whatever is damaged or contradicts itself; what the memory fails with.
pub fn recover(space: &Arc<Space>, settled: Lsn) -> Result<Recovered> {
    let file = |e| space.in_file(e);
    if space.chains.load(Ordering::Relaxed) > 0 {
        // Each memtable would be twice, and the one could release what the other refers to.
        return Err(file(Error::invalid("a memory is recovered while there are memtables in it")));
    }
    let mut zones: BTreeMap<u32, BTreeMap<u32, u32>> = BTreeMap::new();
    for zone in space.zones().committed() {
        let (zone, tag) = zone?;
        let whose = of_zone_tag(tag);
        let (memtable, slot) =
            whose.ok_or_else(|| file(Error::corruption(format!("zone {zone} has a tag of nobody's"))))?;
        if zones.entry(memtable).or_default().insert(slot, zone).is_some() {
            return Err(file(Error::corruption(format!("memtable {memtable} has two zones {slot}"))));
        }
    }
    let mut found = Vec::new();
    for number in space.halloc().pool(PoolKind::Memtables).committed() {
        let (number, _) = number?;
        let (of, gidx) = memtable(space, number)?;
        let own = zones.remove(&number).unwrap_or_default();
        let in_order = own.keys().zip(0..).take_while(|(slot, at)| **slot == *at).count();
        let mut behind = own.into_values();
        let own: Vec<u32> = behind.by_ref().take(in_order).collect();
        // Zones are opened in order by several threads, so a crash may leave a later one without one before it.
        zones.entry(number).or_default().extend((0..).zip(behind));
        let mut one = Found { number, of, gidx, zones: own, last: None };
        one.look(space)?;
        found.push(one);
    }
    space.pmem().fence();
    let undone = take_back(space, &mut found, settled)?;
    let mut unused: Vec<u32> = zones.into_values().flat_map(BTreeMap::into_values).collect();
    for f in &mut found {
        let used = f.gidx.current.map_or(0, |p| p.slot() as usize + 1);
        unused.extend(f.zones.drain(used..));
    }
    space.release(&unused)?;
    let ends = found.iter().map(|f| f.last.map_or(f.of.from_lsn, |item| item.end_lsn()));
    let next_lsn = ends.max().unwrap_or(0).max(settled);
    found.sort_by_key(|f| (f.of.subtable, f.of.generation));
    let chains = found.into_iter().map(|f| {
        let last = f.gidx.current.zip(f.last).map(|(position, item)| (f.gidx, position, item));
        Chain::over(space, f.number, f.of, f.zones, last)
    });
    Ok(Recovered { chains: chains.collect::<Result<_>>()?, next_lsn, undone, reclaimed: unused.len() as u64 })
}

/// Takes the last commit back if it is not whole.
fn take_back(space: &Space, found: &mut [Found], settled: Lsn) -> Result<Option<Lsn>> {
    let Some(last) = found.iter().filter_map(Found::last_lsn).max().filter(|last| *last >= settled) else {
        return Ok(None);
    };
    let mut members: Vec<&mut Found> = found.iter_mut().filter(|f| f.last_lsn() == Some(last)).collect();
    let items = members.iter().filter_map(|m| m.last).map(|item| (item.items, item.units));
    let (least, most) = (items.clone().min(), items.max());
    let count = members.len() as u64;
    let fail = |what: &str| {
        let what = format!("the items of the commit at LSN {last} {what}");
        Err(space.in_file(Error::corruption(what)))
    };
    match least {
        _ if least != most => fail("do not say the same"),
        Some((items, _)) if count > u64::from(items) => fail("are more than it has"),
        Some((items, _)) if count < u64::from(items) => {
            // Nothing is stored before all of it is seen to be right.
            for member in &mut members {
                member.gidx = member.gidx.undone();
                member.look(space)?;
            }
            if members.iter().any(|m| m.last_lsn() >= Some(last)) {
                return fail("follow later ones");
            }
            let pmem = space.pmem();
            for member in &members {
                let at = space.halloc().pool(PoolKind::Memtables).place(member.number)? + GIDX_AT;
                pmem.store_word(at, member.gidx.encode())?;
                pmem.flush(at, size_of::<u64>())?;
            }
            pmem.fence();
            Ok(Some(last))
        }
        _ => Ok(None),
    }
}
