//! The packed word that a reservation adds to: ticket, epoch and position in 64 bits, none of which ever runs out.
//!
//! The word is a *sum*, modulo 2^64: `position + epoch * 2^42 + ticket * 2^50`. Its fields overflow into each other, so
//! they are not read off by masking but decoded from below: given any position that is at most 2^42 behind, the low
//! bits tell the exact one; take it away, and given any epoch less than 128 off, the next bits tell the exact one; take
//! that away too, and the ticket is left, modulo 2^14. The two reference values change rarely, so the line that holds
//! them stays in every core's cache.

/// Bits of the position within the word.
const POS_BITS: u32 = 42;
/// Where the ticket begins.
const TICKET_SHIFT: u32 = 50;
/// Tickets count modulo this.
pub(crate) const TICKETS: u32 = 1 << (64 - TICKET_SHIFT);
/// How far a position may be ahead of its reference.
pub(crate) const POS_SPAN: u64 = 1 << POS_BITS;
/// What starting the next epoch adds to the word.
pub(crate) const NEXT_EPOCH: u64 = POS_SPAN;
/// What taking the next ticket adds to the word.
pub(crate) const NEXT_TICKET: u64 = 1 << TICKET_SHIFT;

/// A decoded word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Modulo [`TICKETS`].
    pub ticket: u32,
    pub epoch: u64,
    pub pos: u64,
}

impl Place {
    pub(crate) fn pack(self) -> u64 {
        self.pos.wrapping_add(self.epoch << POS_BITS).wrapping_add(u64::from(self.ticket) << TICKET_SHIFT)
    }

    /// Decodes `word`. Wants `pos_behind <= pos < pos_behind + POS_SPAN`, and `epoch_near` less than 128 off.
    #[inline]
    pub(crate) fn unpack(word: u64, pos_behind: u64, epoch_near: u64) -> Place {
        let pos = pos_behind.wrapping_add(word.wrapping_sub(pos_behind) & (POS_SPAN - 1));
        let rest = word.wrapping_sub(pos) >> POS_BITS;
        let off = (rest as u8).wrapping_sub(epoch_near as u8) as i8;
        let epoch = epoch_near.wrapping_add_signed(i64::from(off));
        let ticket = (rest.wrapping_sub(epoch) >> (TICKET_SHIFT - POS_BITS)) as u32 % TICKETS;
        Place { ticket, epoch, pos }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_overflow_of_one_field_into_another_is_undone() {
        let near = |edge: u64| [edge.saturating_sub(2), edge.saturating_sub(1), edge, edge + 1];
        let positions = [0, 1 << 20, POS_SPAN, 3 * POS_SPAN, 256 * POS_SPAN, 1 << 60];
        let epochs = [0, 128, 255, 256, 511, 65_536, 1 << 40];
        for pos in positions.into_iter().flat_map(near) {
            for epoch in epochs.into_iter().flat_map(near) {
                for ticket in [0, 1, TICKETS / 2, TICKETS - 2, TICKETS - 1] {
                    let place = Place { ticket, epoch, pos };
                    let word = place.pack();
                    for behind in [0, 1, POS_SPAN / 2, POS_SPAN - 1] {
                        for off in [-127, -64, -1, 0, 1, 64, 127] {
                            let (Some(p), Some(e)) = (pos.checked_sub(behind), epoch.checked_add_signed(off))
                            else {
                                continue;
                            };
                            assert_eq!(Place::unpack(word, p, e), place);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn adding_to_the_word_moves_each_field_by_just_that() {
        let mut place = Place { ticket: TICKETS - 2, epoch: 254, pos: POS_SPAN - 5 };
        let mut word = place.pack();
        for step in 0..6 {
            word = word.wrapping_add(NEXT_TICKET + 3);
            place.ticket = (place.ticket + 1) % TICKETS;
            place.pos += 3;
            assert_eq!(Place::unpack(word, place.pos - 3, place.epoch), place, "step {step}");
            word = word.wrapping_add(NEXT_EPOCH);
            place.epoch += 1;
            assert_eq!(Place::unpack(word, place.pos, place.epoch - 1), place, "step {step}");
        }
    }
}
