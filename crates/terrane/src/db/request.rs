//! What passes through a commit's stations: a request on its way to a place in the order, and what stands in that place.

use std::cell::Cell;

use smallvec::SmallVec;
use terrane_base::waiter::Settler;
use terrane_base::{Error, Seq};
use terrane_format::batch::{EntryKind, entry_len};
use terrane_format::value_ref::ValueRef;
use terrane_locks::Owner;

use crate::batch::{Lengths, Tables, keep};
use crate::chains::commit::{Items, KEPT_BYTES};
use crate::log::Admission;
use crate::options::Durability;
use crate::txn::attach::Attachment;

/// One entry of the log on its way there, mostly through a bucket. It passes through a dozen hands, so it is boxed.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kind: EntryKind,
    /// What stands in front of the operations.
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) count: u32,
    pub(super) body_crc: u32,
    pub(super) sync: bool,
    pub(crate) tables: Tables,
    /// Large values that the body refers to, written already.
    pub(super) values: Vec<ValueRef>,
    pub(super) settler: Settler,
    pub(crate) locks: Locks,
    /// What becomes part of the database in its turn.
    pub(super) attachment: Option<Box<Attachment>>,
    /// Held until the body is in the log.
    pub(crate) admission: Option<Admission>,
    /// In persistent memory: bytes of its records in each of its subtables, ...
    pub(crate) lengths: Lengths,
    /// ... and a zone for each of them, if they were set aside.
    pub(crate) zones: Option<terrane_chainlog::Admission>,
    /// What its item there is put together in, if that is one record: of no use but for its memory.
    pub(crate) item: Vec<u8>,
}

/// Those of a group.
pub(crate) type Requests = SmallVec<[Box<Request>; 1]>;

/// What keeps others from what a request writes.
#[derive(Debug)]
pub(crate) enum Locks {
    /// Nothing: nobody takes locks, or did not when it was looked last.
    None,
    /// Locks; they are let go of once the request is published, if they come along.
    Held(Option<Owner>),
}

/// What is to be committed, and how.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) kind: EntryKind,
    pub(crate) head: Vec<u8>,
    pub(crate) durability: Durability,
    pub(crate) locks: Locks,
    /// It has its place when the call that submits it returns: what is submitted later comes behind it.
    pub(crate) ordered: bool,
}

impl Form {
    /// A batch that no transaction stands behind.
    pub(crate) fn plain(durability: Durability) -> Self {
        Form { kind: EntryKind::Batch, head: Vec::new(), durability, locks: Locks::None, ordered: false }
    }

    /// A transaction's batch, with its locks or while it keeps them itself.
    pub(crate) fn locked(durability: Durability, locks: Option<Owner>) -> Self {
        Form { locks: Locks::Held(locks), ..Form::plain(durability) }
    }

    /// A stage of a prepared transaction that keeps its locks itself.
    pub(crate) fn stage(kind: EntryKind, head: Vec<u8>, durability: Durability) -> Self {
        Form { kind, head, ..Form::locked(durability, None) }
    }
}

impl Request {
    /// Nothing, for nobody: to be filled. In the memory of one that this thread has placed, if there is.
    pub(super) fn nothing() -> Box<Self> {
        // A thread that ends keeps none.
        let kept = KEPT_REQUEST.try_with(Cell::take).ok().flatten();
        kept.unwrap_or_else(|| {
            Box::new(Request {
                kind: EntryKind::NoOp,
                head: Vec::new(),
                body: Vec::new(),
                count: 0,
                body_crc: 0,
                sync: false,
                tables: Tables::new(),
                values: Vec::new(),
                settler: Settler::nobody(),
                locks: Locks::Held(None),
                attachment: None,
                admission: None,
                lengths: Lengths::new(),
                zones: None,
                item: Vec::new(),
            })
        })
    }

    /// Makes it nothing, for nobody, and keeps its memory for the next one of this thread.
    fn keep(mut self: Box<Self>) {
        let Request {
            kind,
            head,
            body,
            count,
            body_crc,
            sync,
            tables,
            values,
            settler,
            locks,
            attachment,
            admission,
            lengths,
            zones,
            item,
        } = &mut *self;
        (*kind, *count, *body_crc, *sync) = (EntryKind::NoOp, 0, 0, false);
        (*head, *body, *values) = (Vec::new(), Vec::new(), Vec::new());
        (*settler, *locks, *attachment) = (Settler::nobody(), Locks::Held(None), None);
        (*admission, *zones) = (None, None);
        tables.clear();
        lengths.clear();
        if item.capacity() > KEPT_BYTES {
            *item = Vec::new();
        }
        if !tables.spilled() && !lengths.spilled() {
            let _ = KEPT_REQUEST.try_with(|kept| kept.set(Some(self)));
        }
    }

    /// Fills a place with nothing.
    pub(crate) fn no_op(settler: Settler) -> Box<Self> {
        let mut request = Request::nothing();
        request.settler = settler;
        request
    }

    /// Attaches runs; in the log it is nothing. Alone in its place.
    pub(crate) fn attach(attachment: Attachment, settler: Settler) -> Box<Self> {
        let mut request = Request::no_op(settler);
        request.attachment = Some(Box::new(attachment));
        request
    }

    /// What it takes of the order, in bytes: those of its entry in the log, where there is one.
    pub(super) fn len(&self) -> u64 {
        entry_len(self.head.len() + self.body.len())
    }

    /// That in units of the ring.
    pub(crate) fn units(&self) -> u64 {
        self.len() / 8
    }

    /// How much a leader has to write for it, in bytes.
    pub(super) fn weight(&self) -> u64 {
        self.lengths.iter().map(|len| u64::from(*len)).sum::<u64>().max(self.len())
    }

    pub(crate) fn ops(&self) -> &[u8] {
        &self.body
    }

    /// Number of operations.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether its operations count from here on.
    pub(super) fn applies(&self) -> bool {
        matches!(self.kind, EntryKind::Batch | EntryKind::Commit)
    }
}

/// What stands in the ring: one pointer, so that a slot is no more than a line of memory.
pub(crate) type Placed = Box<GroupEntry>;

/// One leader's group in the ring.
#[derive(Debug, Default)]
pub(crate) struct GroupEntry {
    pub(super) members: SmallVec<[Member; 1]>,
    pub(super) sync: bool,
    pub(crate) failed: Option<Error>,
    /// Its items in persistent memory.
    pub(crate) written: Items,
    pub(super) attachment: Option<Box<Attachment>>,
    /// Why its attachment came to nothing.
    pub(super) refused: Option<Error>,
}

thread_local! {
    /// An entry that was settled, for its memory.
    static KEPT: Cell<Option<Placed>> = const { Cell::new(None) };
    /// A request that has its place, empty, for its memory.
    static KEPT_REQUEST: Cell<Option<Box<Request>>> = const { Cell::new(None) };
}

impl GroupEntry {
    /// An empty one.
    pub(crate) fn empty() -> Placed {
        // A thread that ends keeps none.
        KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// Keeps the memory of one that was settled for the next one of this thread.
    pub(super) fn keep(mut entry: Placed) {
        let GroupEntry { members, sync, failed, written, attachment, refused } = &mut *entry;
        members.clear();
        written.clear();
        (*sync, *failed, *attachment, *refused) = (false, None, None, None);
        // Of a large group that is more than the entry.
        if !members.spilled() && !written.spilled() {
            let _ = KEPT.try_with(|kept| kept.set(Some(entry)));
        }
    }

    /// Has a request along, whose sequence that is.
    pub(crate) fn take(&mut self, mut r: Box<Request>, seq: Seq) {
        self.sync |= r.sync;
        if r.attachment.is_some() {
            self.attachment = r.attachment.take();
        }
        let locks = match &mut r.locks {
            Locks::Held(locks) => locks.take(),
            Locks::None => None,
        };
        self.members.push(Member {
            settler: std::mem::replace(&mut r.settler, Settler::nobody()),
            seq,
            locks,
        });
        keep(std::mem::take(&mut r.body));
        r.keep();
    }

    /// Hands out its members, in their order, each with why its attachment came to nothing.
    pub(super) fn tell(&mut self, mut each: impl FnMut(Member, Option<Error>)) {
        self.members.reverse();
        while let Some(member) = self.members.pop() {
            each(member, self.refused.clone());
        }
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) settler: Settler,
    pub(super) seq: Seq,
    /// Let go of once it is published.
    pub(super) locks: Option<Owner>,
}

#[cfg(test)]
mod tests {
    use terrane_base::Completion;

    use super::*;

    #[test]
    fn nothing_of_a_request_is_left_in_the_next_one_of_its_thread() {
        let completion = Completion::new();
        let mut request = Request::nothing();
        let at: *const Request = &*request;
        (request.kind, request.count, request.body_crc, request.sync) = (EntryKind::Batch, 3, 4, true);
        (request.head, request.body) = (vec![5], vec![6; 100]);
        (request.locks, request.settler) = (Locks::None, completion.settler());
        request.values.push(ValueRef { id: 1, len: 2, pieces: Vec::new() });
        request.lengths.push(7);
        let mut entry = GroupEntry::empty();
        entry.take(request, 8);
        assert!(!completion.is_settled(), "its member has its settler");
        let next = Request::nothing();
        assert!(std::ptr::eq(&*next, at), "it is where the other one was");
        assert_eq!((next.kind, next.count, next.body_crc, next.sync), (EntryKind::NoOp, 0, 0, false));
        assert!(next.head.is_empty() && next.body.is_empty() && next.values.is_empty());
        assert!(next.tables.is_empty() && next.lengths.is_empty() && next.attachment.is_none());
        assert!(next.zones.is_none() && next.admission.is_none() && matches!(next.locks, Locks::Held(None)));
        let mut told = Vec::new();
        entry.take(next, 9);
        entry.tell(|member, refused| {
            assert!(refused.is_none());
            told.push(member.seq);
            member.settler.settle(Ok(member.seq));
        });
        assert_eq!(told, [8, 9], "in the order in which they came");
        assert_eq!(completion.outcome().unwrap().unwrap(), 8);
        entry.refused = Some(Error::invalid("an attachment that came to nothing"));
        entry.take(Request::nothing(), 10);
        let mut refusals = 0;
        entry.tell(|_, refused| refusals += u32::from(refused.is_some()));
        assert_eq!(refusals, 1);
        // Memory that it has beside is not kept.
        let mut large = Request::nothing();
        large.lengths.extend([1, 2, 3, 4]);
        entry.take(large, 11);
        assert!(!Request::nothing().lengths.spilled());
    }
}
