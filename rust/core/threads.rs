//! Helper threads of the calling thread, which end before the process forks.
//!
//! A forked child has the calling thread alone. If helpers were running then, for a call that goes
//! on in the child (an item's `__index__` or a signal handler may fork), the child would wait for
//! ever for them or for a lock that they held. So helpers end before the fork, and the calling
//! thread does the rest.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, Scope, sleep};
use std::time::Duration;

/// Helpers still running.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Forks in progress.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// Interval at which a fork polls for the end of helpers, which poll between jobs of at most some
/// milliseconds.
const PAUSE: Duration = Duration::from_micros(50);

/// A helper, counted until this is dropped.
struct Helper;

impl Drop for Helper {
    fn drop(&mut self) {
        HELPERS.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    /// Dropped when the thread ends, after its scope has been notified.
    static OWN: Cell<Option<Helper>> = const { Cell::new(None) };
}

/// Start a helper, unless the process forks or has no more threads; the caller can do all the work.
pub fn help<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) {
    HELPERS.fetch_add(1, Ordering::SeqCst);
    let helper = Helper;
    if is_forking() {
        return;
    }
    // Not joined: the scope waits for it, and a handle would keep the scope from noticing its end.
    let _ = Builder::new().spawn_scoped(scope, move || {
        OWN.set(Some(helper));
        work();
    });
}

/// True if helpers have to end.
pub fn is_forking() -> bool {
    FORKING.load(Ordering::SeqCst) > 0
}

/// Call before every fork: waits for helpers to end. They never wait for the interpreter.
pub fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    while HELPERS.load(Ordering::SeqCst) > 0 {
        sleep(PAUSE);
    }
}

/// Call in the parent after every fork.
pub fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Call in the child: it is not forking and has no helpers, although another thread may have been
/// about to start one at the fork.
pub fn reset_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    HELPERS.store(0, Ordering::SeqCst);
}
