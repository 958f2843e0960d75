//! Shards in Python.

use fastcollate::plan::{Pick, Shard, ShardBins, Widths};
use fastcollate::{Error as Core, check_room, gathered};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::error::Result;
use crate::plan::tables::usizes;

/// The compiled form of a shard: rows picked from all rows of a step.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct ShardSpec(pub Shard);

#[pymethods]
impl ShardSpec {
    /// `bins` holds the offsets of bins, the width of the step's widest bin and, if bins are trees,
    /// the number of tokens that each row shares with the row before it.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "called once")]
    fn new(
        rows: PyReadonlyArray1<i64>,
        is_padding: PyReadonlyArray1<bool>,
        num_rows: usize,
        widths: Option<(usize, usize, usize)>,
        lengths: Option<PyReadonlyArray1<i64>>,
        prompt_lengths: Option<PyReadonlyArray1<i64>>,
        bin_offsets: Option<PyReadonlyArray1<i64>>,
        bin_width: usize,
        shared: Option<PyReadonlyArray1<i64>>,
        is_narrow: bool,
    ) -> Result<Self> {
        let (rows, is_padding) = (rows.as_array(), is_padding.as_array());
        if rows.len() != is_padding.len() {
            let (rows, flags) = (rows.len(), is_padding.len());
            let reason = format!("has {rows} rows, but {flags} flags in is_padding");
            return Err(Core::OtherShard(reason).into());
        }
        check_room(rows.len())?;
        let pick =
            |(&row, &is_padding): (&i64, &bool)| Pick { row: row.try_into().ok(), is_padding };
        let lens = |lens: PyReadonlyArray1<i64>| {
            let len = |&len: &i64| len.try_into().unwrap_or(usize::MAX);
            gathered(lens.as_array().iter().map(len))
        };
        let bins = bin_offsets.map(|offsets| -> Result<_> {
            Ok(ShardBins {
                offsets: usizes("bin_offsets", &offsets)?,
                width: bin_width,
                shared: shared.map(|shared| usizes("shared", &shared)).transpose()?,
            })
        });
        Ok(Self(Shard {
            picks: gathered(rows.iter().zip(is_padding).map(pick))?,
            num_rows,
            widths: widths.map(|(prompt, response, sequence)| Widths {
                prompt,
                response,
                sequence,
            }),
            lens: lengths.map(lens).transpose()?,
            prompt_lens: prompt_lengths.map(lens).transpose()?,
            bins: bins.transpose()?,
            is_narrow,
        }))
    }
}
