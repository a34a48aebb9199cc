//! RocksDB, set up as its experts would for these budgets.

mod transactions;

use std::path::Path;

use rust_rocksdb::statistics::Ticker;
use rust_rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBAccess, DBCompressionType,
    DBPinnableSlice, DBRawIteratorWithThreadMode, DEFAULT_COLUMN_FAMILY_NAME, DataBlockIndexType, Options,
    ReadOptions, WaitForCompactOptions, WriteBatch, WriteOptions,
};
use serde_json::json;

use crate::Failure;
use crate::data::table_of;
use crate::engine::{Engine, Session};
use crate::settings::{Compression, RocksDbForm, Settings};

pub(crate) use transactions::TransactionDb;

pub(crate) struct RocksDb {
    db: DB,
    unsynced: bool,
    tables: u64,
    options: Options,
    statistics: bool,
    reads_direct: bool,
}

impl RocksDb {
    pub(crate) fn open(dir: &Path, s: &Settings, form: &RocksDbForm<'_>) -> Result<Self, Failure> {
        let mut options = options(s, form)?;
        options.create_missing_column_families(true);
        if s.tables > 1 {
            // The budget is for all column families together.
            options.set_db_write_buffer_size(s.memtable_bytes as usize);
        }
        let families = (0..s.tables).map(|n| ColumnFamilyDescriptor::new(name(n), options.clone()));
        let db = DB::open_cf_descriptors(&options, dir, families)?;
        let (unsynced, statistics, reads_direct) = (form.unsynced, statistics(s, form), direct(s, form));
        Ok(RocksDb { db, unsynced, tables: s.tables, options, statistics, reads_direct })
    }

    fn number(&self, property: &str) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or(0)
    }

    fn ticker(&self, ticker: Ticker) -> Option<u64> {
        self.statistics.then(|| self.options.get_ticker_count(ticker))
    }
}

/// Of table `n`.
fn name(n: u64) -> String {
    if n == 0 { DEFAULT_COLUMN_FAMILY_NAME.to_owned() } else { format!("bench{n}") }
}

fn direct(s: &Settings, form: &RocksDbForm<'_>) -> bool {
    s.direct || form.own.direct_io
}

/// Without them it is faster, and its tickers are all 0.
fn statistics(s: &Settings, form: &RocksDbForm<'_>) -> bool {
    s.statistics || form.own.statistics
}

fn options(s: &Settings, form: &RocksDbForm<'_>) -> Result<Options, Failure> {
    let own = form.own;
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(form.block_kib << 10);
    blocks.set_bloom_filter(own.bloom_bits, false);
    blocks.set_format_version(own.format_version);
    if form.tuned {
        /// Entries per place of a block's hash index: RocksDB's own choice.
        const HASH_RATIO: f64 = 0.75;
        // It finds out the size of an entry by itself.
        blocks.set_block_cache(&Cache::new_hyper_clock_cache(s.cache_bytes as usize, 0));
        blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        blocks.set_data_block_hash_ratio(HASH_RATIO);
        // Held for as long as their file is open: no lookup, and in nobody's budget.
        blocks.set_cache_index_and_filter_blocks(false);
    } else {
        blocks.set_block_cache(&Cache::new_lru_cache(s.cache_bytes as usize));
        // Index and filters count in the cache's budget, as Terrane's do.
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_cache_index_and_filter_blocks_with_high_priority(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    }

    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_block_based_table_factory(&blocks);
    let write_buffer = if form.piled { s.piled_run_bytes() } else { s.memtable_bytes / own.write_buffers };
    o.set_write_buffer_size(write_buffer as usize);
    o.set_max_write_buffer_number(i32::try_from(own.write_buffers)?);
    o.set_max_background_jobs(own.background_jobs);
    o.set_level_compaction_dynamic_level_bytes(own.dynamic_level_bytes);
    o.set_avoid_flush_during_recovery(own.avoid_flush_during_recovery);
    o.set_compression_type(DBCompressionType::None);
    if s.compression == Compression::Zstd {
        // As in Terrane: what is hot and short-lived stays as it is.
        let (plain, zstd) = (DBCompressionType::None, DBCompressionType::Zstd);
        o.set_compression_per_level(&[plain, plain, zstd, zstd, zstd, zstd, zstd]);
    }
    let direct = direct(s, form);
    o.set_use_direct_reads(direct);
    o.set_use_direct_io_for_flush_and_compaction(direct);
    o.set_disable_auto_compactions(s.hold_compactions || form.piled);
    if form.piled {
        o.set_level_zero_slowdown_writes_trigger(i32::MAX);
        o.set_level_zero_stop_writes_trigger(i32::MAX);
    }
    if statistics(s, form) {
        o.enable_statistics();
    }
    Ok(o)
}

/// What it says of itself, by the database's properties; of stalls nothing where there are no statistics.
fn says(options: &Options, direct: bool, number: impl Fn(&str) -> u64) -> serde_json::Value {
    let stalled = options.get_statistics().and_then(|all| {
        let line = all.lines().find(|l| l.starts_with("rocksdb.stall.micros"))?.to_owned();
        line.split_whitespace().last()?.parse::<u64>().ok()
    });
    json!({
        "live_bytes": number("rocksdb.estimate-live-data-size"),
        "stalled_seconds": stalled.map(|micros| micros as f64 / 1e6),
        "direct": direct,
    })
}

fn is_log(file: &str) -> bool {
    file.ends_with(".log") || file.starts_with("LOG")
}

fn synced() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    options
}

fn show(found: Option<DBPinnableSlice<'_>>, see: &mut dyn FnMut(&[u8])) -> bool {
    found.inspect(|v| see(v)).is_some()
}

fn walk<D: DBAccess>(
    mut iter: DBRawIteratorWithThreadMode<'_, D>,
    from: &[u8],
    limit: u64,
    see: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<u64, Failure> {
    iter.seek(from);
    let mut n = 0;
    while n < limit {
        let Some((key, value)) = iter.item() else { break };
        see(key, value);
        n += 1;
        if n < limit {
            iter.next();
        }
    }
    iter.status()?;
    Ok(n)
}

impl Engine for RocksDb {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure> {
        let family = |n| self.db.cf_handle(&name(n)).ok_or_else(|| format!("there is no table {n}").into());
        Ok(Box::new(Handle {
            db: &self.db,
            tables: (0..self.tables).map(family).collect::<Result<_, Failure>>()?,
            synced: if self.unsynced { WriteOptions::default() } else { synced() },
            buffered: WriteOptions::default(),
            read: ReadOptions::default(),
        }))
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn is_log(&self, file: &str) -> bool {
        is_log(file)
    }

    fn l0_runs(&self) -> Option<u64> {
        Some(self.number("rocksdb.num-files-at-level0"))
    }

    fn sorted_runs(&self) -> Option<u64> {
        let below = (1..7).filter(|n| self.number(&format!("rocksdb.num-files-at-level{n}")) > 0).count();
        Some(self.number("rocksdb.num-files-at-level0") + below as u64)
    }

    fn flush(&self) -> Result<(), Failure> {
        let families = (0..self.tables).filter_map(|n| self.db.cf_handle(&name(n)));
        Ok(families.into_iter().try_for_each(|family| self.db.flush_cf(family))?)
    }

    fn compact(&self) -> Result<(), Failure> {
        // It says nothing of errors; those show up in reads.
        for family in (0..self.tables).filter_map(|n| self.db.cf_handle(&name(n))) {
            self.db.compact_range_cf::<&[u8], &[u8]>(family, None, None);
        }
        Ok(())
    }

    fn cache_misses(&self) -> Option<u64> {
        self.ticker(Ticker::BlockCacheMiss)
    }

    fn lookups_above(&self) -> Option<(u64, u64)> {
        let above = self.ticker(Ticker::GetHitL0)? + self.ticker(Ticker::GetHitL1)?;
        Some((above, above + self.ticker(Ticker::GetHitL2AndUp)?))
    }

    fn says(&self) -> serde_json::Value {
        says(&self.options, self.reads_direct, |property| self.number(property))
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        drop(self.db);
        Ok(())
    }
}

struct Handle<'a> {
    db: &'a DB,
    tables: Vec<&'a ColumnFamily>,
    synced: WriteOptions,
    buffered: WriteOptions,
    read: ReadOptions,
}

impl<'a> Handle<'a> {
    fn of(&self, key: &[u8]) -> &'a ColumnFamily {
        self.tables[table_of(key, self.tables.len())]
    }

    /// The one that there is.
    fn only(&self) -> Result<&'a ColumnFamily, Failure> {
        match self.tables[..] {
            [table] => Ok(table),
            _ => Err("this workload is for one table".into()),
        }
    }
}

impl Session for Handle<'_> {
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], sync: bool) -> Result<(), Failure> {
        let options = if sync { &self.synced } else { &self.buffered };
        if let [(key, value)] = records {
            match value {
                Some(v) => self.db.put_cf_opt(self.of(key), key, v, options)?,
                None => self.db.delete_cf_opt(self.of(key), key, options)?,
            }
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        for (key, value) in records {
            match value {
                Some(v) => batch.put_cf(self.of(key), key, v),
                None => batch.delete_cf(self.of(key), key),
            }
        }
        Ok(self.db.write_opt(&batch, options)?)
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        Ok(show(self.db.get_pinned_cf_opt(self.of(key), key, &self.read)?, see))
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], see: &mut dyn FnMut(&[u8])) -> Result<u64, Failure> {
        let mut found = 0;
        for value in self.db.batched_multi_get_cf_opt(self.only()?, keys, false, &self.read) {
            found += u64::from(show(value?, see));
        }
        Ok(found)
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        walk(self.db.raw_iterator_cf_opt(self.only()?, ReadOptions::default()), from, limit, see)
    }
}
