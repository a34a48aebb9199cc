//! Where nodes and version lists live: bump memory, and free lists of what was retired.
//!
//! Memory has a type for ever: what was a `Node16` becomes a `Node16` again or nothing, and its lock word goes on
//! counting. A cursor may therefore look at the lock word of a node it noted long ago, without having held anything, and
//! learns from it whether this still is that node, unchanged.

use std::ptr::{NonNull, with_exposed_provenance};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::art::node::{Node, Node4, Node16, Node48, Node256, NodeRef};
use crate::art::reclaim::Guard;
use crate::art::versions::{Entry, VersionList};
use crate::art::word::Kind;
use crate::memory::{Home, Memory};

/// Free lists by what lies at the addresses: nodes by kind, version lists, arrays by the logarithm of their length.
const LISTS: usize = Kind::N256 as usize + 1;
const ENTRIES: usize = LISTS + 1;
const CLASSES: usize = ENTRIES + 33;

fn entries_class(count: usize) -> usize {
    debug_assert!(count.is_power_of_two());
    (ENTRIES + count.trailing_zeros() as usize).min(CLASSES - 1)
}

/// Addresses of one class that may serve again.
#[derive(Default)]
struct FreeList {
    count: AtomicUsize,
    addresses: Mutex<Vec<usize>>,
}

/// All free lists. Shared with what is waiting in the epochs; owns none of the memory.
struct FreeLists([FreeList; CLASSES]);

impl FreeLists {
    fn put(&self, class: usize, address: usize) {
        let mut addresses = self.0[class].addresses.lock();
        addresses.push(address);
        self.0[class].count.store(addresses.len(), Ordering::Relaxed);
    }

    /// Something of `class`, unless another thread is at the list just now: then fresh memory is cheaper than waiting.
    #[inline]
    fn take(&self, class: usize) -> Option<usize> {
        if self.0[class].count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut addresses = self.0[class].addresses.try_lock()?;
        let address = addresses.pop()?;
        self.0[class].count.store(addresses.len(), Ordering::Relaxed);
        Some(address)
    }
}

/// Memory that was taken out of the tree: it may serve again when this is dropped.
pub(crate) struct Reuse {
    free: Arc<FreeLists>,
    class: usize,
    address: usize,
}

impl Drop for Reuse {
    fn drop(&mut self) {
        self.free.put(self.class, self.address);
    }
}

/// See the module's head.
pub(crate) struct Pool {
    memory: Memory,
    free: Arc<FreeLists>,
}

impl Pool {
    pub(crate) fn new(home: impl Into<Home>) -> Self {
        Pool {
            memory: Memory::new(align_of::<Node4>(), home),
            free: Arc::new(FreeLists(std::array::from_fn(|_| FreeList::default()))),
        }
    }

    /// Bytes taken from the budget.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Bytes of chunks that are not the allocator's.
    pub(crate) fn lent_bytes(&self) -> usize {
        self.memory.lent_bytes()
    }

    /// A node that nobody knows; its content is of no meaning until started.
    pub(crate) fn node(&self, kind: Kind) -> NodeRef<'_> {
        match kind {
            Kind::N4 => NodeRef::N4(self.of_kind::<Node4>()),
            Kind::N16 => NodeRef::N16(self.of_kind::<Node16>()),
            Kind::N48 => NodeRef::N48(self.of_kind::<Node48>()),
            Kind::N256 => NodeRef::N256(self.of_kind::<Node256>()),
        }
    }

    fn of_kind<N: Node>(&self) -> &N {
        let Some(address) = self.free.take(N::KIND as usize) else {
            return self.fresh(N::new());
        };
        // SAFETY: only addresses of nodes of this kind are put on this list, and they stay so while the pool lives.
        let node = unsafe { &*with_exposed_provenance::<N>(address) };
        node.header().lock.renew();
        node
    }

    fn fresh<T>(&self, value: T) -> &T {
        let at: NonNull<T> = self.memory.alloc(size_of::<T>()).cast();
        // SAFETY: the piece is ours, large enough, and aligned to a cache line, as all that is allocated here.
        unsafe {
            at.write(value);
            at.as_ref()
        }
    }

    /// Gives back a node that never was in the tree.
    pub(crate) fn abandon_node(&self, node: NodeRef<'_>) {
        self.free.put(node.kind() as usize, node.address());
    }

    /// Gives back a node that was taken out of the tree, once nobody reads it any more.
    pub(crate) fn retire_node(&self, node: NodeRef<'_>, guard: &Guard<'_>) {
        self.retire(node.kind() as usize, node.address(), guard);
    }

    /// A version list that nobody knows.
    pub(crate) fn list(&self) -> &VersionList {
        let Some(address) = self.free.take(LISTS) else { return self.fresh(VersionList::new()) };
        // SAFETY: only addresses of version lists are put on this list.
        unsafe { &*with_exposed_provenance(address) }
    }

    /// Gives back a version list that never was in the tree.
    pub(crate) fn abandon_list(&self, list: &VersionList) {
        self.free.put(LISTS, std::ptr::from_ref(list).expose_provenance());
    }

    /// An array of `count` entries that nobody knows.
    pub(crate) fn entries(&self, count: usize) -> &[Entry] {
        let at: NonNull<Entry> = match self.free.take(entries_class(count)) {
            Some(address) => {
                // SAFETY: only addresses of initialised arrays of this many entries are put on this list.
                return unsafe { std::slice::from_raw_parts(with_exposed_provenance(address), count) };
            }
            None => self.memory.alloc(count * size_of::<Entry>()).cast(),
        };
        // SAFETY: the piece is ours, aligned and large enough; each entry is written before it is referred to.
        unsafe {
            (0..count).for_each(|i| at.add(i).write(Entry::new()));
            std::slice::from_raw_parts(at.as_ptr(), count)
        }
    }

    /// Gives back an array that was replaced, once nobody reads it any more.
    pub(crate) fn retire_entries(&self, address: usize, count: usize, guard: &Guard<'_>) {
        self.retire(entries_class(count), address, guard);
    }

    fn retire(&self, class: usize, address: usize, guard: &Guard<'_>) {
        guard.retire(Reuse { free: Arc::clone(&self.free), class, address });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use terrane_base::MemoryBudget;

    use super::*;

    #[test]
    fn what_is_given_back_serves_as_what_it_was_alone() {
        const KINDS: [Kind; 4] = [Kind::N4, Kind::N16, Kind::N48, Kind::N256];
        let pool = Pool::new(MemoryBudget::new(0));
        let address = |list: &VersionList| std::ptr::from_ref(list).addr();
        let list = pool.list();
        let nodes = KINDS.map(|kind| pool.node(kind));
        pool.abandon_list(list);
        let more = KINDS.map(|kind| pool.node(kind));
        nodes.into_iter().for_each(|node| pool.abandon_node(node));
        let other = pool.list();
        assert_eq!(address(other), address(list));
        let again = KINDS.map(|kind| pool.node(kind));
        assert_eq!(again.map(NodeRef::address), nodes.map(NodeRef::address));
        assert!(more.iter().all(|node| node.address() != address(list)));
        assert_ne!(address(pool.list()), address(list));
    }
}
