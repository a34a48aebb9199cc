//! Other allocators beside ours: libpmemobj, which is loaded if the machine has it, and jemalloc, which forgets everything.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use libloading::{Library, Symbol};
use tikv_jemallocator::Jemalloc;

use crate::Failure;

/// Tells libpmemobj, before it is loaded, that a mapped file is persistent memory: with every instruction that a device needs, as ours.
const FORCE: &str = "PMEM_IS_PMEM_FORCE";
const LIBRARY: &str = "libpmemobj.so.1";
const MODE: u32 = 0o600;

/// Begins this program anew with what libpmemobj wants to find in its environment; says whether that was necessary, and has been done.
pub(in crate::repro) fn begin_anew() -> Result<bool, Failure> {
    if std::env::var_os(FORCE).is_some() {
        return Ok(false);
    }
    let done =
        Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(FORCE, "1").status()?;
    if done.success() { Ok(true) } else { Err(format!("with {FORCE}=1: {done}").into()) }
}

/// An object of libpmemobj.
#[repr(C)]
#[derive(Clone, Copy)]
struct Oid {
    pool: u64,
    offset: u64,
}

type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
type Create = unsafe extern "C" fn(*const c_char, *const c_char, usize, u32) -> *mut c_void;
type Alloc =
    unsafe extern "C" fn(*mut c_void, *mut Oid, usize, u64, Option<extern "C" fn()>, *mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut Oid);
type Close = unsafe extern "C" fn(*mut c_void);

/// What is called of it.
struct Functions<'l> {
    open: Symbol<'l, Open>,
    create: Symbol<'l, Create>,
    alloc: Symbol<'l, Alloc>,
    free: Symbol<'l, Free>,
    close: Symbol<'l, Close>,
}

impl<'l> Functions<'l> {
    fn of(library: &'l Library) -> Result<Self, Failure> {
        // SAFETY: they are declared so in libpmemobj.h, version 1.
        unsafe {
            Ok(Functions {
                open: library.get(b"pmemobj_open\0")?,
                create: library.get(b"pmemobj_create\0")?,
                alloc: library.get(b"pmemobj_alloc\0")?,
                free: library.get(b"pmemobj_free\0")?,
                close: library.get(b"pmemobj_close\0")?,
            })
        }
    }
}

/// What taking and giving back one object takes, and opening a pool of all of them, in nanoseconds.
pub(in crate::repro) struct Taken {
    pub(in crate::repro) take: f64,
    pub(in crate::repro) release: f64,
    pub(in crate::repro) open: f64,
}

/// Allocates `count` objects of `bytes` in a pool of its own, opens it again, and frees them; `None` if the library is not there.
pub(in crate::repro) fn pmemobj(dir: &Path, bytes: usize, count: usize) -> Result<Option<Taken>, Failure> {
    // SAFETY: what its initialisers do is its own; it is loaded for good.
    let Ok(library) = (unsafe { Library::new(LIBRARY) }) else { return Ok(None) };
    let Functions { open, create, alloc, free, close } = Functions::of(&library)?;
    let file = dir.join(format!("pmemobj-{bytes}"));
    let (path, layout) = (CString::new(file.as_os_str().as_bytes())?, CString::new("terrane-bench")?);
    let size = (count * (bytes + 64) * 5 / 4 + (64 << 20)).next_multiple_of(4096);
    // SAFETY: both strings end with zero and live through the call.
    let pool = unsafe { create(path.as_ptr(), layout.as_ptr(), size, MODE) };
    if pool.is_null() {
        return Err(format!("libpmemobj cannot make {}", file.display()).into());
    }
    let mut objects = vec![Oid { pool: 0, offset: 0 }; count];
    let began = Instant::now();
    for object in &mut objects {
        // SAFETY: the pool is open, and the place for the object's name is ours.
        let failed = unsafe { alloc(pool, object, bytes, 0, None, std::ptr::null_mut()) };
        if failed != 0 {
            return Err("libpmemobj has no room for another object".into());
        }
    }
    let take = each(began, count);
    // SAFETY: it is open, and not used any more.
    unsafe { close(pool) };
    let began = Instant::now();
    // SAFETY: as for creating it.
    let pool = unsafe { open(path.as_ptr(), layout.as_ptr()) };
    let opening = began.elapsed().as_nanos() as f64;
    if pool.is_null() {
        return Err(format!("libpmemobj cannot open {}", file.display()).into());
    }
    let began = Instant::now();
    for object in &mut objects {
        // SAFETY: an object of the pool that is open.
        unsafe { free(object) };
    }
    let release = each(began, count);
    // SAFETY: as above.
    unsafe { close(pool) };
    std::fs::remove_file(&file)?;
    Ok(Some(Taken { take, release, open: opening }))
}

/// What jemalloc takes for as many pieces of ordinary memory; there is nothing to open.
pub(in crate::repro) fn jemalloc(bytes: usize, count: usize) -> Result<Taken, Failure> {
    let layout = Layout::from_size_align(bytes, 8)?;
    let mut pieces = Vec::with_capacity(count);
    let began = Instant::now();
    for _ in 0..count {
        // SAFETY: the length is not zero.
        let piece = unsafe { Jemalloc.alloc(layout) };
        if piece.is_null() {
            return Err("jemalloc has no room for another piece".into());
        }
        pieces.push(piece);
    }
    let take = each(began, count);
    let began = Instant::now();
    for piece in pieces {
        // SAFETY: allocated with this layout, and given back here alone.
        unsafe { Jemalloc.dealloc(piece, layout) };
    }
    Ok(Taken { take, release: each(began, count), open: 0.0 })
}

fn each(began: Instant, count: usize) -> f64 {
    began.elapsed().as_nanos() as f64 / count as f64
}
