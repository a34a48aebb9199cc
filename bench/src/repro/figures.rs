//! The figures there are.

use crate::repro::claim::{Claim, OURS, Of, THEIRS};
use crate::repro::{Part, in_memory};

use crate::workload::Workload as W;

/// A named group of claims.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) parts: fn() -> Vec<Part>,
}

pub(super) const ALL: &[Figure] = &[
    Figure {
        name: "operations",
        about: "every workload on 5 M records of 16 B and 100 B",
        parts: operations,
    },
    Figure { name: "ycsb", about: "YCSB A to F on 1 M records of 8 B and 500 B", parts: ycsb },
    Figure { name: "commit", about: "commits that survive a power failure", parts: commit },
    Figure { name: "smooth", about: "300 s of overwriting 5 GiB at full speed", parts: smooth },
    Figure { name: "space", about: "space and bytes written after three full overwrites", parts: space },
    Figure { name: "compaction", about: "merging four runs on one core", parts: compaction },
    Figure { name: "reopen", about: "opening after kill -9, and after a clean close", parts: reopen },
    Figure { name: "large", about: "10 GiB with 512 MiB of cache and memtables, direct I/O", parts: large },
    Figure {
        name: "txn",
        about: "transactions of ten operations, against RocksDB's TransactionDB",
        parts: txn,
    },
    Figure {
        name: "reads",
        about: "reads from memory, against RocksDB as it comes and tuned for them, fjall and LMDB",
        parts: reads,
    },
    Figure {
        name: "inmemory-read",
        about: "cached reads of 32 tables, step by step from a plain read path to cores that make up their own; records of several lengths; \
                seeks and scans; `counters` has what a step takes",
        parts: in_memory::parts,
    },
    Figure {
        name: "multiget",
        about: "64 keys a call of 20 M records, numbered and scattered ones, beside single gets of them and RocksDB",
        parts: multiget,
    },
    Figure {
        name: "get-cost",
        about: "a cached get beside loads from memory, and what it waits for; counts want valgrind",
        parts: get_cost,
    },
    Figure {
        name: "warm",
        about: "reads of what is hot while everything is merged, with and without a cache that survives it",
        parts: warm,
    },
    Figure {
        name: "heat",
        about: "where reads of a stretch of keys are answered that moves, and comes back",
        parts: heat,
    },
    Figure {
        name: "parts",
        about: "what one core reads again and again beside another one that reads much, in a cache with parts and without",
        parts,
    },
    Figure {
        name: "pm-halloc",
        about: "allocating persistent memory, on ordinary memory and with a device's time (simulated)",
        parts: || vec![Part::Halloc],
    },
    Figure {
        name: "pm-memtable",
        about: "memtables in persistent memory against a skiplist in ordinary memory (simulated)",
        parts: || vec![Part::PmMemtable],
    },
    Figure {
        name: "pm-commit",
        about: "commits in persistent memory by their size and by threads (simulated, and in the page cache)",
        parts: || vec![Part::PmCommit],
    },
    Figure {
        name: "pm-recovery",
        about: "building a memtable's index again from persistent memory, and opening with that, against replaying a log (simulated)",
        parts: || vec![Part::PmRecovery],
    },
    Figure {
        name: "pm-ycsb",
        about: "YCSB A to F on 16 tables, synced, with persistent memory and without (simulated)",
        parts: pm_ycsb,
    },
    Figure {
        name: "pm-ycsb-40",
        about: "the same, uniform, with a memory of 40 % of the data, as the reference had (simulated)",
        parts: pm_ycsb_40,
    },
    Figure {
        name: "pm-ycsb-long",
        about: "the same, uniform, A and F, for as long as it takes A to rewrite all of the memory (simulated)",
        parts: pm_ycsb_long,
    },
    Figure {
        name: "pm-ycsb-blocks",
        about: "the same, beside the better of 4 and 16 KiB a block, of all engines (simulated)",
        parts: pm_ycsb_blocks,
    },
    Figure {
        name: "pm-dbsize",
        about: "YCSB D, synced, as the database grows sixfold (simulated)",
        parts: || vec![Part::PmGrowth],
    },
    Figure {
        name: "pm-gi",
        about: "reads from one index in persistent memory against runs that pile up, and writing on and on (simulated)",
        parts: pm_index,
    },
    Figure {
        name: "pm-cache",
        about: "reads of more than the cache holds, with persistent memory that has room, used for blocks and not (simulated)",
        parts: pm_cache,
    },
    Figure {
        name: "page-cache",
        about: "small records in memory in the page cache, with a log behind it, beside unsynced RocksDB",
        parts: page_cache,
    },
    Figure {
        name: "counters",
        about: "instructions, cache misses and atomic operations, of reads step by step too, and what these write; wants valgrind",
        parts: counters,
    },
];

/// With persistent memory, which is simulated; and the plainest engine with a log, as the reference has it.
pub(super) const PM: &str = "terrane-pm";
const SKIPLIST: &str = "terrane-skiplist";
const SMALL: &str = "terrane-skiplist-small";

/// How many times as fast as with a log the reference says to be with persistent memory.
const YCSB_CLAIMS: [(W, f64); 4] = [(W::YcsbA, 3.8), (W::YcsbB, 1.7), (W::YcsbD, 1.4), (W::YcsbF, 2.7)];
/// What part of the mean latency with a log it says to have, ...
const YCSB_LATENCIES: [(W, f64); 3] = [(W::YcsbA, 0.64), (W::YcsbB, 0.61), (W::YcsbD, 0.74)];
/// ... and of the bytes that A reads from the device and writes to it.
const YCSB_IO: f64 = 0.06;
/// Of all files in persistent memory.
const IN_MEMORY_REMARK: &str = "the reference lost under zipf";
const YCSB_RECORDS: &str =
    "--records 2000000 --key-bytes 8 --value-bytes 500 --cache-mib 192 --direct --threads 2 --sync";
/// The memory holds a little less than a fourth of that.
const YCSB_MEMORY: &str = "--memtable-mib 208";

pub(super) fn named(name: &str) -> Option<&'static Figure> {
    ALL.iter().find(|f| f.name == name)
}

const VS: &str = "--engine terrane,rocksdb";

/// With one thread.
fn claim(workload: W, of: Of, bound: f64) -> Claim {
    Claim { bound: Some(bound), ..stated(workload, of) }
}

/// With one thread.
fn stated(workload: W, of: Of) -> Claim {
    Claim { whose: OURS, against: THEIRS, workload, threads: 1, of, bound: None, remark: "" }
}

/// With two threads, of two that are not Terrane with its defaults and RocksDB.
fn pair(whose: &'static str, against: &'static str, workload: W, of: Of, bound: Option<f64>) -> Claim {
    Claim { whose, against, bound, ..stated(workload, of).with(2) }
}

/// What is taken for the reference's engine with a log, beside RocksDB like it: it is to be nothing that is easily beaten.
fn base(whose: &'static str, against: &'static str, workload: W) -> Claim {
    pair(whose, against, workload, Of::Speed, Some(0.9))
}

/// With one thread and with two.
fn speeds(bounds: &[(W, f64)]) -> Vec<Claim> {
    let of = |threads| bounds.iter().map(move |&(w, bound)| claim(w, Of::Speed, bound).with(threads));
    [1, 2].into_iter().flat_map(of).collect()
}

/// A run of the claims' workloads, of Terrane and RocksDB.
fn part(more: &str, claims: Vec<Claim>) -> Part {
    part_of(VS, more, claims)
}

/// A run of the claims' workloads.
fn part_of(engines: &str, more: &str, claims: Vec<Claim>) -> Part {
    Part::Rows { command: command_of(engines, more, &claims), claims }
}

/// What runs the claims' workloads.
fn command_of(engines: &str, more: &str, claims: &[Claim]) -> String {
    let once = |of: fn(&Claim) -> String| {
        let mut names: Vec<String> = Vec::new();
        for name in claims.iter().map(of) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(",")
    };
    let (workloads, threads) = (once(|c| c.workload.to_string()), once(|c| c.threads.to_string()));
    format!("--workload {workloads} --threads {threads} {engines} {more}")
}

fn operations() -> Vec<Part> {
    let bounds = [
        (W::Fillseq, 1.0),
        (W::Fillrandom, 2.0),
        (W::Readrandom, 1.5),
        (W::Readmissing, 1.0),
        (W::Seekrandom, 1.0),
        (W::Scan, 1.0),
        (W::Readwhilewriting, 1.0),
        (W::Overwrite, 2.0),
        (W::Deleterandom, 1.0),
    ];
    vec![part("--records 5000000", speeds(&bounds))]
}

fn ycsb() -> Vec<Part> {
    let bounds = [
        (W::YcsbA, 2.0),
        (W::YcsbB, 1.0),
        (W::YcsbC, 1.0),
        (W::YcsbD, 1.0),
        (W::YcsbE, 3.0),
        (W::YcsbF, 1.0),
    ];
    vec![part("--records 1000000 --key-bytes 8 --value-bytes 500", speeds(&bounds))]
}

fn commit() -> Vec<Part> {
    let of = |threads, speed| {
        [(Of::Speed, speed), (Of::TailAgainst, 1.1)].map(|(of, b)| claim(W::Commit, of, b).with(threads))
    };
    let claims = [of(1, 1.5), of(8, 1.0), of(32, 1.0)].concat();
    let mixed = vec![stated(W::CommitMixed, Of::Tail).with(8)];
    let more = "--records 1000000 --ops 100000000 --seconds 8 --sync";
    vec![part(more, claims), part(more, mixed)]
}

fn smooth() -> Vec<Part> {
    let w = W::Overwrite;
    let claims = vec![
        claim(w, Of::SlowSecond, 0.6),
        claim(w, Of::SlowestSecond, 0.1),
        claim(w, Of::L0Runs, 8.0),
        claim(w, Of::PeakSpace, 1.5),
        claim(w, Of::Speed, 1.0),
    ];
    let more = "--records 5242880 --value-bytes 1024 --memtable-mib 256 --cache-mib 256 --ops 1000000000 \
                --seconds 300 --rounds 1 --rocksdb-block-kib 16";
    vec![part(more, claims)]
}

fn space() -> Vec<Part> {
    let w = W::Overwrite;
    let more = "--records 5000000 --ops 15000000 --value-bytes 100 --rounds 3 --rocksdb-block-kib 16";
    let plain = vec![claim(w, Of::Space, 1.25), claim(w, Of::Rest, 60.0), claim(w, Of::WrittenAgainst, 1.0)];
    let zstd = vec![claim(w, Of::SpaceAgainst, 1.0), claim(w, Of::Rest, 60.0)];
    vec![part(more, plain), part(&format!("{more} --compression zstd"), zstd)]
}

fn compaction() -> Vec<Part> {
    let of = |key, value| {
        let more = format!(
            "--records 4000000 --key-bytes {key} --value-bytes {value} --memtable-mib 8192 --cache-mib 256 \
             --rocksdb-block-kib 16"
        );
        part(&more, vec![claim(W::Compact, Of::Speed, 1.5)])
    };
    vec![of(8, 32), of(16, 128), of(16, 1024)]
}

fn reopen() -> Vec<Part> {
    let killed = vec![claim(W::ReopenKilled, Of::Speed, 3.0), stated(W::ReopenKilled, Of::Open)];
    let closed = vec![claim(W::ReopenClosed, Of::Open, 0.5)];
    vec![
        part("--records 1000000 --value-bytes 1024 --memtable-mib 8192 --rocksdb-block-kib 16", killed),
        part(
            "--records 10485760 --value-bytes 1024 --memtable-mib 256 --cache-mib 256 --rounds 1 \
             --rocksdb-block-kib 16",
            closed,
        ),
    ]
}

fn large() -> Vec<Part> {
    let of = |w, threads| [claim(w, Of::Speed, 1.0).with(threads), stated(w, Of::DeviceReads).with(threads)];
    let workloads = [W::Readrandom, W::Seekrandom, W::YcsbB];
    let claims =
        [2, 16].into_iter().flat_map(|threads| workloads.into_iter().flat_map(move |w| of(w, threads)));
    let more = "--records 10485760 --value-bytes 1024 --memtable-mib 128 --cache-mib 384 --ops 100000000 \
                --seconds 15 --direct --terrane-block-kib 4,16";
    vec![part(more, claims.collect())]
}

fn txn() -> Vec<Part> {
    let of = |w, bound| [1, 2, 16].map(|threads| claim(w, Of::Speed, bound).with(threads));
    let contended = [2, 16]
        .into_iter()
        .flat_map(|threads| [Of::Speed, Of::Retries].map(|of| stated(W::TxnContended, of).with(threads)));
    let plain = [W::Overwrite, W::OverwriteLocked]
        .into_iter()
        .flat_map(|w| [1, 2].map(|threads| stated(w, Of::Speed).with(threads)));
    let more = "--records 1000000 --ops 100000000 --seconds 8";
    vec![
        part(more, [of(W::Txn, 1.3), of(W::TxnRollback, 2.0)].concat()),
        part(&format!("{more} --sync"), of(W::Txn, 1.3).to_vec()),
        part(more, contended.collect()),
        part(more, plain.collect()),
    ]
}

/// Rows take so many seconds each, so a fast engine inserts millions of records in those that do: the cache holds them all.
fn reads() -> Vec<Part> {
    let bounds = [
        (W::Readrandom, 3.0),
        (W::Seekrandom, 5.0),
        (W::YcsbC, 2.5),
        (W::YcsbB, 2.5),
        (W::YcsbD, 2.5),
        (W::Readwhilewriting, 2.0),
    ];
    let engines = "--engine terrane,rocksdb,rocksdb-tuned,fjall,lmdb";
    let more = "--records 5000000 --cache-mib 2048 --warm --ops 1000000000 --seconds 4";
    let with_tails = |speeds: Vec<Claim>| {
        let no_worse = |of, speed: &Claim| claim(speed.workload, of, 1.0).with(speed.threads);
        let tails =
            speeds.iter().flat_map(|s| [Of::TailAgainst, Of::FarTailAgainst].map(|of| no_worse(of, s)));
        let of_lmdb = speeds.iter().filter(|s| s.workload == W::Readrandom);
        let of_lmdb = of_lmdb.map(|s| Claim { against: "lmdb", ..no_worse(Of::Speed, s) });
        let beside: Vec<Claim> = tails.chain(of_lmdb).collect();
        part_of(engines, more, [speeds, beside].concat())
    };
    // YCSB has E begin on what was loaded for it, and not on what D has left. (Here rows of E have inserted before, too.)
    vec![with_tails(speeds(&bounds)), with_tails(speeds(&[(W::YcsbE, 5.0)]))]
}

/// Reads of a hot stretch of keys through a merge of everything.
fn warm() -> Vec<Part> {
    let claims = ["terrane-cold", OURS, THEIRS].into_iter().flat_map(|whose| {
        [Of::Misses, Of::WorstTail, Of::Tail, Of::SlowestSecond]
            .map(|of| Claim { whose, ..stated(W::Readwhilecompacting, of) })
    });
    let command = "--workload readwhilecompacting --threads 1 --engine terrane,terrane-cold,rocksdb --records 5000000 \
                   --cache-mib 128 --memtable-mib 64 --direct --ops 1000000000 --seconds 30";
    vec![Part::Rows { command: command.to_owned(), claims: claims.collect() }]
}

fn heat() -> Vec<Part> {
    let claims = [OURS, THEIRS].into_iter().flat_map(|whose| {
        [Of::AboveAtFirst, Of::AboveAtLast, Of::Misses, Of::Tail]
            .map(|of| Claim { whose, ..stated(W::Readmoving, of) })
    });
    let command = "--workload readmoving --threads 1 --engine terrane,rocksdb --records 5000000 --cache-mib 64 \
                   --memtable-mib 16 --direct --ops 1000000000 --seconds 60";
    vec![Part::Rows { command: command.to_owned(), claims: claims.collect() }]
}

/// Records of 24 and 100 bytes, more than four times as much of them as the memory is large, so that it is written out all the time. All engines
/// fill with the same records, however long it takes them: one that stopped when time is up could have all it has in its memtables still. Updates
/// go by the clock, on a database that is as large from the start. On whatever disk there is, and in main memory, where what is slow now and
/// then is no disk. Records and their indexes together have as much memory as the others' memtables, which is what is given here: records a half
/// of it where they are small, three quarters where they are large.
fn page_cache() -> Vec<Part> {
    const PAGE_CACHE: &str = "terrane-page-cache";
    const ENGINES: &str = "--engine terrane,terrane-page-cache,rocksdb";
    let of = |w, threads| {
        let claim = Claim { whose: PAGE_CACHE, ..claim(w, Of::Speed, 3.0).with(threads) };
        let beside = Claim { whose: PAGE_CACHE, against: OURS, ..stated(w, Of::Speed).with(threads) };
        let tail = Claim { whose: PAGE_CACHE, ..stated(w, Of::FarTailAgainst).with(threads) };
        [claim, beside, tail]
    };
    let run = |more: String, workloads: &[W]| {
        let rows = [1, 2].into_iter().flat_map(|threads| workloads.iter().map(move |&w| (w, threads)));
        let claims: Vec<Claim> = rows.flat_map(|(w, threads)| of(w, threads)).collect();
        (command_of(ENGINES, &more, &claims), claims)
    };
    let rows = |value_bytes, fill: (u64, u64), update: (u64, u64), seconds| {
        let sizes =
            |(records, mib)| format!("--records {records} --value-bytes {value_bytes} --memtable-mib {mib}");
        let update = format!("{} --ops 1000000000 --seconds {seconds}", sizes(update));
        [run(sizes(fill), &[W::Fillrandom]), run(update, &[W::YcsbA, W::YcsbF])]
    };
    let sizes = |seconds| {
        let small = rows(8, (13_000_000, 112), (10_000_000, 84), seconds);
        [small, rows(84, (3_200_000, 84), (4_000_000, 64), seconds)].concat()
    };
    let on_disk = sizes(6).into_iter().map(|(command, claims)| Part::Rows { command, claims });
    let in_memory = sizes(3).into_iter().map(|(command, claims)| Part::InMemory { command, claims });
    on_disk.chain(in_memory).collect()
}

/// What the reference says of XP beside XS.
fn ycsb_claims() -> impl Iterator<Item = Claim> {
    let speeds = YCSB_CLAIMS.into_iter().map(|(w, bound)| pair(PM, SMALL, w, Of::Speed, Some(bound)));
    let latencies =
        YCSB_LATENCIES.into_iter().map(|(w, bound)| pair(PM, SMALL, w, Of::MeanAgainst, Some(bound)));
    let io = [(Of::WrittenAgainst, None), (Of::MovedAgainst, Some(YCSB_IO))]
        .map(|(of, bound)| pair(PM, SMALL, W::YcsbA, of, bound));
    speeds.chain(latencies).chain(io)
}

/// The presets of the reference: its own engine (XP) with a log (XS), and either with all its files in persistent memory. Its XS has small
/// memtables; beside it one that has as much memory for them as XP, and RocksDB like either, synced and not. Caches have a fifth of the
/// data, as there, where half of that were for rows.
fn pm_ycsb() -> Vec<Part> {
    // With zipf A writes more than the memory holds, uniform half as much.
    let sizes = format!("{YCSB_RECORDS} --rocksdb-block-kib 16 {YCSB_MEMORY} --ops 1000000000 --seconds 13");
    let parts = ["0", "0.9999"].into_iter().flat_map(|zipf| {
        let beside = YCSB_CLAIMS.into_iter().map(|(w, _)| pair(PM, SKIPLIST, w, Of::Speed, None));
        let others = [
            pair(PM, SMALL, W::YcsbC, Of::Speed, None),
            pair(PM, SKIPLIST, W::YcsbC, Of::Speed, None),
            pair(PM, SKIPLIST, W::YcsbA, Of::WrittenAgainst, None),
        ];
        let in_memory = YCSB_CLAIMS.into_iter().map(|(w, _)| Claim {
            remark: IN_MEMORY_REMARK,
            ..pair("terrane-pm-memory", "terrane-skiplist-memory", w, Of::Speed, Some(1.0))
        });
        let base = [(SMALL, "rocksdb-small"), (SKIPLIST, THEIRS)].into_iter().flat_map(|(whose, against)| {
            YCSB_CLAIMS.into_iter().map(move |(w, _)| base(whose, against, w))
        });
        let points = ycsb_claims().chain(beside).chain(others).chain(in_memory).chain(base).collect();
        [
            Part::Rows {
                command: format!(
                    "--workload ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-f --tables 16 --zipf {zipf} --engine {PM},{SMALL},{SKIPLIST},terrane-pm-memory,\
                     terrane-skiplist-memory,rocksdb,rocksdb-small,rocksdb-unsynced {sizes}"
                ),
                claims: points,
            },
            Part::Rows {
                command: format!(
                    "--workload ycsb-e --zipf {zipf} --engine {PM},{SMALL},{SKIPLIST},rocksdb {sizes}"
                ),
                claims: [SMALL, SKIPLIST].map(|against| pair(PM, against, W::YcsbE, Of::Speed, None)).to_vec(),
            },
        ]
    });
    parts.chain(["0", "0.9999"].map(pm_ycsb_costs)).collect()
}

/// The same points with what a device costs, for fewer engines and in less time.
fn pm_ycsb_costs(zipf: &str) -> Part {
    let command = format!(
        "--workload ycsb-a,ycsb-b,ycsb-d,ycsb-f --tables 16 --zipf {zipf} --engine {PM},{SMALL} --pm-cost optane {YCSB_RECORDS} \
         {YCSB_MEMORY} --ops 1000000000 --seconds 10"
    );
    Part::Rows { command, claims: ycsb_claims().collect() }
}

/// Longer, so that uniform A rewrites all of the memory in each round.
fn pm_ycsb_long() -> Vec<Part> {
    let command = format!(
        "--workload ycsb-a,ycsb-f --tables 16 --zipf 0 --engine {PM},{SMALL},rocksdb-small {YCSB_RECORDS} --rocksdb-block-kib 16 \
         {YCSB_MEMORY} --ops 1000000000 --seconds 30"
    );
    let written = |claim: &Claim| [W::YcsbA, W::YcsbF].contains(&claim.workload);
    let base = [W::YcsbA, W::YcsbF].map(|w| base(SMALL, "rocksdb-small", w));
    vec![Part::Rows { command, claims: ycsb_claims().filter(written).chain(base).collect() }]
}

/// Blocks of 4 KiB beside those of 16, of which each engine's better one counts: smaller ones hold less that nobody wants.
fn pm_ycsb_blocks() -> Vec<Part> {
    let part = |zipf| {
        let command = format!(
            "--workload ycsb-a,ycsb-b,ycsb-d,ycsb-f --tables 16 --zipf {zipf} --engine {PM},{SMALL},rocksdb,rocksdb-small \
             --terrane-block-kib 4,16 --rocksdb-block-kib 4,16 {YCSB_RECORDS} {YCSB_MEMORY} --ops 1000000000 --seconds 8"
        );
        let of = |(w, bound)| {
            let beside = |against, bound| pair(PM, against, w, Of::Speed, bound);
            [beside(SMALL, Some(bound)), beside(THEIRS, None), base(SMALL, "rocksdb-small", w)]
        };
        Part::Rows { command, claims: YCSB_CLAIMS.into_iter().flat_map(of).collect() }
    };
    ["0", "0.9999"].map(part).into()
}

/// Uniform, where it is how much the memory holds that counts: as much of the data as the reference's, 200 of 500 GB.
fn pm_ycsb_40() -> Vec<Part> {
    let command = format!(
        "--workload ycsb-a,ycsb-b,ycsb-d,ycsb-f --tables 16 --zipf 0 --engine {PM},{SMALL} {YCSB_RECORDS} --memtable-mib 338 \
         --ops 1000000000 --seconds 20"
    );
    vec![Part::Rows { command, claims: ycsb_claims().collect() }]
}

/// A cache of an eighth of the records, and a memory of more than half of them. What A writes takes the memory from the blocks
/// that lie there, and gives it back when it is written out: how slow the slowest second is tells whether reads collapse then.
fn pm_cache() -> Vec<Part> {
    let claims = [W::YcsbA, W::YcsbB, W::YcsbC].into_iter().flat_map(|w| {
        [Of::Speed, Of::TailAgainst].map(|of| Claim {
            whose: PM,
            against: "terrane-pm-bare",
            ..stated(w, of).with(2)
        })
    });
    let slowest =
        [PM, "terrane-pm-bare"].map(|whose| Claim { whose, ..stated(W::YcsbA, Of::SlowestSecond).with(2) });
    let command = "--workload ycsb-a,ycsb-b,ycsb-c --threads 2 --engine terrane-pm,terrane-pm-bare --records 2000000 --key-bytes 8 \
                   --value-bytes 500 --memtable-mib 512 --cache-mib 128 --direct --ops 1000000000 --seconds 10";
    vec![Part::Rows { command: command.to_owned(), claims: claims.chain(slowest).collect() }]
}

/// What the reference's global index is for: reads while nothing goes to the disk, and load that goes on.
fn pm_index() -> Vec<Part> {
    let reads = |whose, against, [point, range]: [Option<f64>; 2]| {
        [(W::Readrandom, point), (W::Seekrandom, range)].map(|(w, bound)| Claim {
            whose,
            against,
            bound,
            ..stated(w, Of::Speed).with(2)
        })
    };
    // The reference says how it ages. That nothing stalls while memtables are written out is ours: a second in twenty may be half as fast.
    let goes_on =
        |whose, [last, slow]: [Option<f64>; 2]| {
            [(Of::LastFifth, last), (Of::SlowSecond, slow), (Of::SlowestSecond, None)]
                .map(|(of, bound)| Claim { whose, bound, ..stated(W::YcsbA, of).with(2) })
        };
    vec![
        Part::Rows {
            command: "--workload readrandom,seekrandom --threads 2 --rocksdb-block-kib 16 --records 2000000 --memtable-mib 1024 \
                      --engine terrane-pm,terrane-piled,terrane-piled-bare,terrane,rocksdb-piled,rocksdb --ops 1000000000 --seconds 5"
                .to_owned(),
            claims: [
                reads(PM, "terrane-piled", [Some(113.0), Some(21.0)]),
                // It is not said whether the reference's pile has filters.
                reads(PM, "terrane-piled-bare", [Some(113.0), None]),
                reads(PM, "rocksdb-piled", [None, None]),
                reads(PM, OURS, [None, None]),
                reads(PM, THEIRS, [None, None]),
            ]
            .concat(),
        },
        Part::Rows {
            command: "--workload ycsb-a --zipf 0 --threads 2 --engine terrane-pm,terrane,rocksdb --rocksdb-block-kib 16 \
                      --records 2000000 --key-bytes 8 --value-bytes 500 --memtable-mib 192 --cache-mib 512 --direct \
                      --ops 1000000000 --seconds 60"
                .to_owned(),
            claims: [goes_on(PM, [Some(0.9), Some(0.5)]), goes_on(OURS, [None; 2]), goes_on(THEIRS, [None; 2])]
                .concat(),
        },
    ]
}

fn multiget() -> Vec<Part> {
    let claims = |bound| {
        let of = move |threads| {
            let single = Claim { against: OURS, bound, ..stated(W::Multiget, Of::AgainstSingle) };
            [single.with(threads), stated(W::Multiget, Of::Speed).with(threads)]
        };
        [1, 2].into_iter().flat_map(of).collect()
    };
    let rows = |keys, claims| Part::Rows {
        command: format!(
            "--workload readrandom,multiget --threads 1,2 --engine terrane,rocksdb,rocksdb-tuned {keys} --records 20000000 \
             --value-bytes 8 --cache-mib 2048 --ops 1000000000 --seconds 4"
        ),
        claims,
    };
    // Where keys are numbered a single get foresees where it will look, and overlaps its own loads.
    vec![rows("--scattered", claims(Some(2.0))), rows("", claims(None))]
}

fn get_cost() -> Vec<Part> {
    vec![Part::Floor]
}

fn parts() -> Vec<Part> {
    vec![Part::Parts]
}

fn counters() -> Vec<Part> {
    vec![Part::Counters]
}

#[cfg(test)]
mod tests;
