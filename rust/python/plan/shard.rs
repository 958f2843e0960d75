//! Shards in Python.

use fastcollate::Error as Core;
use fastcollate::plan::{Longest, Pick, Shard as CoreShard, ShardBins, WidthsOf};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::names::Names;
use crate::plan::tables::usizes;

/// The rows that the widths of a shard come from.
pub const WIDTHS: Names<WidthsOf> = Names::new(
    "widths",
    &[(WidthsOf::Step, "step"), (WidthsOf::Shard, "shard")],
);

/// Rows selected from all rows of a step.
pub struct Shard(pub CoreShard);

impl<'py> FromPyObject<'_, 'py> for Shard {
    type Error = PyErr;

    fn extract(shard: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let rows: PyReadonlyArray1<i64> = shard.getattr("rows")?.extract()?;
        let is_padding: PyReadonlyArray1<bool> = shard.getattr("is_padding")?.extract()?;
        let lengths: Option<PyReadonlyArray1<i64>> = shard.getattr("lengths")?.extract()?;
        let offsets: Option<PyReadonlyArray1<i64>> = shard.getattr("bin_offsets")?.extract()?;
        let shared: Option<PyReadonlyArray1<i64>> = shard.getattr("shared")?.extract()?;
        let widths: Option<(usize, usize, usize)> = shard.getattr("widths")?.extract()?;
        let (rows, is_padding) = (rows.as_array(), is_padding.as_array());
        if rows.len() != is_padding.len() {
            let (rows, flags) = (rows.len(), is_padding.len());
            let reason = format!("has {rows} rows, but {flags} flags in is_padding");
            return Err(crate::error::Error::from(Core::OtherShard(reason)).into());
        }
        let pick = |(&row, &is_padding): (&i64, &bool)| Pick {
            row: row.try_into().ok(),
            is_padding,
        };
        let len = |&len: &i64| len.try_into().unwrap_or(usize::MAX);
        let bins = offsets.map(|offsets| {
            PyResult::Ok(ShardBins {
                offsets: usizes("bin_offsets", &offsets)?,
                width: shard.getattr("bin_width")?.extract()?,
                shared: shared.map(|shared| usizes("shared", &shared)).transpose()?,
            })
        });
        Ok(Self(CoreShard {
            picks: rows.iter().zip(is_padding).map(pick).collect(),
            num_rows: shard.getattr("num_rows")?.extract()?,
            widths: widths.map(|(prompt, response, sequence)| Longest {
                prompt,
                response,
                sequence,
            }),
            lens: lengths.map(|lengths| lengths.as_array().iter().map(len).collect()),
            bins: bins.transpose()?,
            widths_of: WidthsOf::Step,
        }))
    }
}
