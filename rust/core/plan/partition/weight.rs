//! Weights of items, and their sums.

use std::cmp::Ordering;
use std::fmt::Debug;

/// A finite number that is not negative.
pub trait Weight: Copy {
    /// The type of a sum of weights.
    type Sum: Copy + Ord + Debug;

    /// The sum of no weights.
    const ZERO: Self::Sum;

    /// The sum plus this weight.
    fn added_to(self, sum: Self::Sum) -> Self::Sum;

    /// The difference of two sums.
    fn difference(more: Self::Sum, less: Self::Sum) -> Self::Sum;

    /// The sum of two sums.
    ///
    /// None for floats, which are added one by one: another order rounds to another sum.
    fn joined(left: Self::Sum, right: Self::Sum) -> Option<Self::Sum>;
}

impl Weight for i64 {
    type Sum = i128;

    const ZERO: i128 = 0;

    fn joined(left: i128, right: i128) -> Option<i128> {
        Some(left + right)
    }

    fn added_to(self, sum: i128) -> i128 {
        sum + i128::from(self)
    }

    fn difference(more: i128, less: i128) -> i128 {
        more - less
    }
}

/// An integer weight, of weights whose sum fits 64 bits: their sets take half the memory.
#[derive(Debug, Clone, Copy)]
pub struct Short(pub i64);

impl Short {
    /// The converted weights, if their sum fits.
    pub fn all(weights: &[i64]) -> Option<Vec<Self>> {
        let mut sum = weights.iter().copied();
        sum.try_fold(0, i64::checked_add)?;
        Some(weights.iter().copied().map(Self).collect())
    }
}

impl Weight for Short {
    type Sum = i64;

    const ZERO: i64 = 0;

    fn joined(left: i64, right: i64) -> Option<i64> {
        Some(left + right)
    }

    fn added_to(self, sum: i64) -> i64 {
        sum + self.0
    }

    fn difference(more: i64, less: i64) -> i64 {
        more - less
    }
}

/// A float weight; ordered, as no weight is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Float<T>(pub T);

macro_rules! float {
    ($float:ty) => {
        impl Weight for $float {
            type Sum = Float<$float>;

            const ZERO: Self::Sum = Float(0.0);

            fn joined(_: Self::Sum, _: Self::Sum) -> Option<Self::Sum> {
                None
            }

            fn added_to(self, sum: Self::Sum) -> Self::Sum {
                Float(sum.0 + self)
            }

            fn difference(more: Self::Sum, less: Self::Sum) -> Self::Sum {
                Float(more.0 - less.0)
            }
        }

        impl Ord for Float<$float> {
            fn cmp(&self, other: &Self) -> Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl PartialOrd for Float<$float> {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl PartialEq for Float<$float> {
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other).is_eq()
            }
        }

        impl Eq for Float<$float> {}
    };
}

float!(f32);
float!(f64);
