//! Layouts by name, and widths that do not come from the data.

use fastcollate::batch::BatchRows;
use fastcollate::plan::share::{Share, Tree};
use fastcollate::plan::{
    BinSource, Bins as CoreBins, Layout, LayoutSpec as CoreSpec, Longest, PackedSpec, PaddingAs,
    Placement, Shard, Shift, Span, TreeSource, TreeSpec, Widths,
};
use fastcollate::{Error as Core, Ticks};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::packing::{PackSpec, PyCost};
use crate::plan::sharing::{PrefixTree, SHARES, tree_rows};
use crate::plan::tables::usizes;

/// All layouts.
pub const LAYOUTS: Names<Layout> = Names::new(
    "layout",
    &[
        (Layout::Left, "left"),
        (Layout::TwoSegment, "two_segment"),
        (Layout::Right, "right"),
        (Layout::Jagged, "jagged"),
        (Layout::Packed, "packed"),
        (Layout::Tree, "tree"),
    ],
);

/// The token whose value a position of a response-aligned field holds.
pub const SHIFTS: Names<Shift> = Names::new(
    "shift",
    &[(Shift::None, "none"), (Shift::NextToken, "next_token")],
);

/// Options for counting the padding of an output row.
pub const PADDING_AS: Names<PaddingAs> = Names::new(
    "padding_as",
    &[
        (PaddingAs::OwnSegment, "own_segment"),
        (PaddingAs::LastSegment, "last_segment"),
        (PaddingAs::NoSegment, "no_segment"),
    ],
);

/// A layout and its options.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct LayoutSpec {
    core: CoreSpec,
    /// Cost of the sequences of a bin, if packed.
    cost: PyCost,
}

/// The bins of rows; without them, all rows share one.
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
        let (layout, mut cost) = (LAYOUTS.value(name)?, PyCost::FLOPS);
        if !layout.has_bins() {
            let widths = Widths {
                sequence: pad_to,
                prompt: pad_prompt_to,
                response: pad_response_to,
                multiple_of,
                least: Longest::default(),
            };
            return Ok(Self::of_rows(CoreSpec::of_rows(layout, widths)));
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
            shift: SHIFTS.value(shift)?,
            padding_as: PADDING_AS.value(padding_as)?,
        };
        let core = CoreSpec::packed(packed, pad_to, multiple_of);
        Ok(Self { core, cost })
    }

    /// The tree layout: in the bins of a plan, or in bins packed from a plan's tree or from the
    /// rows' common tokens; without `pack`, in one bin.
    #[staticmethod]
    fn of_tree(
        pad_to: Option<usize>,
        multiple_of: usize,
        plan: TreePlan,
        pack: Option<Bound<PackSpec>>,
        same_inputs: Option<PyReadonlyArray1<i64>>,
    ) -> Result<Self> {
        let ids = same_inputs.map(|ids| usizes("same_inputs", &ids));
        let tree = TreeSpec {
            source: plan.source()?,
            pack: pack.as_ref().map(|spec| spec.get().core.clone()),
            same_inputs: ids.transpose()?,
        };
        let cost = pack.map_or(PyCost::FLOPS, |spec| spec.get().cost.clone());
        let core = CoreSpec::tree(tree, pad_to, multiple_of);
        Ok(Self { core, cost })
    }

    /// The layout's name.
    #[getter]
    fn name(&self) -> &'static str {
        LAYOUTS.name(self.core.layout())
    }

    /// True if each row is an output row of its own.
    #[getter]
    fn is_padded(&self) -> bool {
        self.core.layout().is_padded()
    }

    /// True if rows share tokens by the uids of their turns.
    #[getter]
    fn shares_by_uid(&self) -> bool {
        let source = self.core.tree_spec().map(|tree| &tree.source);
        matches!(source, Some(TreeSource::Tokens(Share::Group)))
    }

    /// True if output rows are bins of several rows.
    #[getter]
    fn has_bins(&self) -> bool {
        self.core.layout().has_bins()
    }
}

impl LayoutSpec {
    /// A layout of rows.
    pub fn of_rows(core: CoreSpec) -> Self {
        let cost = PyCost::FLOPS;
        Self { core, cost }
    }

    /// The layout and its options.
    pub fn core(&self) -> &CoreSpec {
        &self.core
    }

    /// Place rows. Packing releases the interpreter, and can be interrupted.
    ///
    /// # Errors
    /// As [`CoreSpec::place`].
    pub fn place(&self, py: Python, rows: &BatchRows, shard: Option<&Shard>) -> Result<Placement> {
        let place = |ticks: &mut Ticks| {
            self.cost
                .with(|cost| rows.place(&self.core, shard, &cost, ticks))
        };
        match self.core.pack_spec() {
            Some(_) => stoppable(py, place),
            None => Ok(place(&mut Ticks::new(&mut || Ok(())))?),
        }
    }
}

/// The source of shared tokens: the name of a rule, or a plan.
#[derive(FromPyObject)]
enum TreePlan<'py> {
    Share(String),
    Plan(Bound<'py, PrefixTree>),
    Bins(TreeBins<'py>),
}

impl TreePlan<'_> {
    fn source(&self) -> Result<TreeSource> {
        Ok(match self {
            Self::Share(name) => TreeSource::Tokens(SHARES.value(name)?),
            Self::Plan(tree) => TreeSource::Plan(tree.get().core().clone()),
            Self::Bins(bins) => TreeSource::Bins(bins.trees()?, bins.multiple_of),
        })
    }
}

/// The attributes of `fastcollate.planning.TreeBins` that define the bins.
struct TreeBins<'py> {
    offsets: PyReadonlyArray1<'py, i64>,
    rows: PyReadonlyArray1<'py, i64>,
    shared: PyReadonlyArray1<'py, i64>,
    lengths: PyReadonlyArray1<'py, i64>,
    multiple_of: usize,
}

impl<'py> FromPyObject<'_, 'py> for TreeBins<'py> {
    type Error = PyErr;

    fn extract(plan: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            offsets: plan.getattr("offsets")?.extract()?,
            rows: plan.getattr("rows")?.extract()?,
            shared: plan.getattr("shared")?.extract()?,
            lengths: plan.getattr("lengths")?.extract()?,
            multiple_of: plan.getattr("multiple_of")?.extract()?,
        })
    }
}

impl TreeBins<'_> {
    /// The tree of each bin.
    ///
    /// # Errors
    /// Tables that do not fit together.
    fn trees(&self) -> Result<Vec<Tree>> {
        let rows = tree_rows(&self.rows, &self.shared, &self.lengths)?;
        let offsets = usizes("offsets", &self.offsets)?;
        Ok(Tree::of_bins(&offsets, &rows)?)
    }
}

/// The attributes of `fastcollate.planning.BinPlan` that define the bins.
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
