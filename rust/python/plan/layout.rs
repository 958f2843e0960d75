//! Layouts by name, and widths that do not come from the data.

use fastcollate::batch::BatchRows;
use fastcollate::plan::share::{Share, ShareLimits};
use fastcollate::plan::{
    BinSource, Layout, LayoutSpec as CoreSpec, PackedSpec, PaddingAs, Placement, Shard, Shift,
    TreeSource, TreeSpec, WidthOptions,
};
use fastcollate::{Error as Core, Ticks};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::packing::{Bins, CostSpec, PackSpec, Pieces, PyCost};
use crate::plan::sharing::{PrefixTree, SHARES};
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
pub const SHIFTS: Names<Shift> =
    Names::new("shift", &[(Shift::None, "none"), (Shift::NextToken, "next_token")]);

/// Options for counting the padding of an output row.
pub const PADDING_AS: Names<PaddingAs> = Names::new(
    "padding_as",
    &[
        (PaddingAs::OwnSegment, "own_segment"),
        (PaddingAs::ContinuedSegment, "continued_segment"),
        (PaddingAs::LastSegment, "last_segment"),
        (PaddingAs::NoSegment, "no_segment"),
    ],
);

/// True if rows of trees fork early, the least number of tokens of a shared run, and costs that
/// it must save.
type Limits<'py> = (bool, usize, Option<Bound<'py, CostSpec>>);

/// A layout and its options.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct LayoutSpec {
    core: CoreSpec,
    /// Cost of the sequences of a bin, if packed.
    cost: PyCost,
}

#[pymethods]
impl LayoutSpec {
    /// A layout whose output rows are rows.
    #[new]
    fn new(
        name: &str,
        pad_to: Option<usize>,
        pad_prompt_to: Option<usize>,
        pad_response_to: Option<usize>,
        multiple_of: usize,
    ) -> Result<Self> {
        let widths = WidthOptions {
            sequence: pad_to,
            prompt: pad_prompt_to,
            response: pad_response_to,
            multiple_of,
            ..WidthOptions::default()
        };
        let layout = LAYOUTS.value(name)?;
        Ok(Self::of_rows(CoreSpec::of_rows(layout, widths)))
    }

    /// The packed layout: in the bins of a plan or in bins packed by length; without `bins`, in one
    /// bin.
    #[staticmethod]
    fn packed(
        pad_to: Option<usize>,
        pad_to_multiple_of: usize,
        multiple_of: usize,
        bins: Option<&Bound<PyAny>>,
        shift: &Bound<PyAny>,
        padding_as: &Bound<PyAny>,
    ) -> Result<Self> {
        let (bins, cost) = match bins {
            Some(bins) => bin_source(bins)?,
            None => (BinSource::SingleRow, PyCost::FLOPS),
        };
        let packed = PackedSpec {
            bins,
            shift: SHIFTS.read(shift)?,
            padding_as: PADDING_AS.read(padding_as)?,
        };
        let core = CoreSpec::packed(packed, pad_to, multiple_of);
        let core = core.with_rounded_bins(pad_to_multiple_of);
        Ok(Self { core, cost })
    }

    /// The tree layout: in the bins of a plan, or in bins packed from a plan's tree or from the
    /// rows' common tokens; without `pack`, in one bin.
    #[staticmethod]
    fn of_tree(
        pad_to: Option<usize>,
        pad_to_multiple_of: usize,
        multiple_of: usize,
        plan: &Bound<PyAny>,
        pack: Option<Bound<PackSpec>>,
        same_inputs: Option<PyReadonlyArray1<i64>>,
        limits: Limits,
    ) -> Result<Self> {
        let (fork_early, min_shared, costs) = limits;
        let ids = same_inputs.map(|ids| usizes("same_inputs", &ids));
        let tree = TreeSpec {
            source: tree_source(plan)?,
            limits: ShareLimits {
                fork_early,
                min_shared,
                costs: costs.map(|costs| costs.get().core()),
            },
            pack: pack.as_ref().map(|spec| spec.get().core.clone()),
            same_inputs: ids.transpose()?,
        };
        let cost = pack.map_or(PyCost::FLOPS, |spec| spec.get().cost.clone());
        let core = CoreSpec::tree(tree, pad_to, multiple_of);
        let core = core.with_rounded_bins(pad_to_multiple_of);
        Ok(Self { core, cost })
    }

    /// True if rows of a tree share a token only if they agree on the next one, too.
    #[getter]
    fn forks_early(&self) -> bool {
        let tree = self.core.tree_spec();
        tree.is_some_and(|tree| tree.limits.fork_early)
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

    /// The options of packing, if rows are packed.
    #[getter]
    fn packer(&self) -> Option<PackSpec> {
        let core = self.core.pack_spec()?.clone();
        let cost = self.cost.clone();
        Some(PackSpec { core, cost })
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
        let place =
            |ticks: &mut Ticks| self.cost.with(|cost| rows.place(&self.core, shard, &cost, ticks));
        match self.core.pack_spec() {
            Some(_) => stoppable(py, place),
            None => Ok(place(&mut Ticks::new(&mut || Ok(())))?),
        }
    }
}

/// The source of the bins of rows, which are packed, planned or listed, and the cost of sequences.
fn bin_source(bins: &Bound<PyAny>) -> Result<(BinSource, PyCost)> {
    if let Ok(packer) = bins.cast::<PackSpec>() {
        let packer = packer.get();
        return Ok((BinSource::Pack(packer.core.clone()), packer.cost.clone()));
    }
    let source = match bins.cast::<Bins>().map(Bound::get) {
        Err(_) => BinSource::Lists(bins.extract()?),
        Ok(plan) => match &plan.pieces {
            Pieces::Spans(spans) => BinSource::Given(spans.clone(), plan.multiple_of),
            Pieces::Trees(_) => return Err(invalid().into()),
        },
    };
    Ok((source, PyCost::FLOPS))
}

/// The source of shared tokens: the name of a rule, or a plan.
fn tree_source(plan: &Bound<PyAny>) -> Result<TreeSource> {
    if let Ok(tree) = plan.cast::<PrefixTree>() {
        return Ok(TreeSource::Plan(tree.get().core().clone()));
    }
    let Ok(bins) = plan.cast::<Bins>() else {
        return Ok(TreeSource::Tokens(SHARES.read(plan)?));
    };
    match &bins.get().pieces {
        Pieces::Trees(trees) => Ok(TreeSource::Bins(trees.clone(), bins.get().multiple_of)),
        Pieces::Spans(_) => Err(invalid().into()),
    }
}

fn invalid() -> Core {
    Core::InvalidPlan("its bins belong to another layout".to_owned())
}
