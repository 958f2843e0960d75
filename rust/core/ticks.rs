//! Ticks of long plans: every few thousand ticks a hook may stop them. Reads and comparisons of
//! tokens are cut into chunks instead (`polling.rs`).

use crate::error::Result;

/// Ticks between two calls of the hook. One takes from a nanosecond to a few microseconds.
const EVERY: usize = 1 << 12;

/// Counts the ticks of long work and calls a hook every few thousand.
///
/// The hook decides how often it does more than read a clock. An error that it returns ends the
/// work.
pub struct Ticks<'a> {
    hook: &'a mut dyn FnMut() -> Result<()>,
    left: usize,
}

impl<'a> Ticks<'a> {
    /// Call this hook.
    pub fn new(hook: &'a mut dyn FnMut() -> Result<()>) -> Self {
        Self { hook, left: EVERY }
    }

    /// Count finished ticks.
    ///
    /// # Errors
    /// Those of the hook.
    #[inline]
    pub fn done(&mut self, ticks: usize) -> Result<()> {
        if ticks < self.left {
            self.left -= ticks;
            return Ok(());
        }
        self.left = EVERY;
        (self.hook)()
    }
}

/// Do work without a hook.
///
/// # Panics
/// If the work fails.
pub fn unstopped<T>(work: impl FnOnce(&mut Ticks) -> Result<T>) -> T {
    work(&mut Ticks::new(&mut || Ok(()))).expect("nothing stops it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_hook_is_called_after_every_few_thousand_ticks() {
        let mut calls = 0;
        let mut hook = || {
            calls += 1;
            if calls == 3 {
                return Err(Error::NothingTrains);
            }
            Ok(())
        };
        let mut ticks = Ticks::new(&mut hook);
        for _ in 0..3 * EVERY - 1 {
            assert_eq!(ticks.done(1), Ok(()));
        }
        assert_eq!(ticks.done(1), Err(Error::NothingTrains));
        assert_eq!(ticks.done(EVERY - 1), Ok(()));
        assert_eq!(unstopped(|ticks| ticks.done(usize::MAX).map(|()| 5)), 5);
    }
}
