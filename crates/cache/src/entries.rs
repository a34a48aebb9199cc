//! The entries of a shard: one per resident frame, in a slab, linked into a queue and into the chain of its extent.

use std::collections::HashMap;
use std::sync::Arc;

use crate::frame::Pin;
use crate::swizzle::Unswizzle;

/// No entry.
pub(crate) const NIL: u32 = u32::MAX;

/// Which queue an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// On probation.
    Small,
    /// Proven.
    Main,
}

/// A swizzle slot: whose, and which.
pub(crate) type Home = (Arc<dyn Unswizzle>, u32);

/// A frame that is taken out of the books.
pub(crate) struct Leaving {
    pub(crate) frame: Pin,
    pub(crate) hash: u64,
    /// The slot to be emptied.
    pub(crate) home: Option<Home>,
    /// Where it was.
    pub(crate) queue: Queue,
}

pub(crate) struct Entry {
    /// The cache's own count of the frame; `None` in a free entry.
    frame: Option<Pin>,
    hash: u64,
    /// The swizzle slot that leads to the frame.
    home: Option<Home>,
    queue: Queue,
    /// Rounds that the entry survives unread.
    pub(crate) credit: u8,
    /// Neighbours in the queue; `next` also links free entries.
    prev: u32,
    next: u32,
    /// Neighbours in the extent's chain.
    kin_prev: u32,
    kin_next: u32,
}

/// A first-in-first-out queue through the slab.
#[derive(Clone, Copy)]
pub(crate) struct List {
    /// Entered last.
    head: u32,
    /// Entered first.
    pub(crate) tail: u32,
    /// Bytes of its frames.
    pub(crate) bytes: usize,
}

impl Default for List {
    fn default() -> Self {
        List { head: NIL, tail: NIL, bytes: 0 }
    }
}

pub(crate) struct Entries {
    slab: Vec<Entry>,
    free: u32,
    len: usize,
    small: List,
    main: List,
    /// First entry of each extent's chain.
    extents: HashMap<u64, u32>,
}

impl Default for Entries {
    fn default() -> Self {
        Entries {
            slab: Vec::new(),
            free: NIL,
            len: 0,
            small: List::default(),
            main: List::default(),
            extents: HashMap::new(),
        }
    }
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether another entry has a number to be known by.
    pub(crate) fn has_room(&self) -> bool {
        self.free != NIL || self.slab.len() < NIL as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        // A hash map keeps a control byte per place, and fills seven eighths of them.
        let map = self.extents.capacity() * (size_of::<(u64, u32)>() + 1) * 8 / 7;
        self.slab.capacity() * size_of::<Entry>() + map
    }

    pub(crate) fn list(&self, queue: Queue) -> List {
        match queue {
            Queue::Small => self.small,
            Queue::Main => self.main,
        }
    }

    /// The frames with their hashes, in no particular order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (&Pin, u64)> {
        self.slab.iter().filter_map(|e| e.frame.as_ref().map(|f| (f, e.hash)))
    }

    pub(crate) fn frame(&self, id: u32) -> Option<&Pin> {
        self.slab.get(id as usize)?.frame.as_ref()
    }

    pub(crate) fn queue_of(&self, id: u32) -> Queue {
        self.slab[id as usize].queue
    }

    pub(crate) fn entry_mut(&mut self, id: u32) -> &mut Entry {
        &mut self.slab[id as usize]
    }

    /// The first entry of `extent`.
    pub(crate) fn first_of(&self, extent: u64) -> Option<u32> {
        self.extents.get(&extent).copied()
    }

    /// Adds `frame` as the newest of `queue`.
    pub(crate) fn add(&mut self, frame: Pin, hash: u64, queue: Queue, credit: u8) -> u32 {
        debug_assert!(self.has_room());
        let kin = self.extents.get(&frame.key().extent).copied().unwrap_or(NIL);
        let extent = frame.key().extent;
        let entry = Entry {
            frame: Some(frame),
            hash,
            home: None,
            queue,
            credit,
            prev: NIL,
            next: NIL,
            kin_prev: NIL,
            kin_next: kin,
        };
        let id = if self.free == NIL {
            self.slab.push(entry);
            (self.slab.len() - 1) as u32
        } else {
            let id = self.free;
            self.free = self.slab[id as usize].next;
            self.slab[id as usize] = entry;
            id
        };
        if kin != NIL {
            self.slab[kin as usize].kin_prev = id;
        }
        self.extents.insert(extent, id);
        if let Some(frame) = &self.slab[id as usize].frame {
            frame.set_entry(id);
        }
        self.len += 1;
        self.link(id, queue);
        id
    }

    /// Notes that a slot leads to the frame of entry `id`; returns another one that did.
    pub(crate) fn set_home(&mut self, id: u32, home: Home) -> Option<Home> {
        let own = &mut self.slab.get_mut(id as usize)?.home;
        let is_same = |(whose, which): &Home| Arc::ptr_eq(whose, &home.0) && *which == home.1;
        if own.as_ref().is_some_and(is_same) {
            return None;
        }
        own.replace(home)
    }

    /// Takes entry `id` out.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Leaving> {
        self.frame(id)?;
        self.unlink(id);
        let entry = &mut self.slab[id as usize];
        let (prev, next, hash, queue) = (entry.kin_prev, entry.kin_next, entry.hash, entry.queue);
        let (frame, home) = (entry.frame.take()?, entry.home.take());
        entry.next = self.free;
        self.free = id;
        self.len -= 1;
        if next != NIL {
            self.slab[next as usize].kin_prev = prev;
        }
        if prev != NIL {
            self.slab[prev as usize].kin_next = next;
        } else if next != NIL {
            self.extents.insert(frame.key().extent, next);
        } else {
            self.extents.remove(&frame.key().extent);
        }
        Some(Leaving { frame, hash, home, queue })
    }

    /// Makes entry `id` the newest of `queue`, wherever it is now.
    pub(crate) fn requeue(&mut self, id: u32, queue: Queue) {
        self.unlink(id);
        self.slab[id as usize].queue = queue;
        self.link(id, queue);
    }

    /// Gives back the memory that entries now gone took; the order of the queues stays.
    pub(crate) fn compact(&mut self) {
        let mut old = std::mem::take(self);
        for queue in [Queue::Small, Queue::Main] {
            while let Some(id) = Some(old.list(queue).tail).filter(|&id| id != NIL) {
                let credit = old.slab[id as usize].credit;
                let Some(Leaving { frame, hash, home, .. }) = old.remove(id) else { break };
                let id = self.add(frame, hash, queue, credit);
                self.slab[id as usize].home = home;
            }
        }
        self.slab.shrink_to_fit();
        self.extents.shrink_to_fit();
    }

    fn list_mut(&mut self, queue: Queue) -> &mut List {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    fn charge(&self, id: u32) -> usize {
        self.frame(id).map_or(0, Pin::charge)
    }

    fn link(&mut self, id: u32, queue: Queue) {
        let charge = self.charge(id);
        let list = self.list_mut(queue);
        let head = std::mem::replace(&mut list.head, id);
        list.bytes += charge;
        if head == NIL {
            list.tail = id;
        } else {
            self.slab[head as usize].prev = id;
        }
        let entry = &mut self.slab[id as usize];
        (entry.prev, entry.next) = (NIL, head);
    }

    fn unlink(&mut self, id: u32) {
        let charge = self.charge(id);
        let Entry { prev, next, queue, .. } = self.slab[id as usize];
        if prev != NIL {
            self.slab[prev as usize].next = next;
        }
        if next != NIL {
            self.slab[next as usize].prev = prev;
        }
        let list = self.list_mut(queue);
        list.bytes -= charge;
        if prev == NIL {
            list.head = next;
        }
        if next == NIL {
            list.tail = prev;
        }
    }
}
