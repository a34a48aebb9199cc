//! Random histories of calls, checked against an independent and much simpler picture of the disk.

use super::rng::Rng;
use super::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const SIZE: usize = 6000;

/// A file as a flat buffer, with every state since it was last synced.
#[derive(Clone, Default)]
struct ModelFile {
    /// The first is durable, the last is what programs see.
    states: Vec<Vec<u8>>,
}

#[derive(Clone, Default)]
struct Model {
    files: Vec<ModelFile>,
    names: BTreeMap<&'static str, usize>,
    durable_names: BTreeMap<&'static str, usize>,
    /// Per name, all it stood for since the directory was synced.
    name_states: BTreeMap<&'static str, Vec<Option<usize>>>,
}

impl Model {
    fn set(&mut self, name: &'static str, file: Option<usize>) {
        match file {
            Some(f) => drop(self.names.insert(name, f)),
            None => drop(self.names.remove(name)),
        }
        self.name_states.entry(name).or_default().push(file);
    }

    fn visible(&self) -> BTreeMap<String, Vec<u8>> {
        self.names
            .iter()
            .map(|(n, f)| (n.to_string(), self.files[*f].states.last().unwrap().clone()))
            .collect()
    }

    fn durable(&self) -> BTreeMap<String, Vec<u8>> {
        self.durable_names.iter().map(|(n, f)| (n.to_string(), self.files[*f].states[0].clone())).collect()
    }

    /// Makes one random call on both machines.
    fn step(&mut self, m: &SimMedia, rng: &mut Rng) {
        let name = NAMES[rng.below(4) as usize];
        let Some(&file) = self.names.get(name) else {
            m.open(&path(name), CREATE).unwrap();
            self.files.push(ModelFile { states: vec![Vec::new()] });
            self.set(name, Some(self.files.len() - 1));
            return;
        };
        let f = m.open(&path(name), BUFFERED).unwrap();
        let mut now = self.files[file].states.last().unwrap().clone();
        let offset = rng.below(SIZE as u64) as usize;
        let len = rng.below((SIZE - offset) as u64) as usize + 1;
        match rng.below(12) {
            0 => {
                m.remove_file(&path(name)).unwrap();
                return self.set(name, None);
            }
            1 => {
                let to = NAMES[rng.below(4) as usize];
                if to != name {
                    m.rename(&path(name), &path(to)).unwrap();
                    self.set(name, None);
                    self.set(to, Some(file));
                }
                return;
            }
            2 => {
                m.sync_dir(Path::new("/db")).unwrap();
                self.durable_names = self.names.clone();
                self.name_states.clear();
                return;
            }
            3 | 4 => {
                f.sync().unwrap();
                self.files[file].states = vec![now];
                return;
            }
            5 => {
                f.set_len(offset as u64).unwrap();
                now.resize(offset, 0);
            }
            6 => {
                f.punch(offset as u64, len as u64).unwrap();
                let end = (offset + len).min(now.len());
                now[offset.min(end)..end].fill(0);
            }
            7 => {
                f.allocate(offset as u64, len as u64).unwrap();
                now.resize(now.len().max(offset + len), 0);
            }
            _ => {
                let byte = rng.below(3) as u8;
                let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_mul(i as u8)).collect();
                f.write_at(&bytes, offset as u64).unwrap();
                now.resize(now.len().max(offset + len), 0);
                now[offset..offset + len].copy_from_slice(&bytes);
            }
        }
        self.files[file].states.push(now);
    }

    /// Whether a torn disk is one that this history may leave.
    fn allows(&self, disk: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
        for name in NAMES {
            let mut may_be = vec![self.durable_names.get(name).copied()];
            may_be.extend(self.name_states.get(name).into_iter().flatten());
            let found = disk.get(name);
            let fits = may_be.iter().any(|file| match (file, found) {
                (None, None) => true,
                (Some(file), Some(content)) => self.files[*file].allows(content),
                _ => false,
            });
            if !fits {
                return Err(format!("{name} is {:?}, of {} states", found.map(Vec::len), may_be.len()));
            }
        }
        Ok(())
    }
}

impl ModelFile {
    /// Its length is one that it had, and sectors that never changed since the sync are as they were.
    fn allows(&self, content: &[u8]) -> bool {
        let at = |state: &Vec<u8>, i: usize| state.get(i).copied().unwrap_or(0);
        let sectors = content.chunks(512).enumerate();
        self.states.iter().any(|s| s.len() == content.len())
            && sectors.into_iter().all(|(n, sector)| {
                let range = n * 512..n * 512 + 512;
                let same = |i| self.states.windows(2).all(|w| at(&w[0], i) == at(&w[1], i));
                let changed = range.clone().any(|i| !same(i));
                // Rewriting equal bytes is a change too, but tearing it shows only as zeros.
                changed
                    || range.zip(sector).all(|(i, b)| *b == at(&self.states[0], i))
                    || (self.states.len() > 1 && sector.iter().all(|b| *b == 0))
            })
    }
}

#[test]
fn random_histories_crash_into_states_that_the_rules_allow() {
    for seed in 0..60 {
        let (m, mut rng) = (machine(seed), Rng::new(seed));
        let mut model = Model::default();
        for step in 0..80 {
            model.step(&m, &mut rng);
            assert_eq!(contents(&m), model.visible(), "seed {seed} step {step}");
            if step % 5 != 0 {
                continue;
            }
            let image = m.image();
            for kind in [CrashKind::Process, CrashKind::PowerKept] {
                assert_eq!(contents(&image.crash(kind, step)), model.visible(), "{kind:?} {seed} {step}");
            }
            let lost = image.crash(CrashKind::PowerLost, step);
            assert_eq!(contents(&lost), model.durable(), "seed {seed} step {step}");
            for crash in 0..4 {
                let torn = contents(&image.crash(CrashKind::PowerTorn, crash));
                model.allows(&torn).unwrap_or_else(|e| panic!("seed {seed} step {step} crash {crash}: {e}"));
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_machines_and_equal_crashes() {
    let run = |seed| {
        let (m, mut rng) = (machine(seed), Rng::new(seed));
        let images = record(&m);
        let mut model = Model::default();
        (0..60).for_each(|_| model.step(&m, &mut rng));
        m.on_op(None);
        let images = images.lock();
        let crash = |(i, (_, image)): (usize, &(OpKind, Image))| {
            let kind = CrashKind::ALL[i % CrashKind::ALL.len()];
            contents(&image.crash(kind, i as u64))
        };
        (m.op_count(), m.entropy(), images.iter().enumerate().map(crash).collect::<Vec<_>>())
    };
    assert!(run(5) == run(5));
    assert!(run(5) != run(6));
}

#[test]
fn crashes_may_follow_crashes() {
    let (mut m, mut rng) = (machine(9), Rng::new(9));
    for round in 0..40 {
        let kind = CrashKind::ALL[round % CrashKind::ALL.len()];
        for name in NAMES {
            let f = match m.exists(&path(name)).unwrap() {
                true => m.open(&path(name), BUFFERED).unwrap(),
                false => m.open(&path(name), CREATE).unwrap(),
            };
            f.write_at(&[round as u8; 700], rng.below(2000)).unwrap();
            if rng.below(2) == 0 {
                f.sync().unwrap();
                m.sync_dir(Path::new("/db")).unwrap();
            }
        }
        m = m.image().crash(kind, round as u64);
        let once = contents(&m);
        let twice = m.image().crash(CrashKind::PowerLost, 0);
        if !matches!(kind, CrashKind::Process | CrashKind::ProcessTorn) {
            assert_eq!(contents(&twice), once, "after power came back everything is durable");
        }
    }
}
