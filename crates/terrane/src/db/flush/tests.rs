use std::sync::mpsc::channel;
use std::thread;

use parking_lot::Mutex;
use terrane_media::sim::{OpKind, SimMedia};

use super::*;
use crate::{Db, Options, SubtableOptions};

/// A run that meets nothing goes straight to L1, and a merge of what lies around it begins while the manifest is being
/// written: neither takes the other's extents for its own.
#[test]
fn a_run_going_straight_down_and_a_merge_that_begins_meanwhile_keep_apart() {
    let media = SimMedia::new(1);
    let db = Db::open_on(media.clone(), "/db", Options::new().background_threads(1)).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let engine = db.engine.clone();
    // No merge begins for now.
    let slots = engine.options.compaction_jobs() as u64;
    engine.compactions.fetch_add(slots, Ordering::SeqCst);
    let fill = |prefix: &str| {
        (0..50).for_each(|i| t.put(format!("{prefix}{i}").as_bytes(), prefix.as_bytes()).unwrap());
    };
    for prefix in ["a", "k", "a", "k"] {
        fill(prefix);
        t.flush().unwrap();
    }
    let runs = || {
        let state = t.table().state();
        (state.version.l0.len(), state.version.levels.first().map_or(0, |l1| l1.refs().len()))
    };
    assert_eq!(runs(), (2, 2), "two runs of L0 over two extents of L1");
    fill("e");
    let (tell, told) = channel();
    let merge = Arc::new(Mutex::new(None));
    let (m, told) = (merge.clone(), Mutex::new(told));
    let begun: Arc<dyn Fn() + Send + Sync> = {
        let tell = Mutex::new(tell);
        Arc::new(move || tell.lock().send(()).unwrap_or_default())
    };
    let machine = media.clone();
    media.on_op(Some(Arc::new(move |_, op| {
        let name = op.path.file_name().unwrap_or_default().to_string_lossy();
        if op.kind == OpKind::Write && name.starts_with("data") && thread::current().name() == Some("merge") {
            begun();
        }
        if op.kind == OpKind::Write && name.starts_with("manifest") && m.lock().is_none() {
            let (engine, begun, media) = (engine.clone(), begun.clone(), machine.clone());
            let body = move || {
                engine.compactions.fetch_sub(slots, Ordering::SeqCst);
                engine.schedule_compactions();
                media.step();
                begun();
            };
            *m.lock() = Some(thread::Builder::new().name("merge".into()).spawn(body).unwrap());
            // It has read its inputs, or has found that it must not begin.
            told.lock().recv().unwrap();
        }
    })));
    t.flush().unwrap();
    let merge = merge.lock().take().unwrap();
    merge.join().unwrap();
    media.on_op(None);
    media.run_all();
    assert_eq!(runs().0, 0, "merged in the end");
    for prefix in ["a", "e", "k"] {
        for i in 0..50 {
            let got = t.get(format!("{prefix}{i}").as_bytes()).unwrap();
            assert_eq!(got.as_deref(), Some(prefix.as_bytes()), "{prefix}{i}");
        }
    }
    assert!(db.check(|_| true).unwrap().is_clean());
}
