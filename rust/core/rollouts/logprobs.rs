//! Log-probabilities of calls: one rule for those that are none.

/// What happens to log-probabilities that are none: not finite, missing, or -9999, which vLLM
/// writes for a missing one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum BadLogprobs {
    /// They are errors.
    #[default]
    Error,
    /// They become 0, and their tokens do not train.
    Mask,
    /// They stay as they are; missing ones are NaN.
    Keep,
}

/// Kinds of log-probabilities that are none, as they are counted: NaN or null, infinite, -9999 or
/// less, and missing.
pub const KINDS: usize = 4;

/// The number that vLLM writes for a missing log-probability.
const MISSING: f32 = -9999.0;

impl BadLogprobs {
    /// Treat the log-probabilities of a call, of which `given` were given, in place, and count
    /// those that are none. Tokens at 0 of the mask may have none, which are written as 0.
    ///
    /// # Errors
    /// The position of the first that is an error.
    pub fn settle(
        self,
        values: &mut [f32],
        given: usize,
        mut mask: Option<&mut [f32]>,
        counts: &mut [usize; KINDS],
    ) -> Result<(), usize> {
        let is_good = |value: f32| (value > MISSING) & (value < f32::INFINITY);
        // Of vectors of values at once.
        let are_good = |some: &[f32]| some.iter().fold(true, |all, &one| all & is_good(one));
        if values.chunks(64).all(are_good) {
            return Ok(());
        }
        for (at, value) in values.iter_mut().enumerate() {
            if is_good(*value) {
                continue;
            }
            if mask.as_ref().is_some_and(|mask| mask[at] == 0.0) {
                *value = 0.0;
                continue;
            }
            let kind = match () {
                () if at >= given => 3,
                () if value.is_nan() => 0,
                () if value.is_infinite() => 1,
                () => 2,
            };
            match self {
                Self::Error => return Err(at),
                Self::Mask => {
                    *value = 0.0;
                    if let Some(mask) = &mut mask {
                        mask[at] = 0.0;
                    }
                }
                Self::Keep => {}
            }
            counts[kind] += 1;
        }
        Ok(())
    }
}
