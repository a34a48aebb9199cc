//! Commits from async code: a commit is submitted, and a waker is told when it has the durability asked for.
//!
//! Terrane brings no runtime. Any executor does; this one polls on the main thread and parks in between.
//!
//! `cargo run -p terrane --example async_commit`

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use terrane::{Db, Durability, Options, PendingCommit, Seq, Subtable, SubtableOptions, Waiter, WriteBatch};

/// A commit as a future.
struct Commit(PendingCommit);

impl Future for Commit {
    type Output = terrane::Result<Seq>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.0.outcome() {
            return Poll::Ready(outcome);
        }
        // If the outcome became known since, the waker is woken at once: none is lost.
        self.0.register(Waiter::Waker(cx.waker().clone()));
        Poll::Pending
    }
}

async fn transfer(db: &Db, accounts: &Subtable, from: &[u8], to: &[u8]) -> terrane::Result<Seq> {
    let mut batch = WriteBatch::new();
    batch.put(accounts, from, b"90")?;
    batch.put(accounts, to, b"110")?;
    Commit(db.submit(batch, Durability::Sync)?).await
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn main() -> terrane::Result<()> {
    let dir = std::env::temp_dir().join(format!("terrane-async-{}", std::process::id()));
    let db = Db::open(&dir, Options::new())?;
    let accounts = db.create_subtable("accounts", SubtableOptions::new())?;

    let sequence = block_on(transfer(&db, &accounts, b"alice", b"bob"))?;
    println!("committed at sequence {sequence}");
    assert_eq!(accounts.get(b"bob")?.as_deref(), Some(&b"110"[..]));

    // The third way to wait: a callback, called on the thread that settles the commit.
    let (tell, told) = std::sync::mpsc::channel();
    let mut batch = WriteBatch::new();
    batch.delete(&accounts, b"alice")?;
    let pending = db.submit(batch, Durability::Buffered)?;
    pending.register(Waiter::Callback(Box::new(move |outcome| {
        let _ = tell.send(outcome);
    })));
    let later = told.recv().expect("the callback is called once")?;
    assert!(later > sequence);

    drop((pending, accounts));
    db.close()?;
    Db::destroy(&dir)
}

#[test]
fn runs() -> terrane::Result<()> {
    main()
}
