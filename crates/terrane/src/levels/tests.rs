//! The whole room at work: runs are written, installed, merged and reclaimed, with a crash or a failure at every call.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_base::{ErrorKind, Result};
use terrane_format::manifest::Edit;
use terrane_format::tombstone::RangeTombstones;
use terrane_media::Media;
use terrane_media::sim::{CrashKind, Fault, FaultPlan, SimMedia};

use super::testkit::{Film, Record, T, UUID, blocks, create, dir, heirs, machine, records, small_form};
use super::*;

/// The newest value of each key.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// An engine without memtables: each step writes a run to L0, and each fourth one merges everything into L1.
struct Engine {
    manifest: ManifestStore,
    space: Arc<Space>,
    ids: Arc<Ids>,
    reclaimer: Arc<Reclaimer>,
    version: Arc<Version>,
}

impl Engine {
    fn open(media: &Arc<SimMedia>) -> Result<Engine> {
        let poison = Arc::new(Poison::new());
        let manifest = if ManifestStore::exists(&**media, dir())? {
            ManifestStore::open(media.clone(), dir(), poison.clone())?
        } else {
            ManifestStore::create(media.clone(), dir(), UUID, poison.clone())?
        };
        if manifest.with_state(|s| s.subtables.is_empty()) {
            manifest.append(&[create(T.0, "t")])?;
        }
        let state = manifest.with_state(DbState::clone);
        let options = SpaceOptions { file_bytes: 640 << 10, grow_bytes: 64 << 10, ..SpaceOptions::new(UUID) };
        let options = SpaceOptions { idle_bytes: 128 << 10, ..options };
        let space = Arc::new(Survey::new(media.clone(), dir(), options, &state, poison)?.finish()?);
        let ids = Arc::new(Ids::new(&state.next));
        let reclaimer = Reclaimer::new(|| {});
        let version = Version::from_state(&state.subtables[&T], reclaimer.clone(), |meta| {
            Ok(Extent::new(meta.clone(), space.file(meta.file)?, "t".into(), reclaimer.clone()))
        })?;
        Ok(Engine { manifest, space, ids, reclaimer, version: Arc::new(version) })
    }

    /// What a reader finds, every byte verified.
    fn content(&self) -> Result<Content> {
        let mut content = Content::new();
        let runs: Vec<_> = self.version.runs().collect();
        for (_, run) in runs.into_iter().rev() {
            for part in run.refs() {
                content.extend(records(part)?.into_iter().map(|(k, _, v)| (k, v)));
            }
        }
        Ok(content)
    }

    fn step(&mut self, n: u32) -> Result<()> {
        let merge = n % 4 == 3;
        let records: Vec<Record> = if merge {
            let seq = u64::from(n);
            self.content()?.into_iter().map(|(k, v)| (k, seq, v)).collect()
        } else {
            fresh(n).into_iter().map(|(k, v)| (k, u64::from(n), v)).collect()
        };
        let form = small_form();
        let mut w =
            RunWriter::new(self.space.clone(), self.ids.clone(), form, RangeTombstones::default(), heirs())?;
        blocks(&form, &records)
            .into_iter()
            .try_for_each(|b| w.add_block(b, None, Heir::Yes { below: false }))?;
        let written = w.finish()?;
        let mut edit = VersionEdit::default();
        let (level, run) = if merge { (1, 0) } else { (0, self.ids.run()) };
        if merge {
            let old =
                self.version.runs().flat_map(|(l, r)| r.refs().iter().map(move |p| RefKey::of(l, r.id, p)));
            edit.removed = old.collect();
        }
        for meta in written.extents() {
            let file = self.space.file(meta.file)?;
            let extent = Extent::new(meta.clone(), file, "t".into(), self.reclaimer.clone());
            edit.added.push((level, run, ExtentRef::whole(extent)));
        }
        let next = self.version.apply(&edit)?;
        let mut edits = edit.to_edits(T);
        edits.push(Edit::Persisted { subtable: T, lsn: 4096 + u64::from(n) });
        self.manifest.append(&edits)?;
        written.keep();
        let version = Arc::new(next.version);
        let old = std::mem::replace(&mut self.version, version);
        old.retire(&self.version, next.obsolete, Vec::new());
        drop((old, edit));
        self.reclaimer.take().into_iter().try_for_each(|r| self.space.free(r.space))
    }

    /// How many steps its content stands for.
    fn steps(&self) -> u32 {
        let lsn = self.manifest.with_state(|s| s.subtables[&T].persisted_lsn);
        (lsn - 4095) as u32 % 4096
    }

    /// Space has exactly the owners that the manifest knows.
    fn assert_nothing_leaked(&self, label: &str) {
        let owned: u64 = self.manifest.with_state(|s| s.extents().map(|(_, m)| u64::from(m.units)).sum());
        assert_eq!(self.space.stats().used, owned, "{label}");
    }
}

/// What step `n` writes: some keys for the first time, some again.
fn fresh(n: u32) -> Content {
    (0..60)
        .map(|i| (format!("key {:04}", (i * 7 + n * 11) % 150).into(), format!("{n} ").repeat(60).into()))
        .collect()
}

/// Content after each number of steps.
fn model(steps: u32) -> Vec<Content> {
    let mut all = vec![Content::new()];
    for n in 0..steps {
        let mut next = all[n as usize].clone();
        if n % 4 != 3 {
            next.extend(fresh(n));
        }
        all.push(next);
    }
    all
}

#[test]
fn a_crash_at_any_call_keeps_every_step_and_never_reuses_space_that_is_referred_to() {
    const STEPS: u32 = 11;
    let model = model(STEPS + 8);
    let media = machine(1);
    let film = Film::of(&media);
    let mut engine = Engine::open(&media).unwrap();
    for n in 0..STEPS {
        engine.step(n).unwrap();
        film.acknowledge();
    }
    assert_eq!(engine.content().unwrap(), model[STEPS as usize]);
    engine.assert_nothing_leaked("at the end");
    media.on_op(None);
    film.crashes(2, |media, done, label| {
        let mut engine = Engine::open(&media).unwrap_or_else(|e| panic!("{label}: {e}"));
        let content = engine.content().unwrap_or_else(|e| panic!("{label}: {e}"));
        let found = if content.is_empty() { 0 } else { engine.steps() as usize };
        assert!(found == done || found == done + 1, "{label}: {found} of {done}");
        assert!(content == model[found], "{label}");
        // Free space is used again: nothing that is referred to may suffer.
        for n in 0..2 {
            engine.step((found + n) as u32).unwrap_or_else(|e| panic!("{label}: {e}"));
        }
        engine.assert_nothing_leaked(label);
        drop(engine);
        assert!(Engine::open(&media).unwrap().content().unwrap() == model[found + 2], "{label}");
    });
}

#[test]
fn a_crash_while_recovering_from_a_crash_loses_nothing() {
    const STEPS: u32 = 5;
    let model = model(STEPS + 1);
    let media = machine(3);
    let mut engine = Engine::open(&media).unwrap();
    for n in 0..STEPS - 1 {
        engine.step(n).unwrap();
    }
    let film = Film::of(&media);
    engine.step(STEPS - 1).unwrap();
    media.on_op(None);
    film.crashes(1, |media, _, label| {
        let film = Film::of(&media);
        let found = Engine::open(&media).unwrap().content().unwrap();
        film.acknowledge();
        media.create_dir_all(Path::new("/elsewhere")).unwrap();
        media.on_op(None);
        let (before, after) = (&model[STEPS as usize - 1], &model[STEPS as usize]);
        film.crashes(1, |media, recovered, inner| {
            let again = Engine::open(&media)
                .unwrap()
                .content()
                .unwrap_or_else(|e| panic!("{label}, then {inner}: {e}"));
            let legal = again == *before || again == *after;
            assert!(legal && (recovered == 0 || again == found), "{label}, then {inner}");
        });
    });
}

#[test]
fn a_failure_of_any_call_loses_and_leaks_nothing() {
    const STEPS: u32 = 8;
    let model = model(STEPS);
    for fault in [Fault::Io, Fault::NoSpace] {
        for call in 0.. {
            let media = machine(2);
            let mut engine = Engine::open(&media).unwrap();
            media.set_fault(Some(FaultPlan::nth(call, fault)));
            let mut n = 0;
            while n < STEPS {
                match engine.step(n) {
                    Ok(()) => n += 1,
                    Err(e) if e.kind() == ErrorKind::Poisoned => {
                        assert_eq!(engine.step(n).unwrap_err().kind(), ErrorKind::Poisoned);
                        drop(engine);
                        engine = Engine::open(&media.image().crash(CrashKind::PowerTorn, call)).unwrap();
                        let found = engine.steps();
                        assert!(engine.content().unwrap().is_empty() || found == n || found == n + 1);
                        n = if engine.content().unwrap().is_empty() { 0 } else { found };
                    }
                    Err(_) => engine.assert_nothing_leaked(&format!("call {call}")),
                }
            }
            let hits = media.faults_hit();
            media.set_fault(None);
            assert!(engine.content().unwrap() == model[STEPS as usize], "{fault:?} at call {call}");
            engine.assert_nothing_leaked(&format!("{fault:?} at call {call}"));
            if hits == 0 {
                assert!(call > 60, "only {call} calls were made");
                break;
            }
        }
    }
}
