//! What items weigh, and how weights add up.

use std::cmp::Ordering;
use std::fmt::Debug;

/// A number that is neither negative nor infinite.
pub trait Weight: Copy {
    /// What several weigh together.
    type Sum: Copy + Ord + Debug;

    /// What nothing weighs.
    const ZERO: Self::Sum;

    /// A sum and one more.
    fn added_to(self, sum: Self::Sum) -> Self::Sum;

    /// How much more one sum is than another.
    fn difference(more: Self::Sum, less: Self::Sum) -> Self::Sum;

    /// A sum and several more, whose own sum is known.
    ///
    /// Floats are added one by one: in another order, they round to another sum.
    fn joined(left: Self::Sum, _right: Self::Sum, items: impl Iterator<Item = Self>) -> Self::Sum {
        items.fold(left, |sum, item| item.added_to(sum))
    }
}

impl Weight for i64 {
    type Sum = i128;

    const ZERO: i128 = 0;

    fn added_to(self, sum: i128) -> i128 {
        sum + i128::from(self)
    }

    fn difference(more: i128, less: i128) -> i128 {
        more - less
    }

    fn joined(left: i128, right: i128, _: impl Iterator<Item = Self>) -> i128 {
        left + right
    }
}

/// A float among others that can be ordered, too, as none of them is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Float<T>(pub T);

macro_rules! float {
    ($float:ty) => {
        impl Weight for $float {
            type Sum = Float<$float>;

            const ZERO: Self::Sum = Float(0.0);

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
