//! One simulated file: what programs see, what the device holds, and the changes between the two.
//!
//! Writes through files are kept one by one until they are synced, since a crash may leave any of them on the device, in
//! part, in any order. Stores through maps are kept as a set of dirty pages: the kernel writes such pages back whenever
//! it likes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

use super::crash::PmModel;
use super::lines::{Fate as LineFate, Lines};
use super::pages::{PAGE, Pages, cut};
use super::rng::Rng;

/// What a device writes whole or not at all, on a good day.
pub(super) const DISK_SECTOR: u64 = 512;

/// Bytes written in one call.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Bytes(Arc<[u8]>),
    Zeros(u64),
}

impl Data {
    pub(super) fn of(bytes: &[u8]) -> Self {
        if bytes.iter().all(|b| *b == 0) {
            Data::Zeros(bytes.len() as u64)
        } else {
            Data::Bytes(bytes.into())
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Data::Bytes(b) => b.len() as u64,
            Data::Zeros(n) => *n,
        }
    }

    /// Its first `len` bytes.
    pub(super) fn prefix(&self, len: u64) -> Self {
        match self {
            Data::Bytes(b) => Data::of(&b[..len.min(b.len() as u64) as usize]),
            Data::Zeros(n) => Data::Zeros(len.min(*n)),
        }
    }

    /// The same with one bit the other way round.
    pub(super) fn with_flipped_bit(&self, bit: u64) -> Self {
        let mut bytes = match self {
            Data::Bytes(b) => b.to_vec(),
            Data::Zeros(n) => vec![0; *n as usize],
        };
        flip(&mut bytes, bit);
        Data::of(&bytes)
    }

    fn put(&self, pages: &mut Pages, offset: u64) {
        match self {
            Data::Bytes(b) => pages.write(offset, b),
            Data::Zeros(n) => pages.zero(offset, *n, false),
        }
    }
}

/// A change of content.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Bytes at an offset.
    Write(u64, Data),
    /// A range gives its space back and reads as zero.
    Punch(u64, u64),
    /// A range takes space.
    Allocate(u64, u64),
    /// The length alone changes.
    SetLen(u64),
}

/// A change with the file's length after it.
#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    len: u64,
}

/// What a power failure leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    /// Nothing unsynced, but for some pages of maps.
    Lost,
    /// Everything.
    Kept,
    /// By seed, sector by sector.
    Torn,
    /// As `Torn`, but persistent memory by seed, word by word.
    Words,
    /// Everything, but of persistent memory what that one of the states has that are possible by a model.
    Chosen(PmModel, u64),
}

/// How likely each fate is in one crash. Drawn per crash, because "nearly all survived" and "nearly all was lost" find
/// other mistakes than "half did".
#[derive(Clone, Copy, Debug)]
pub(super) struct Mood {
    pub(super) seed: u64,
    pub(super) keep: f64,
    pub(super) tear: f64,
}

impl Mood {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::of(seed, &[0x6d6f_6f64]);
        let keep = [0.03, 0.3, 0.5, 0.7, 0.97][rng.below(5) as usize];
        let tear = [0.0, 0.1, 0.5][rng.below(3) as usize];
        Mood { seed, keep, tear }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// What programs see.
    current: Pages,
    len: u64,
    /// What the device holds for certain.
    durable: Pages,
    durable_len: u64,
    pending: Vec<Pending>,
    /// Pages stored to through a map since the last sync, as bits.
    mapped: Vec<u64>,
    /// Stores through persistent memory that are not certain.
    lines: Lines,
    /// A sync has failed: `current` has content that will never reach the device by itself.
    diverged: bool,
}

impl Inode {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn current(&self) -> &Pages {
        &self.current
    }

    pub(super) fn is_synced(&self) -> bool {
        self.pending.is_empty() && self.mapped.iter().all(|w| *w == 0) && self.lines.is_empty()
    }

    /// Makes a change that programs see at once and the device holds some day.
    pub(super) fn change(&mut self, change: &Change) {
        let len = apply(&mut self.current, change, self.len);
        // A truncation must be undoable sector by sector, so the zeros it leaves are a change of their own.
        if len < self.len {
            self.pending.push(Pending { change: Change::Punch(len, self.len - len), len });
        } else {
            self.pending.push(Pending { change: change.clone(), len });
        }
        self.len = len;
    }

    /// A store through a map.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        self.current.write(offset, bytes);
        for (page, _, _) in cut(offset, bytes.len() as u64, PAGE) {
            let word = (page / 64) as usize;
            if self.mapped.len() <= word {
                self.mapped.resize(word + 1, 0);
            }
            self.mapped[word] |= 1 << (page % 64);
        }
    }

    /// A store through persistent memory.
    pub(super) fn store_lines(
        &mut self,
        offset: u64,
        words: &[u8],
        streamed: &Range<usize>,
        thread: ThreadId,
    ) {
        self.current.write(offset, words);
        self.lines.store(offset, words, streamed, thread);
    }

    /// Lines of persistent memory are on their way to it.
    pub(super) fn flush_lines(&mut self, offset: u64, len: u64, thread: ThreadId) {
        self.lines.flush(offset, len, thread);
    }

    /// The process is gone.
    pub(super) fn forget_threads(&mut self) {
        self.lines.forget_threads();
    }

    /// What a thread has flushed has arrived.
    pub(super) fn fence(&mut self, thread: ThreadId) {
        self.lines.fence(thread, &mut self.durable);
    }

    /// How many contents a power failure may leave of persistent memory, by a model.
    pub(super) fn line_states(&self, model: PmModel) -> u64 {
        self.lines.states(model)
    }

    /// Makes everything durable.
    pub(super) fn sync(&mut self) {
        if self.diverged {
            let (pages, len) = self.survivors(Survival::Kept, Mood { seed: 0, keep: 1.0, tear: 0.0 }, 0);
            self.durable = pages;
            self.durable_len = len;
        } else {
            self.durable = self.current.clone();
            self.durable_len = self.len;
        }
        self.pending.clear();
        self.mapped.clear();
        self.lines.clear();
    }

    /// A sync that failed: some changes reached the device, the others never will, and programs see them all until the
    /// machine stops. (This is what kernels do: the pages are marked clean all the same.)
    pub(super) fn fail_sync(&mut self, mood: Mood, id: u64) {
        let (pages, len) = self.survivors(Survival::Torn, mood, id);
        self.durable = pages;
        self.durable_len = len;
        self.pending.clear();
        self.mapped.clear();
        self.diverged = true;
    }

    /// The same file after power came back; `id` names it to the seed.
    pub(super) fn after_power_loss(&self, survival: Survival, mood: Mood, id: u64) -> Inode {
        let (pages, len) = self.survivors(survival, mood, id);
        Inode { current: pages.clone(), len, durable: pages, durable_len: len, ..Inode::default() }
    }

    /// Turns one bit over, in memory and on the device.
    pub(super) fn flip_bit(&mut self, bit: u64) {
        for pages in [&mut self.current, &mut self.durable] {
            let mut byte = [0];
            pages.read(bit / 8, &mut byte);
            flip(&mut byte, bit % 8);
            pages.write(bit / 8, &byte);
        }
    }

    fn survivors(&self, survival: Survival, mood: Mood, id: u64) -> (Pages, u64) {
        let (mut pages, mut len) = (self.durable.clone(), self.durable_len);
        match survival {
            Survival::Lost => {}
            Survival::Kept | Survival::Chosen(..) => {
                for p in &self.pending {
                    apply(&mut pages, &p.change, len);
                    len = p.len;
                }
            }
            Survival::Torn | Survival::Words => {
                tear(&self.pending, &mut pages, mood, id);
                len = self.torn_len(mood, id);
            }
        }
        self.mapped_survivors(&mut pages, survival, mood, id);
        let lines = match survival {
            Survival::Lost => LineFate::Lost,
            Survival::Kept => LineFate::Kept,
            Survival::Torn => LineFate::Torn(mood, id),
            Survival::Words => LineFate::Words(mood, id),
            Survival::Chosen(model, state) => LineFate::Chosen(model, state),
        };
        self.lines.survive(&mut pages, lines);
        pages.truncate(len);
        (pages, len)
    }

    /// One of the lengths that the file had since it was synced.
    fn torn_len(&self, mood: Mood, id: u64) -> u64 {
        let mut rng = Rng::of(mood.seed, &[id, 0x6c65_6e67]);
        match self.pending.len() as u64 {
            0 => self.durable_len,
            _ if rng.chance(mood.keep) => self.len,
            n => match rng.below(n + 1) {
                0 => self.durable_len,
                i => self.pending[i as usize - 1].len,
            },
        }
    }

    /// Pages of maps that were written back before power failed.
    fn mapped_survivors(&self, pages: &mut Pages, survival: Survival, mood: Mood, id: u64) {
        let mut buf = [0; PAGE as usize];
        let dirty = (0..self.mapped.len() as u64 * 64)
            .filter(|p| self.mapped[(p / 64) as usize] >> (p % 64) & 1 == 1);
        for page in dirty {
            self.current.read(page * PAGE, &mut buf);
            match survival {
                Survival::Kept | Survival::Chosen(..) => pages.write(page * PAGE, &buf),
                Survival::Lost => {
                    if Rng::of(mood.seed, &[id, page, 0x6d61_7070]).chance(mood.keep) {
                        pages.write(page * PAGE, &buf);
                    }
                }
                Survival::Torn | Survival::Words => {
                    for (i, sector) in buf.chunks_exact(DISK_SECTOR as usize).enumerate() {
                        if Rng::of(mood.seed, &[id, page, i as u64, 0x6d61_7070]).chance(mood.keep) {
                            pages.write(page * PAGE + i as u64 * DISK_SECTOR, sector);
                        }
                    }
                }
            }
        }
    }
}

/// Turns one bit over, if there is such a bit.
pub(super) fn flip(bytes: &mut [u8], bit: u64) {
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}

/// Applies a change to a file of `len` bytes; returns the length after it.
fn apply(pages: &mut Pages, change: &Change, len: u64) -> u64 {
    match change {
        Change::Write(offset, data) => {
            data.put(pages, *offset);
            if data.len() == 0 { len } else { len.max(offset + data.len()) }
        }
        Change::Punch(offset, n) => {
            pages.zero(*offset, *n, true);
            len
        }
        Change::Allocate(offset, n) => {
            pages.allocate(*offset, *n);
            len.max(offset + n)
        }
        Change::SetLen(new) => {
            pages.truncate(*new);
            *new
        }
    }
}

/// What happened to one sector that unsynced changes touched.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The first n changes to it happened (none: it is as it was synced).
    Upto(u32),
    /// The first n happened, and parts of the next one.
    Torn(u32),
    /// It reads as zeros.
    Zero,
}

/// Applies pending changes, each sector meeting a fate of its own.
fn tear(pending: &[Pending], pages: &mut Pages, mood: Mood, id: u64) {
    let mut touches: HashMap<u64, u32> = HashMap::new();
    for p in pending {
        if let Some((offset, len, _)) = content(&p.change) {
            for (sector, _, _) in cut(offset, len, DISK_SECTOR) {
                *touches.entry(sector).or_default() += 1;
            }
        }
    }
    let fate = |sector: u64, n: u32| {
        let mut rng = Rng::of(mood.seed, &[id, sector]);
        if rng.chance(mood.tear) {
            match rng.below(8) {
                0 => Fate::Zero,
                _ => Fate::Torn(rng.below(u64::from(n)) as u32),
            }
        } else if rng.chance(mood.keep) {
            Fate::Upto(n)
        } else {
            Fate::Upto(rng.below(u64::from(n)) as u32)
        }
    };
    let mut seen: HashMap<u64, u32> = HashMap::new();
    for p in pending {
        let Some((offset, len, data)) = content(&p.change) else {
            if let Change::Allocate(offset, len) = p.change {
                pages.allocate(offset, len);
            }
            continue;
        };
        for (sector, within, part) in cut(offset, len, DISK_SECTOR) {
            let n = touches[&sector];
            let before = seen.entry(sector).or_default();
            let at = sector * DISK_SECTOR + within as u64;
            let bytes = data.map(|d| &d[part.clone()]);
            match fate(sector, n) {
                Fate::Upto(last) if *before < last => put(pages, at, bytes, part.len()),
                Fate::Torn(last) if *before < last => put(pages, at, bytes, part.len()),
                Fate::Torn(last) if *before == last => {
                    let rng = Rng::of(mood.seed, &[id, sector, 0x746f_726e]);
                    put_words(pages, at, bytes, part.len(), rng);
                }
                Fate::Zero if *before + 1 == n => {
                    pages.write(sector * DISK_SECTOR, &[0; DISK_SECTOR as usize])
                }
                _ => {}
            }
            *before += 1;
        }
    }
}

/// The range whose bytes a change sets, and the bytes (`None`: zeros).
fn content(change: &Change) -> Option<(u64, u64, Option<&[u8]>)> {
    match change {
        Change::Write(offset, Data::Bytes(b)) => Some((*offset, b.len() as u64, Some(b))),
        Change::Write(offset, Data::Zeros(n)) | Change::Punch(offset, n) => Some((*offset, *n, None)),
        Change::Allocate(..) | Change::SetLen(_) => None,
    }
}

fn put(pages: &mut Pages, at: u64, bytes: Option<&[u8]>, len: usize) {
    pages.write(at, bytes.unwrap_or(&[0; DISK_SECTOR as usize][..len]));
}

/// Puts some of the 8-byte words: a prefix, or any mixture.
fn put_words(pages: &mut Pages, at: u64, bytes: Option<&[u8]>, len: usize, mut rng: Rng) {
    let zeros = [0; DISK_SECTOR as usize];
    let bytes = bytes.unwrap_or(&zeros[..len]);
    let prefix = (rng.below(2) == 0).then(|| rng.below(len as u64 + 1));
    for (i, word) in bytes.chunks(8).enumerate() {
        let keep = match prefix {
            Some(end) => (i as u64) * 8 < end,
            None => rng.below(2) == 0,
        };
        if keep {
            pages.write(at + i as u64 * 8, word);
        }
    }
}
