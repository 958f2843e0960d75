//! Steps of long work: after every few thousand a hook may stop it.

use std::convert::Infallible;

/// Steps between two calls of the hook. A step takes from a nanosecond to a few microseconds.
const EVERY: usize = 1 << 12;

/// Counts the steps of long work, and calls a hook after every few thousand.
///
/// The hook decides how often it does more than look at a clock. An error that it returns ends the
/// work.
pub struct Steps<'a, E> {
    hook: &'a mut dyn FnMut() -> Result<(), E>,
    left: usize,
}

impl<'a, E> Steps<'a, E> {
    /// Call this hook.
    pub fn new(hook: &'a mut dyn FnMut() -> Result<(), E>) -> Self {
        Self { hook, left: EVERY }
    }

    /// Count steps that were done.
    ///
    /// # Errors
    /// What the hook returns.
    #[inline]
    pub fn done(&mut self, steps: usize) -> Result<(), E> {
        if steps < self.left {
            self.left -= steps;
            return Ok(());
        }
        self.left = EVERY;
        (self.hook)()
    }
}

/// Do work that nothing stops.
pub fn unstopped<T>(work: impl FnOnce(&mut Steps<Infallible>) -> Result<T, Infallible>) -> T {
    let Ok(done) = work(&mut Steps::new(&mut || Ok(())));
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_called_after_every_few_thousand_steps() {
        let mut calls = 0;
        let mut hook = || {
            calls += 1;
            if calls == 3 { Err(calls) } else { Ok(()) }
        };
        let mut steps = Steps::new(&mut hook);
        for _ in 0..3 * EVERY - 1 {
            assert_eq!(steps.done(1), Ok(()));
        }
        assert_eq!(steps.done(1), Err(3));
        assert_eq!(steps.done(EVERY - 1), Ok(()));
        assert_eq!(unstopped(|steps| steps.done(usize::MAX).map(|()| 5)), 5);
    }
}
