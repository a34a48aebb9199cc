//! Being written: buckets, where concurrent commits gather behind one leader.

use std::marker::PhantomData;

/// How much a leader takes along.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all followers together.
    pub bytes: u64,
    /// Number of followers.
    pub count: u32,
}

/// A fixed number of buckets of requests.
pub struct Buckets<R> {
    _requests: PhantomData<fn(R) -> R>,
}

/// What a thread is after [`Buckets::enter`].
pub enum Role<'b, R> {
    /// Commits for itself and for those who arrive before [`Lead::close`].
    Leader(Lead<'b, R>),
    /// A leader has the request and will settle it.
    Follower,
}

/// Leadership of a bucket, until closed. Dropping it drops the requests.
#[must_use]
pub struct Lead<'b, R> {
    _buckets: &'b Buckets<R>,
}

impl<R: Send> Lead<'_, R> {
    /// Ends the gathering and gives the group. The next to enter the bucket leads.
    pub fn close(self) -> Group<R> {
        todo!()
    }
}

/// A leader's request and those of its followers in order of arrival.
#[derive(Debug)]
pub struct Group<R> {
    /// The leader's own request.
    pub own: R,
    /// Those who arrived after, in order.
    pub followers: Vec<R>,
}

impl<R> Group<R> {
    /// All requests, the leader's first.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        std::iter::once(&self.own).chain(&self.followers)
    }
}

impl<R: Send> Buckets<R> {
    /// `buckets` buckets (rounded up to a power of two).
    pub fn new(buckets: usize, limits: Limits) -> Self {
        let _ = (buckets, limits);
        todo!()
    }
    /// Enters the bucket that `hint` (a thread's number, say) selects, with a request of `bytes` bytes.
    pub fn enter(&self, hint: usize, bytes: u64, request: R) -> Role<'_, R> {
        let _ = (hint, bytes, request);
        todo!()
    }
}
