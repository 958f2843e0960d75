//! Token ids of rows, as prompts and responses or as sequences.

use std::sync::Arc;

use fastcollate::plan::{Chosen, TokenForm};
use fastcollate::{FieldColumn, SliceColumn, TokenStreams, filled, gathered};
use numpy::PyReadonlyArray1;
use numpy::prelude::*;
use pyo3::prelude::*;

use super::py_rows::PyRows;
use crate::error::Result;
use crate::plan::tables::{usizes, values};

/// The token ids as they were passed, of all rows or of one.
pub enum TokenInput<'py> {
    Parts {
        prompts: Bound<'py, PyAny>,
        responses: Bound<'py, PyAny>,
    },
    Whole {
        sequences: Bound<'py, PyAny>,
        /// Checked prompt lengths: int64 (rows,), or an int for one row. None if no row has a
        /// prompt.
        prompt_lens: Option<Bound<'py, PyAny>>,
    },
}

impl<'py> FromPyObject<'_, 'py> for TokenInput<'py> {
    type Error = PyErr;

    fn extract(tokens: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = tokens.py();
        let prompts = tokens.getattr(intern!(py, "prompts"))?;
        Ok(match prompts.is_none() {
            true => Self::Whole {
                sequences: tokens.getattr(intern!(py, "sequences"))?,
                prompt_lens: tokens.getattr(intern!(py, "prompt_lens"))?.extract()?,
            },
            false => Self::Parts { prompts, responses: tokens.getattr(intern!(py, "responses"))? },
        })
    }
}

impl<'py> TokenInput<'py> {
    /// Read all rows, or chosen ones.
    ///
    /// # Errors
    /// As [`PyRows::new`], and another number of prompt lengths than sequences.
    pub fn read(&self, chosen: Option<&Arc<Chosen>>) -> Result<TokenStreams<PyRows<'py>>> {
        let rows = |field, rows| PyRows::new::<i64>(field, rows, chosen)?.without_booleans();
        Ok(match self {
            Self::Parts { prompts, responses } => TokenStreams::Parts {
                prompts: rows("prompts", prompts)?,
                responses: rows("responses", responses)?,
            },
            Self::Whole { sequences, prompt_lens } => {
                let sequences = rows("sequences", sequences)?;
                let (count, chosen) = (sequences.count(), sequences.chosen());
                let prompt_lens = match prompt_lens {
                    None => filled(chosen.map_or(count, |chosen| chosen.numbers.len()), |_| 0)?,
                    Some(lens) => {
                        let lens: PyReadonlyArray1<i64> = lens.extract()?;
                        match chosen {
                            None => usizes("prompt_lens", &lens)?,
                            Some(chosen) => {
                                TokenForm::Whole.check_counts(count, "prompt_lens", lens.len())?;
                                let lens = values(&lens)?;
                                let len = |&row: &usize| lens[row] as usize;
                                gathered(chosen.numbers.iter().map(len))?
                            }
                        }
                    }
                };
                TokenStreams::Whole { sequences, prompt_lens }
            }
        })
    }
}

/// The streams over plain memory, if no row needs the interpreter.
///
/// # Errors
/// An array that was moved.
pub fn slices_of<'a>(
    tokens: &'a TokenStreams<PyRows>,
) -> Result<Option<TokenStreams<SliceColumn<'a>>>> {
    let slices = tokens.try_map(|rows| rows.as_slices().map_err(Some)?.ok_or(None));
    match slices {
        Ok(slices) => Ok(Some(slices)),
        Err(None) => Ok(None),
        Err(Some(error)) => Err(error),
    }
}
