//! Columns over other columns.

use crate::column::{CHUNK, Column, Lookahead};
use crate::element::{Element, Slice};
use crate::error::Result;

/// Whole numbers of a column checked with [`Check::Whole`]: read as float64, which is exact for
/// them, then converted. Integers, booleans and floats are all accepted.
pub struct WholeNumbers<'a>(pub &'a dyn Column<f64>);

impl<T: Element> Column<T> for WholeNumbers<'_> {
    fn row_len(&self, turn: usize) -> usize {
        self.0.row_len(turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let (mut numbers, mut whole) = ([0.0; CHUNK], [0; CHUNK]);
        for (index, out) in out.chunks_mut(CHUNK).enumerate() {
            let numbers = &mut numbers[..out.len()];
            self.0.read(turn, from + index * CHUNK, numbers)?;
            for (whole, &mut number) in whole.iter_mut().zip(numbers) {
                *whole = number as i64;
            }
            T::read(&Slice::I64(&whole), 0, out).expect("the column checks that they fit");
        }
        Ok(())
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        self.0.announce(turn, from, lookahead);
    }
}

/// Rounds weights to the output's dtype; small weights may become 0.
pub type Rounding = fn(&mut [f64]);

/// Values of a column with one number per token where the loss mask trains, and `fill` elsewhere.
pub struct TrainedValues<'a, T> {
    /// The values.
    pub values: &'a dyn Column<T>,
    /// The loss mask.
    pub mask: &'a dyn Column<f64>,
    /// Rounds the weights; a weight rounded to 0 does not train.
    pub round: Rounding,
    /// The value where nothing trains.
    pub fill: T,
}

impl<T: Element> Column<T> for TrainedValues<'_, T> {
    fn row_len(&self, turn: usize) -> usize {
        self.values.row_len(turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let mut weights = [0.0; CHUNK];
        for (index, out) in out.chunks_mut(CHUNK).enumerate() {
            let (from, weights) = (from + index * CHUNK, &mut weights[..out.len()]);
            self.values.read(turn, from, out)?;
            self.mask.read(turn, from, weights)?;
            (self.round)(weights);
            for (value, weight) in out.iter_mut().zip(weights) {
                // No branch: zero weights are hard to predict.
                *value = if *weight == 0.0 { self.fill } else { *value };
            }
        }
        Ok(())
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        self.mask.announce(turn, from, lookahead);
    }
}
