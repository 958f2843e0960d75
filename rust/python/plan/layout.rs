//! Layouts by name, and the widths that do not come from the data.

use fastcollate::batch::BatchRows;
use fastcollate::plan::{
    BinSource, Bins as CoreBins, Layout, LayoutSpec as CoreSpec, Longest, PackedSpec, PaddingAs,
    Placement, Shift, Span, Widths,
};
use fastcollate::{Error as Core, Ticks};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::interrupt::stoppable;
use crate::plan::packing::{PackSpec, PyCost};
use crate::plan::shard::Shard;

/// All layouts and their names.
const LAYOUTS: [(Layout, &str); 5] = [
    (Layout::Left, "left"),
    (Layout::TwoSegment, "two_segment"),
    (Layout::Right, "right"),
    (Layout::Jagged, "jagged"),
    (Layout::Packed, "packed"),
];

/// What the padding of an output row can count as, and their names.
pub const PADDING_AS: [(PaddingAs, &str); 3] = [
    (PaddingAs::OwnSegment, "own_segment"),
    (PaddingAs::LastSegment, "last_segment"),
    (PaddingAs::NoSegment, "no_segment"),
];

/// A layout's place in the list, and its name.
pub fn named(layout: Layout) -> (usize, &'static str) {
    let index = LAYOUTS.iter().position(|(other, _)| *other == layout);
    let index = index.unwrap_or_default();
    (index, LAYOUTS[index].1)
}

/// The layout at a place of the list.
pub fn layout_at(index: usize) -> Option<Layout> {
    LAYOUTS.get(index).map(|(layout, _)| *layout)
}

/// The layout of a name.
///
/// # Errors
/// `ValueError`.
pub fn layout_of(name: &str) -> PyResult<Layout> {
    let named = LAYOUTS.iter().find(|(_, other)| *other == name);
    named.map(|(layout, _)| *layout).ok_or_else(|| {
        let names = LAYOUTS.map(|(_, name)| format!("'{name}'")).join(", ");
        PyValueError::new_err(format!("layout is '{name}'; it can be {names}"))
    })
}

/// A layout and its options.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct LayoutSpec {
    core: CoreSpec,
    /// What the sequences of a bin cost, where they are packed.
    cost: PyCost,
}

/// What says which rows share a row of the outputs; none for all rows in one.
#[derive(FromPyObject)]
enum Bins<'py> {
    Pack(Bound<'py, PackSpec>),
    Plan(BinPlan<'py>),
    Lists(Vec<Vec<usize>>),
}

#[pymethods]
impl LayoutSpec {
    #[new]
    #[pyo3(signature = (
        name, pad_to, pad_prompt_to, pad_response_to, multiple_of,
        bins=None, shift="none", padding_as="own_segment"
    ))]
    #[allow(clippy::too_many_arguments, reason = "called in a few places")]
    fn new(
        name: &str,
        pad_to: Option<usize>,
        pad_prompt_to: Option<usize>,
        pad_response_to: Option<usize>,
        multiple_of: usize,
        bins: Option<Bins>,
        shift: &str,
        padding_as: &str,
    ) -> Result<Self> {
        let (layout, mut cost) = (layout_of(name)?, PyCost::Flops);
        if layout != Layout::Packed {
            let widths = Widths {
                sequence: pad_to,
                prompt: pad_prompt_to,
                response: pad_response_to,
                multiple_of,
                least: Longest::default(),
            };
            let core = CoreSpec::of_rows(layout, widths);
            return Ok(Self { core, cost });
        }
        let packed = PackedSpec {
            bins: match bins {
                None => BinSource::SingleRow,
                Some(Bins::Lists(lists)) => BinSource::Lists(lists),
                Some(Bins::Plan(plan)) => BinSource::Given(plan.bins()?, plan.multiple_of),
                Some(Bins::Pack(spec)) => {
                    cost = spec.get().cost.clone();
                    BinSource::Pack(spec.get().core.clone())
                }
            },
            shift: match shift {
                "next_token" => Shift::NextToken,
                _ => Shift::None,
            },
            padding_as: padding_as_of(padding_as)?,
        };
        let core = CoreSpec::packed(packed, pad_to, multiple_of);
        Ok(Self { core, cost })
    }

    /// The layout's name.
    #[getter]
    fn name(&self) -> &'static str {
        named(self.core.layout()).1
    }
}

impl LayoutSpec {
    /// The layout and its options.
    pub fn core(&self) -> &CoreSpec {
        &self.core
    }

    /// Lay rows out. Packing lets other threads of the interpreter run, and can be interrupted.
    ///
    /// # Errors
    /// As [`CoreSpec::place`].
    pub fn place(&self, py: Python, rows: &BatchRows, shard: Option<&Shard>) -> Result<Placement> {
        let shard = shard.map(|shard| &shard.0);
        let place = |ticks: &mut Ticks<Error>| {
            self.cost
                .with(|cost| rows.place(&self.core, shard, &cost, ticks))
        };
        match self.core.pack_spec() {
            Some(_) => stoppable(py, place),
            None => place(&mut Ticks::new(&mut || Ok(()))),
        }
    }
}

/// The attributes of `fastcollate.planning.BinPlan` that say what goes where.
struct BinPlan<'py> {
    offsets: PyReadonlyArray1<'py, i64>,
    indices: PyReadonlyArray1<'py, i64>,
    starts: PyReadonlyArray1<'py, i64>,
    lengths: PyReadonlyArray1<'py, i64>,
    multiple_of: usize,
}

impl<'py> FromPyObject<'_, 'py> for BinPlan<'py> {
    type Error = PyErr;

    fn extract(plan: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            offsets: plan.getattr("offsets")?.extract()?,
            indices: plan.getattr("indices")?.extract()?,
            starts: plan.getattr("starts")?.extract()?,
            lengths: plan.getattr("lengths")?.extract()?,
            multiple_of: plan.getattr("multiple_of")?.extract()?,
        })
    }
}

impl BinPlan<'_> {
    /// The bins.
    ///
    /// # Errors
    /// Negative numbers, and columns of different lengths.
    fn bins(&self) -> Result<CoreBins> {
        let column = |values: &PyReadonlyArray1<i64>| {
            let values = values.as_array();
            let values: Option<Vec<_>> =
                values.iter().map(|&value| value.try_into().ok()).collect();
            values.ok_or_else(invalid)
        };
        let (indices, starts) = (column(&self.indices)?, column(&self.starts)?);
        let lens = column(&self.lengths)?;
        if [starts.len(), lens.len()] != [indices.len(); 2] || self.multiple_of == 0 {
            return Err(invalid().into());
        }
        let spans = indices.into_iter().zip(starts).zip(lens);
        let spans = spans.map(|((index, from), len)| Span { index, from, len });
        Ok(CoreBins {
            offsets: column(&self.offsets)?,
            spans: spans.collect(),
        })
    }
}

fn invalid() -> Core {
    Core::InvalidPlan("its bins hold negative numbers, or do not fit each other".to_owned())
}

/// What the padding counts as, by its name.
///
/// # Errors
/// `ValueError`.
fn padding_as_of(name: &str) -> PyResult<PaddingAs> {
    let named = PADDING_AS.iter().find(|(_, other)| *other == name);
    named.map(|(padding_as, _)| *padding_as).ok_or_else(|| {
        let names = PADDING_AS.map(|(_, name)| format!("'{name}'")).join(", ");
        PyValueError::new_err(format!("padding_as is '{name}'; it can be {names}"))
    })
}
