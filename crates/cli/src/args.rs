//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::medium::{MediumArgs, memory_path};

/// Terrane, a key-value storage engine.
#[derive(Debug, Parser)]
#[command(name = "terrane", version, about, long_about = None)]
#[command(after_help = "Without a command, `demo` runs.")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the engine at work on a temporary database
    Demo(DemoArgs),
    /// Load records from a file or a pipe; interrupted loads go on where they were
    Load(LoadArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Set a key
    Put(PutArgs),
    /// Remove a key
    Del(DelArgs),
    /// Print the records of a range in order
    Scan(ScanArgs),
    /// Print figures about a database
    Stat(StatArgs),
    /// Verify every checksum and invariant
    Check(CheckArgs),
}

impl Default for Command {
    fn default() -> Self {
        Command::Demo(DemoArgs::default())
    }
}

/// Which database.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct DbArgs {
    /// Directory of the database
    #[arg(long, value_name = "DIR")]
    pub(crate) db: PathBuf,
    /// Memory for memtables, in MiB. Persistent memory is made as large as that needs, and stays so
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    pub(crate) memtable_mib: usize,
    /// Memory for cached blocks, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub(crate) cache_mib: usize,
    /// Give persistent memory up that is gone, damaged or of another time than DIR, and make a new one with what the log behind it has: the
    /// newest commits may be lost
    #[arg(long)]
    pub(crate) renew_pmem: bool,
    /// File of the persistent memory: where a new database (--medium) is to have it, or where that of an existing one is now, if it was
    /// moved; the place is noted [default: pmem in the database's directory, or where it was]
    #[arg(long, value_name = "FILE")]
    pub(crate) pmem: Option<PathBuf>,
}

impl DbArgs {
    pub(crate) fn options(&self) -> terrane::Options {
        terrane::Options::new()
            .memtable_bytes(self.memtable_mib << 20)
            .cache_bytes(self.cache_mib << 20)
            .renew_pmem(self.renew_pmem)
    }

    /// Opens a database that must exist.
    pub(crate) fn open_existing(&self) -> terrane::Result<terrane::Db> {
        let mut options = self.options().create_if_missing(false);
        if let Some(path) = &self.pmem {
            options = options.pmem_path(memory_path(&self.db, path)?);
        }
        self.open(options)
    }

    /// Opens it, and says if its memory was given up.
    pub(crate) fn open(&self, options: terrane::Options) -> terrane::Result<terrane::Db> {
        let db = terrane::Db::open(&self.db, options)?;
        if self.renew_pmem && db.stats().pmem_renewed {
            eprintln!("terrane: the persistent memory was made anew, with what the log had");
        }
        Ok(db)
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) records: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) value_bytes: usize,
    /// Seconds of the mixed workload
    #[arg(long, value_name = "S", default_value_t = 5)]
    pub(crate) seconds: u64,
    /// Threads of the mixed workload
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) threads: usize,
    /// Memory for memtables, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    pub(crate) memtable_mib: usize,
    /// Memory for cached blocks, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub(crate) cache_mib: usize,
    #[command(flatten)]
    pub(crate) medium: MediumArgs,
    /// File of the persistent memory, with --medium [default: in the database's directory]
    #[arg(long, value_name = "FILE", requires = "medium")]
    pub(crate) pmem: Option<PathBuf>,
    /// Keep the database in this (new) directory instead of a temporary one
    #[arg(long, value_name = "DIR")]
    pub(crate) db: Option<PathBuf>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Default for DemoArgs {
    fn default() -> Self {
        DemoArgs {
            records: 1_000_000,
            value_bytes: 100,
            seconds: 5,
            threads: 2,
            memtable_mib: 128,
            cache_mib: 256,
            medium: MediumArgs::default(),
            pmem: None,
            db: None,
            json: false,
        }
    }
}

/// How records look in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// key TAB value, a line each; \t \n \r \\ and \xNN are escapes (see --raw)
    Tsv,
    /// {"key": ..., "value": ...}, a line each
    Jsonl,
    /// Paragraphs of "Field: value" lines, separated by empty lines; one field is the key (see --key-field)
    Stanza,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    #[command(flatten)]
    pub(crate) medium: MediumArgs,
    /// Subtable to load into; created if missing
    #[arg(long, value_name = "NAME")]
    pub(crate) table: String,
    /// Form of the input
    #[arg(long, value_enum, default_value_t = Format::Tsv)]
    pub(crate) format: Format,
    /// For stanzas: the field that is the key
    #[arg(long, value_name = "FIELD", default_value = "Package")]
    pub(crate) key_field: String,
    /// For tsv: take bytes as they are, without escapes
    #[arg(long)]
    pub(crate) raw: bool,
    /// Forget an interrupted load of this input and begin again
    #[arg(long)]
    pub(crate) restart: bool,
    /// The records are sorted by key, bytewise, each key once: write them straight into extents, and show them all at once at the
    /// end. An interrupted load leaves nothing behind and begins anew
    #[arg(long, conflicts_with = "restart")]
    pub(crate) sorted: bool,
    /// Give up after this many bad records
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_bad: u64,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// The input; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    /// Subtable
    #[arg(long, value_name = "NAME")]
    pub(crate) table: String,
    /// Write the value's bytes as they are, and nothing else; take the key without escapes
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print a JSON object
    #[arg(long, conflicts_with = "raw")]
    pub(crate) json: bool,
    /// Key; \t \n \r \\ and \xNN are escapes
    pub(crate) key: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    #[command(flatten)]
    pub(crate) medium: MediumArgs,
    /// Subtable; created if missing
    #[arg(long, value_name = "NAME")]
    pub(crate) table: String,
    /// Take key and value without escapes
    #[arg(long)]
    pub(crate) raw: bool,
    /// Key; \t \n \r \\ and \xNN are escapes
    pub(crate) key: String,
    /// Value; - reads it from standard input, as it is
    pub(crate) value: String,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    /// Subtable
    #[arg(long, value_name = "NAME")]
    pub(crate) table: String,
    /// Take keys without escapes
    #[arg(long)]
    pub(crate) raw: bool,
    /// Key, or the first key of a range
    pub(crate) key: String,
    /// Remove all keys up to this one, excluded
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<String>,
}

/// How records are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// key TAB value, escaped
    Tsv,
    /// {"key": ..., "value": ...}
    Jsonl,
    /// Values as they are, each followed by an empty line
    Stanza,
    /// Keys only, escaped
    Keys,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    /// Subtable
    #[arg(long, value_name = "NAME")]
    pub(crate) table: String,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<String>,
    /// Key to stop before
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<String>,
    /// Only keys that begin so
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<String>,
    /// From the last key to the first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Stop after this many records
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Output::Tsv)]
    pub(crate) format: Output,
    /// Bytes as they are, without escapes
    #[arg(long)]
    pub(crate) raw: bool,
    /// The same as --format jsonl
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) db: DbArgs,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }
}
