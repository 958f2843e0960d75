//! Ticks of long plans: after every few thousand a hook may stop them. Reading and comparing tokens is
//! cut into chunks instead (`polling.rs`).

use std::convert::Infallible;

/// Ticks between two calls of the hook. One takes from a nanosecond to a few microseconds.
const EVERY: usize = 1 << 12;

/// Counts the ticks of long work, and calls a hook after every few thousand.
///
/// The hook decides how often it does more than look at a clock. An error that it returns ends the
/// work.
pub struct Ticks<'a, E> {
    hook: &'a mut dyn FnMut() -> Result<(), E>,
    left: usize,
}

impl<'a, E> Ticks<'a, E> {
    /// Call this hook.
    pub fn new(hook: &'a mut dyn FnMut() -> Result<(), E>) -> Self {
        Self { hook, left: EVERY }
    }

    /// Count ticks that were done.
    ///
    /// # Errors
    /// What the hook returns.
    #[inline]
    pub fn done(&mut self, ticks: usize) -> Result<(), E> {
        if ticks < self.left {
            self.left -= ticks;
            return Ok(());
        }
        self.left = EVERY;
        (self.hook)()
    }
}

/// Do work that nothing stops.
pub fn unstopped<T>(work: impl FnOnce(&mut Ticks<Infallible>) -> Result<T, Infallible>) -> T {
    let Ok(done) = work(&mut Ticks::new(&mut || Ok(())));
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_called_after_every_few_thousand_ticks() {
        let mut calls = 0;
        let mut hook = || {
            calls += 1;
            if calls == 3 { Err(calls) } else { Ok(()) }
        };
        let mut ticks = Ticks::new(&mut hook);
        for _ in 0..3 * EVERY - 1 {
            assert_eq!(ticks.done(1), Ok(()));
        }
        assert_eq!(ticks.done(1), Err(3));
        assert_eq!(ticks.done(EVERY - 1), Ok(()));
        assert_eq!(unstopped(|ticks| ticks.done(usize::MAX).map(|()| 5)), 5);
    }
}
