//! Captured fields: indices that an engine chose for each token in each layer, such as experts.

use super::array_grids::{ArrayGrid, Placed};
use std::iter::repeat_n;

use super::arrays::{Field, Filling};
use super::outputs::PadValue;
use super::{BatchRows, FieldKind, FieldSpec};
use crate::column::FieldColumn;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::fill_number::Number;
use crate::plan::{Placement, Runs};

/// The meaning of captured indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indices {
    /// Experts (routes). Tokens without any hold each of the first indices once.
    Experts {
        /// Number of experts, if known.
        count: Option<i64>,
    },
    /// Any, such as positions that sparse attention reads. Tokens without any hold -1.
    Any,
}

/// A contiguous range of a model's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers {
    /// The first.
    pub begin: usize,
    /// One past the last, at least `begin`.
    pub end: usize,
}

impl Indices {
    /// Stands for indices beyond the chosen ones.
    pub(super) const NONE: Number = Number::Int(-1);

    /// The dtypes that an output may have.
    pub(super) fn dtypes(self) -> &'static [Dtype] {
        match self {
            Self::Experts { .. } => Dtype::OF_INDICES,
            Self::Any => Dtype::OF_CHOICES,
        }
    }

    /// The padding of an output.
    pub(super) fn padding(self) -> PadValue {
        match self {
            Self::Experts { .. } => PadValue::Indices,
            Self::Any => PadValue::Number(Self::NONE),
        }
    }

    /// The key of the mask of positions without captured indices, of the field with this key.
    pub(super) fn mask_key(self, key: &str) -> String {
        match self {
            Self::Experts { .. } => "router_padding_mask".to_owned(),
            Self::Any => format!("{key}_padding_mask"),
        }
    }

    /// A field of these indices in some layers, or in all.
    pub const fn in_layers(self, layers: Option<Layers>) -> FieldKind {
        FieldKind::Captured { indices: self, layers }
    }
}

impl FieldSpec {
    pub(super) fn place_captured(
        &self,
        column: &mut dyn FieldColumn,
        index: usize,
        (indices, layers): (Indices, Option<Layers>),
        rows: &BatchRows,
        placement: &Placement,
    ) -> Result<Placed> {
        let name = &self.name;
        let (num_layers, topk) = match *column.trailing() {
            [layers, topk] if topk > 0 => (layers, topk),
            _ => {
                let (field, found) = (name.clone(), column.trailing().to_vec());
                return Err(Error::NoRoutes { field, found });
            }
        };
        let (limit, dtype) = match indices {
            Indices::Experts { count } => self.experts(column, count, topk, rows)?,
            Indices::Any => (i64::MAX, self.dtype.unwrap_or(Dtype::I32)),
        };
        if let Some(chosen) = rows.turns.chosen() {
            column.choose(chosen);
        }
        let lens = column.lens()?;
        let batch = rows.read();
        let all;
        let runs = match column.runs() {
            Some(runs) => runs,
            None => {
                rows.turns.check_stream_lens(name, &lens, true)?;
                all = Runs::from_starts(repeat_n(0, lens.len()), &lens)?;
                &all
            }
        };
        runs.check(name, rows.turns)?;
        let prefixes = rows.prefixes();
        // Padding rows have none of their own: those of a copied row would count as real.
        let assembly =
            batch.with_stream_pieces(|row| runs.pieces(&prefixes(&batch.rows()[row]), rows.turns));
        let captured = placement.of_pieces(&assembly)?;
        column.limit_indices(limit);
        if let Some(Layers { begin, end }) = layers {
            if end > num_layers {
                let field = name.clone();
                return Err(Error::NoLayers { field, begin, end, num_layers });
            }
            column.keep(begin..end);
        }
        let field = Field {
            column: index,
            assembly: Some(assembly),
            inner: column.inner(),
            filling: match indices {
                Indices::Experts { .. } => Filling::Indices(topk),
                Indices::Any => Filling::Numbers { pad: Indices::NONE, gap: Indices::NONE },
            },
            dtype,
            is_whole: false,
            trained_by: None,
            counts: None,
        };
        Ok(Placed {
            field,
            array_grid: match placement.layout.is_tree() {
                true => ArrayGrid::Own(captured.clone()),
                false => ArrayGrid::Sequence,
            },
            trailing: column.trailing().to_vec(),
            captured: Some(captured),
            starts: Vec::new(),
        })
    }

    /// The limit of experts, and the dtype.
    fn experts(
        &self,
        column: &dyn FieldColumn,
        count: Option<i64>,
        topk: usize,
        rows: &BatchRows,
    ) -> Result<(i64, Dtype)> {
        let padding_needs = i64::try_from(topk).unwrap_or(i64::MAX);
        if let Some(count) = count.filter(|&count| count < padding_needs) {
            let field = self.name.clone();
            return Err(Error::TooFewExperts { field, count, topk });
        }
        let limit = match (count, self.dtype) {
            (Some(count), _) => count,
            // Misfits are found when values are read; only negative ones must be refused here.
            (None, Some(_)) => i64::MAX,
            (None, None) => {
                // Over all rows of the step, so that the ranks agree on the dtype.
                let largest = column.largest(&mut rows.step_sources())?.unwrap_or(0);
                i64::try_from(largest.saturating_add(1)).unwrap_or(i64::MAX)
            }
        };
        let dtype = match (self.dtype, limit.max(padding_needs)) {
            (Some(dtype), _) => dtype,
            (None, ..=0x100) => Dtype::U8,
            (None, ..=0x8000) => Dtype::I16,
            (None, _) => Dtype::I32,
        };
        Ok((limit, dtype))
    }
}
