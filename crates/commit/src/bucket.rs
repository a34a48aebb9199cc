//! Buckets, where concurrent commits gather behind a leader.
//!
//! A bucket is one word: empty, *led*, or led with a chain of followers' requests. The first to enter an empty bucket
//! turns it to led and leads. Who finds it led pushes a request onto the chain and follows: the leader has the request
//! now. Closing the group takes the chain off and leaves the bucket empty for the next leader, who need not wait for
//! this one's commit: that is what the ring is for.
//!
//! A request that would make a group too large, or is large itself, leads alone, outside the bucket.
//!
//! # Concurrency
//! `head` only ever changes empty -> led (entering), up the chain (following), and anything -> empty (closing, by the
//! leader alone). A chain is taken whole, never popped, so the address of a node may come back without harm: a push
//! whose compare-and-swap succeeds has the true current head as its next. Following releases, closing acquires, and
//! every change is a read-modify-write, so closing acquires from *all* who followed (each later RMW continues the
//! release sequence of those before). Entering as leader carries no data and is relaxed.
//!
//! `load` counts the followers between asking to follow and being taken off (or withdrawing); it is a sum of relaxed
//! additions that orders nothing. It can be seen too high while somebody withdraws: then another leads alone, no harm.
//! It is never too low, so a group's bound holds exactly.
//!
//! A lone leader does two RMWs, allocates nothing, and touches neither `load` nor a node.

use std::iter;
use std::ptr;

use crossbeam_utils::CachePadded;
use terrane_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// How much a leader takes along.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all followers of a group together. A request larger than this leads alone, so a group has at most
    /// twice as many. At most 4 GiB.
    pub bytes: u64,
    /// Number of followers of a group. At most 32,767.
    pub count: u32,
}

/// A fixed number of buckets of requests `R`. A request carries whatever tells its owner the outcome, best a
/// [`terrane_base::Settler`], which tells it even when dropped.
#[derive(Debug)]
pub struct Buckets<R> {
    buckets: Box<[CachePadded<Bucket<R>>]>,
    limits: Limits,
}

#[derive(Debug)]
struct Bucket<R> {
    head: AtomicPtr<Node<R>>,
    load: AtomicU64,
}

struct Node<R> {
    /// Who came before; `LED` at the end of the chain.
    next: *mut Node<R>,
    bytes: u64,
    request: R,
}

/// `load` holds bytes below and the count above.
const COUNT_SHIFT: u32 = 48;

fn load_of(bytes: u64, count: u64) -> u64 {
    bytes | count << COUNT_SHIFT
}

/// The head of a bucket that has a leader and no followers: not the address of anything.
fn led<R>() -> *mut Node<R> {
    ptr::without_provenance_mut(1)
}

/// What a thread is after [`Buckets::enter`].
#[derive(Debug)]
pub enum Role<'b, R: Send> {
    /// It commits for itself and for those who enter the bucket before [`Lead::close`].
    Leader(Lead<'b, R>),
    /// A leader has the request and will settle it.
    Follower,
}

/// Leadership of a group, until closed. Dropping it drops its requests and its followers'.
#[derive(Debug)]
#[must_use = "followers wait until the group is closed"]
pub struct Lead<'b, R: Send> {
    own: R,
    claim: Claim<'b, R>,
}

/// The bucket to be closed; `None` for one who leads alone.
#[derive(Debug)]
struct Claim<'b, R>(Option<&'b Bucket<R>>);

/// A leader's request and those of its followers.
#[derive(Debug)]
pub struct Group<R> {
    /// The leader's own request.
    pub own: R,
    /// Those who came after, in order of arrival.
    pub followers: Vec<R>,
}

impl<R> Group<R> {
    /// All requests, the leader's first.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        iter::once(&self.own).chain(&self.followers)
    }
}

impl<R> IntoIterator for Group<R> {
    type Item = R;
    type IntoIter = iter::Chain<iter::Once<R>, std::vec::IntoIter<R>>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self.own).chain(self.followers)
    }
}

impl<R: Send> Buckets<R> {
    /// `buckets` buckets, rounded up to a power of two (and 1 at least); limits beyond what they allow are cut.
    pub fn new(buckets: usize, limits: Limits) -> Self {
        let buckets = buckets.clamp(1, 1 << 16).next_power_of_two();
        Buckets {
            buckets: (0..buckets)
                .map(|_| {
                    CachePadded::new(Bucket {
                        head: AtomicPtr::new(ptr::null_mut()),
                        load: AtomicU64::new(0),
                    })
                })
                .collect(),
            limits: Limits { bytes: limits.bytes.min(1 << 32), count: limits.count.min(0x7fff) },
        }
    }

    /// Enters the bucket that `hint` selects (the thread's number, say; threads whose commits should not wait for each
    /// other, as synced and unsynced, are better kept apart) with a request of `bytes` bytes. Never blocks.
    pub fn enter(&self, hint: usize, bytes: u64, request: R) -> Role<'_, R> {
        let bucket = &*self.buckets[hint & (self.buckets.len() - 1)];
        if bytes > self.limits.bytes {
            return Role::Leader(Lead { own: request, claim: Claim(None) });
        }
        // Relaxed: leading an empty bucket passes nothing on.
        match bucket.head.compare_exchange(ptr::null_mut(), led(), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Role::Leader(Lead { own: request, claim: Claim(Some(bucket)) }),
            Err(head) => self.follow(bucket, head, bytes, request),
        }
    }

    /// What a bucket counts.
    #[cfg(test)]
    pub(crate) fn load(&self, bucket: usize) -> u64 {
        self.buckets[bucket].load.load(Ordering::Relaxed)
    }

    fn follow<'b>(
        &self,
        bucket: &'b Bucket<R>,
        mut head: *mut Node<R>,
        bytes: u64,
        request: R,
    ) -> Role<'b, R> {
        let share = load_of(bytes, 1);
        let load = bucket.load.fetch_add(share, Ordering::Relaxed) + share;
        if load >> COUNT_SHIFT > u64::from(self.limits.count)
            || load & ((1 << COUNT_SHIFT) - 1) > self.limits.bytes
        {
            bucket.load.fetch_sub(share, Ordering::Relaxed);
            return Role::Leader(Lead { own: request, claim: Claim(None) });
        }
        let node = Box::into_raw(Box::new(Node { next: ptr::null_mut(), bytes, request }));
        loop {
            let (new, success) = if head.is_null() {
                (led(), Ordering::Relaxed)
            } else {
                // SAFETY: the node came from `into_raw` above and nobody else has it until it is pushed.
                unsafe { (*node).next = head };
                // Release: the leader that takes the chain reads the node.
                (node, Ordering::Release)
            };
            match bucket.head.compare_exchange_weak(head, new, success, Ordering::Relaxed) {
                Ok(_) if head.is_null() => {
                    bucket.load.fetch_sub(share, Ordering::Relaxed);
                    // SAFETY: as above; it was not pushed.
                    let node = unsafe { Box::from_raw(node) };
                    return Role::Leader(Lead { own: node.request, claim: Claim(Some(bucket)) });
                }
                Ok(_) => return Role::Follower,
                Err(now) => head = now,
            }
        }
    }
}

impl<R> Bucket<R> {
    /// Empties the bucket and gives its followers' requests in order of arrival.
    fn close(&self) -> Vec<R> {
        // Acquire: pairs with the releases of all who followed.
        let mut chain = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut followers = Vec::new();
        let mut load = 0;
        while !chain.is_null() && chain != led() {
            // SAFETY: an address other than null and `led` is that of a box that its follower leaked when it pushed
            // it; the swap took the chain off for this thread alone, and each node is visited once.
            let node = unsafe { Box::from_raw(chain) };
            load += load_of(node.bytes, 1);
            followers.push(node.request);
            chain = node.next;
        }
        if load != 0 {
            self.load.fetch_sub(load, Ordering::Relaxed);
        }
        followers.reverse();
        followers
    }
}

impl<R> Drop for Bucket<R> {
    fn drop(&mut self) {
        // Followers of a lead that was leaked.
        drop(self.close());
    }
}

impl<R: Send> Lead<'_, R> {
    /// The leader's own request.
    pub fn own(&self) -> &R {
        &self.own
    }

    /// Ends the gathering and gives the group. The next to enter the bucket leads.
    pub fn close(self) -> Group<R> {
        let Lead { own, mut claim } = self;
        let followers = claim.0.take().map(Bucket::close).unwrap_or_default();
        Group { own, followers }
    }
}

impl<R> Drop for Claim<'_, R> {
    fn drop(&mut self) {
        if let Some(bucket) = self.0.take() {
            drop(bucket.close());
        }
    }
}
