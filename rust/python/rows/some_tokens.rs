//! Rows of a field that have values for some tokens.

use fastcollate::plan::{Runs, Turns};
use fastcollate::{FieldColumn, gathered};
use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use super::PyRows;
use crate::error::Result;
use crate::plan::tables::usizes;

/// Rows of a field, and the tokens that they have values for.
///
/// Private: fields that begin at a token pass it, and a batch that reads its own outputs.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct SomeTokens {
    rows: Py<PyAny>,
    tokens: Tokens,
}

enum Tokens {
    /// Each row's first token.
    From(Vec<usize>),
    /// Rows with their first and last tokens, of which the rest of the values are not used.
    Runs(Vec<[usize; 3]>),
}

#[pymethods]
impl SomeTokens {
    /// Rows whose values belong to the tokens from these on.
    #[staticmethod]
    fn beginning(rows: Py<PyAny>, name: &str, starts: PyReadonlyArray1<i64>) -> Result<Self> {
        let tokens = Tokens::From(usizes(name, &starts)?);
        Ok(Self { rows, tokens })
    }

    /// Rows with a value for every token, of which those in runs are used: of a row, from a token
    /// to before another.
    #[staticmethod]
    fn within(rows: Py<PyAny>, runs: PyReadonlyArray2<i64>) -> Result<Self> {
        let run = |run: &[i64]| {
            // Negative numbers are beyond every row.
            let run: [i64; 3] = run.try_into().unwrap_or([-1; 3]);
            run.map(|number| usize::try_from(number).unwrap_or(usize::MAX))
        };
        let runs = runs.as_array();
        let runs = runs.rows().into_iter().map(|row| run(&row.to_vec()));
        let tokens = Tokens::Runs(gathered(runs)?);
        Ok(Self { rows, tokens })
    }
}

impl SomeTokens {
    /// The rows.
    pub fn rows<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.rows.bind(py)
    }

    /// Set the tokens of these rows, once they are read.
    ///
    /// # Errors
    /// Another number of rows.
    pub fn set(&self, field: &str, rows: &mut PyRows, turns: &Turns) -> Result<()> {
        let (lens, chosen) = (rows.lens()?, rows.chosen());
        let runs = match &self.tokens {
            Tokens::From(starts) => {
                turns.check_count(&format!("starts of {field}"), starts.len())?;
                let numbers = 0..lens.len();
                let start = |row| starts[chosen.map_or(row, |chosen| chosen.numbers[row])];
                Runs::from_starts(numbers.map(start), &lens)?
            }
            Tokens::Runs(runs) => {
                let runs = runs.iter().filter_map(|&[row, start, end]| {
                    let row = chosen.map_or(Some(row), |chosen| chosen.index(row))?;
                    Some((row, start..end))
                });
                Runs::of_table(runs, &lens)?
            }
        };
        rows.set_runs(runs);
        Ok(())
    }
}
