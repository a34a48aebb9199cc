use super::*;
use crate::args::{ReproArgs, RunArgs};
use crate::repro::without_absent;
use crate::settings::Settings;

/// All runs of a figure, without the peers if they are not built in.
fn runs(figure: &Figure) -> Vec<(RunArgs, Vec<Claim>)> {
    let run = |part| match part {
        Part::Rows { command, claims } | Part::InMemory { command, claims } => {
            Some((RunArgs::from_line(&without_absent(&command)).unwrap(), claims))
        }
        _ => None,
    };
    (figure.parts)().into_iter().filter_map(run).collect()
}

#[test]
fn every_command_can_be_read() {
    for (args, claims) in ALL.iter().flat_map(runs) {
        let all: Vec<_> = args.rows().collect();
        assert!(claims.iter().all(|c| all.contains(&(c.workload, c.threads))));
    }
}

#[test]
fn the_largest_scale_overflows_nothing() {
    for (mut args, _) in ALL.iter().flat_map(runs) {
        let unscaled = Settings::new(&args);
        args.scale(ReproArgs::MOST_SCALE);
        let s = Settings::new(&args);
        let of = |s: &Settings| [s.records, s.cache_bytes, s.memtable_bytes];
        assert_eq!(of(&s), of(&unscaled).map(|n| n * 100));
        // Both are multiplied: by bytes, and by the number of threads.
        assert!(s.records * s.record_bytes() < 1 << 48);
        assert!(args.ops.is_none_or(|ops| ops <= 1 << 40));
    }
}

#[test]
fn what_the_reference_says_of_latency_and_io_is_claimed_uniform_and_with_zipf() {
    for name in ["pm-ycsb", "pm-ycsb-40"] {
        for (args, claims) in runs(named(name).unwrap()) {
            let of = |of, w| claims.iter().find(|c| (c.of, c.workload, c.against) == (of, w, SMALL));
            if args.workload.contains(&W::YcsbA) {
                let claimed = YCSB_LATENCIES.map(|(w, _)| of(Of::MeanAgainst, w).unwrap().bound);
                assert_eq!(claimed, [0.64, 0.61, 0.74].map(Some));
                assert_eq!(of(Of::MovedAgainst, W::YcsbA).unwrap().bound, Some(0.06));
            }
        }
    }
    let lost = |(_, claims): &(_, Vec<Claim>)| claims.iter().filter(|c| !c.remark.is_empty()).count();
    let lost: Vec<usize> = runs(named("pm-ycsb").unwrap()).iter().map(lost).collect();
    assert_eq!(lost, [4, 0, 4, 0, 0, 0], "A, B, D and F with all files in memory, uniform and with zipf");
}

// Without the peers the rest is shorter.
#[cfg(feature = "peers")]
#[test]
fn a_device_s_costs_make_a_figure_longer_by_less_than_a_fifth() {
    // Of rows, and of what is loaded before.
    let time = |(args, _): &(RunArgs, _)| {
        let loads = args.engine.len() as f64;
        let rows = (args.rows().count() * args.engine.len()) as f64 * args.rounds as f64;
        [rows * args.seconds.unwrap(), loads]
    };
    let (costly, plain): (Vec<_>, Vec<_>) =
        runs(named("pm-ycsb").unwrap()).into_iter().partition(|(args, _)| args.pm_cost.is_some());
    for at in 0..2 {
        let of = |runs: &[(RunArgs, Vec<Claim>)]| runs.iter().map(|r| time(r)[at]).sum::<f64>();
        assert!(costly.len() == 2 && of(&costly) < of(&plain) / 5.0);
    }
}

#[test]
fn in_the_page_cache_there_is_four_times_what_the_memory_holds_and_a_filling_writes_all_of_it() {
    let runs = runs(named("page-cache").unwrap());
    for (args, _) in &runs {
        let s = Settings::new(args);
        assert!(s.records * s.record_bytes() >= 4 * s.page_cache().bytes(), "{} records", s.records);
        let fills = args.workload == [W::Fillrandom];
        assert_eq!(fills, args.seconds.is_none() && args.ops.is_none());
    }
    assert_eq!(runs.iter().filter(|(args, _)| args.seconds.is_none()).count(), 4);
}

#[test]
fn transactions_are_claimed_synced_and_not() {
    let bound = |c: &Claim| (c.workload, c.threads) == (W::Txn, 16) && c.bound == Some(1.3);
    let runs = runs(named("txn").unwrap()).into_iter();
    let synced: Vec<_> = runs.filter(|(_, claims)| claims.iter().any(bound)).map(|(a, _)| a.sync).collect();
    assert_eq!(synced, [false, true]);
}
