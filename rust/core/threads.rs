//! Threads that help the calling one, and are gone whenever the process forks.
//!
//! A forked child has the calling thread alone. If others were at work then, on behalf of a call that
//! goes on in the child (an item's `__index__` may fork, and so may a signal handler), it would wait
//! for them, or for a lock that they held, for ever. So they end before the fork, and the calling
//! thread does what is left.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, Scope, sleep};
use std::time::Duration;

/// Helpers that have not ended.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Forks that are under way.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// How often a fork looks whether helpers have ended: they look themselves between jobs, which take
/// some milliseconds at most.
const PAUSE: Duration = Duration::from_micros(50);

/// A helper that counts, until this is dropped.
struct Helper;

impl Drop for Helper {
    fn drop(&mut self) {
        HELPERS.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// Dropped when the thread ends, after its scope has heard of that.
    static OWN: Cell<Option<Helper>> = const { Cell::new(None) };
}

/// Start a helper, unless the process forks or has no more threads: who starts it can do all alone.
pub fn help<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) {
    HELPERS.fetch_add(1, Ordering::SeqCst);
    let helper = Helper;
    if is_forking() {
        return;
    }
    // Not joined: the scope waits for it, and a handle would keep the scope from hearing of its end.
    let _ = Builder::new().spawn_scoped(scope, move || {
        OWN.set(Some(helper));
        work();
    });
}

/// Whether helpers have to end.
pub fn is_forking() -> bool {
    FORKING.load(Ordering::SeqCst) > 0
}

/// To be called before every fork: wait for helpers to end. They never wait for the interpreter.
pub fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    while HELPERS.load(Ordering::SeqCst) > 0 {
        sleep(PAUSE);
    }
}

/// To be called in the parent after every fork.
pub fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// A child is not forking, and has no helpers: at the fork another thread may just have been about to
/// start one.
pub fn reset_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    HELPERS.store(0, Ordering::SeqCst);
}
