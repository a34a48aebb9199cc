//! Requests that got no place in their group's turn: see [`crate::chains::commit`].

use std::sync::Arc;

use smallvec::smallvec;
use terrane_base::Result;

use crate::chains::Chains;
use crate::db::anchor::TableRef;
use crate::db::engine::Engine;
use crate::db::request::{Request, Requests};
use crate::log::Log;

/// Requests that got no place, ...
#[derive(Debug, Default)]
pub(crate) struct Again {
    /// ... for there was no room without a zone more, and one had set none aside: all of a group, ...
    pub(super) short: Requests,
    /// ... or since they have no locks and need some by now: see `txn::plain`.
    pub(super) late: Requests,
}

/// Requests with zones are never short.
fn expect_none(short: Requests) {
    debug_assert!(short.is_empty(), "a place was wanted in more subtables than zones were set aside for");
}

impl Engine {
    /// Places requests that got no place. Who waits for zones meanwhile holds none, and nobody waits behind it who needs none, or one that is there
    /// by then. (With it waits who leads the group. But hardly ever: where zones are scarce each has its own before, see
    /// [`Engine::admit_at_first`].)
    #[cold]
    pub(crate) fn come_again(self: &Arc<Self>, chains: &Chains, trailing: Option<&Log>, again: Again) {
        let mut late = again.late;
        let (with_zones, without): (Requests, Requests) =
            again.short.into_iter().partition(|r| r.zones.is_some());
        expect_none(self.place_again(trailing, with_zones, &mut late));
        let mut waiting = Requests::new();
        for r in without {
            // It may be another one's part of the group that had no room; or there is a zone for both by now.
            let Some(mut r) = self.place_if_room(trailing, r, &mut late) else { continue };
            r.zones = chains.try_admit(r.tables.len());
            match r.zones.is_some() {
                true => expect_none(self.place_again(trailing, smallvec![r], &mut late)),
                false => waiting.push(r),
            }
        }
        for r in &mut late {
            r.zones = r.zones.take().or_else(|| chains.try_admit(r.tables.len()));
        }
        self.hand_on(&mut late);
        // They come anew to the log too.
        waiting.iter_mut().chain(&mut late).for_each(|r| r.admission = None);
        for r in waiting {
            if let Some(r) = self.place_if_room(trailing, r, &mut late)
                && let Some(r) = self.with_zones(chains, r)
            {
                expect_none(self.place_again(trailing, smallvec![r], &mut late));
            }
            self.hand_on(&mut late);
        }
        for r in late {
            let mut r: Requests = self.with_zones(chains, r).into_iter().collect();
            self.hand_on(&mut r);
        }
    }

    /// Has a job place those that have zones, out of requests that need locks. (It must not wait for zones that other jobs free.)
    fn hand_on(self: &Arc<Self>, late: &mut Requests) {
        let (ready, without): (Requests, Requests) =
            std::mem::take(late).into_iter().partition(|r| r.zones.is_some());
        *late = without;
        if !ready.is_empty() {
            self.commit_guarded(ready);
        }
    }

    /// Places requests once more, and gives back those that are short again.
    fn place_again(
        self: &Arc<Self>,
        trailing: Option<&Log>,
        requests: Requests,
        late: &mut Requests,
    ) -> Requests {
        let requests: Requests = requests.into_iter().filter_map(|r| self.allow_again(r)).collect();
        if requests.is_empty() {
            return requests;
        }
        let left = self.place_in_memory(trailing, requests).map(|left| *left).unwrap_or_default();
        late.extend(left.late);
        left.short
    }

    /// As [`Engine::place_again`], of a request for which there seems to be room; else it is given back.
    fn place_if_room(
        self: &Arc<Self>,
        trailing: Option<&Log>,
        r: Box<Request>,
        late: &mut Requests,
    ) -> Option<Box<Request>> {
        let has_room = self.seems_to_have_room(&r);
        if has_room { self.place_again(trailing, smallvec![r], late).pop() } else { Some(r) }
    }

    /// Whether there is room for a request in zones of all its subtables, as it seems outside of a turn.
    fn seems_to_have_room(&self, r: &Request) -> bool {
        let has_room = |(table, len): (&TableRef, &u32)| {
            let state = table.state();
            *len == 0 || state.active().chain().is_none_or(|c| c.index().chain().has_room(*len as usize))
        };
        r.tables.iter().zip(&r.lengths).all(has_room)
    }

    /// A request that may still be committed, with room in the log, where it has taken some in vain. Else it is refused.
    fn allow_again(&self, r: Box<Request>) -> Option<Box<Request>> {
        self.or_refuse(r, |r| self.admit_again(r))
    }

    /// A request with a zone for each of its subtables. Waits as [`Engine::admit_to_memory`]. If there are none it is refused.
    fn with_zones(self: &Arc<Self>, chains: &Chains, r: Box<Request>) -> Option<Box<Request>> {
        self.or_refuse(r, |r| {
            r.zones = Some(self.admit_to_memory(chains, &r.tables)?);
            Ok(())
        })
    }

    /// A request that may still be committed, and gets what it needs for that. Else it is refused.
    fn or_refuse(
        &self,
        mut r: Box<Request>,
        admit: impl FnOnce(&mut Request) -> Result<()>,
    ) -> Option<Box<Request>> {
        match Engine::still_allowed(&r).and_then(|()| admit(&mut r)) {
            Ok(()) => Some(r),
            Err(e) => {
                self.refuse(r, e);
                None
            }
        }
    }
}
