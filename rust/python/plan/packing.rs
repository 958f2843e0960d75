//! Packing sequences into bins.

use std::iter::once;
use std::sync::Arc;

use fastcollate::plan::pack::{
    Algorithm, Cost, Growth, ItemBins, Oversize, PackSpec as CoreSpec, Packer,
};
use fastcollate::plan::share::Tree;
use fastcollate::plan::{
    AttentionSpan, BinTables, Bins as CoreBins, Costs as CoreCosts, Deal, PackedRows, Span,
};
use fastcollate::{Error as Core, add, check_room, gathered, try_gathered, with_room};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList};

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::tables::{Column, LONG, array_of, column_of, copied, to_i64, usizes, values};
use crate::rows::exact;

/// Packing algorithms.
pub const ALGORITHMS: Names<Algorithm> = Names::new(
    "algorithm",
    &[
        (Algorithm::Pack(Packer::FirstFitDecreasing), "ffd"),
        (Algorithm::Pack(Packer::StableFirstFitDecreasing), "stable_ffd"),
        (Algorithm::Pack(Packer::FirstFit), "ff"),
        (Algorithm::Pack(Packer::BestFitDecreasing), "bfd"),
        (Algorithm::Pack(Packer::ModifiedFirstFitDecreasing), "mffd"),
        (Algorithm::Pack(Packer::NextFit), "next_fit"),
        (Algorithm::Concat, "concat"),
        (Algorithm::Pack(Packer::Balanced), "balanced"),
    ],
);

/// Options for a sequence that exceeds a bin by itself.
pub const OVERSIZES: Names<Oversize> = Names::new(
    "oversize",
    &[(Oversize::Error, "error"), (Oversize::OwnBin, "own_bin"), (Oversize::Split, "split")],
);

/// Rules for adding bins.
pub const GROWTHS: Names<Growth> =
    Names::new("grow_by", &[(Growth::Move, "move"), (Growth::Split, "split")]);

/// The limit of what is not limited.
const NO_LIMIT: usize = i64::MAX as usize;

/// Costs by name.
pub const COSTS: Names<NamedCost> =
    Names::new("cost", &[(NamedCost::Tokens, "tokens"), (NamedCost::Flops, "flops")]);

/// Packing options, checked.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
#[derive(Clone)]
pub struct PackSpec {
    pub core: CoreSpec,
    pub cost: PyCost,
}

/// Named costs.
#[derive(Clone, Copy, PartialEq)]
pub enum NamedCost {
    Tokens,
    Flops,
}

/// Costs of tokens, pairs, sequences and bins, checked.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct CostSpec(CoreCosts);

impl CostSpec {
    /// The costs.
    pub fn core(&self) -> CoreCosts {
        self.0
    }
}

#[pymethods]
impl CostSpec {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "called once")]
    fn new(
        per_token: f64,
        per_pair: f64,
        per_sequence: f64,
        per_bin: f64,
        per_segment: f64,
        per_key: f64,
        window: Option<(usize, f64)>,
        chunk: Option<(usize, f64)>,
    ) -> Self {
        let span = |(len, share)| AttentionSpan { len, share };
        Self(CoreCosts {
            per_token,
            per_pair,
            per_sequence,
            per_bin,
            per_segment,
            per_key,
            window: window.map(span),
            chunk: chunk.map(span),
        })
    }

    /// Number of token pairs in the attention of each sequence, float64 (n,).
    fn pairs<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<i64>,
    ) -> Result<Bound<'py, PyArray1<f64>>> {
        let pairs = column(&lengths)?.into_iter().map(|len| self.0.pairs(len));
        array_of(py, pairs)
    }

    /// Costs of sequences, float64 (n,).
    fn of<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<i64>,
    ) -> Result<Bound<'py, PyArray1<f64>>> {
        let costs = column(&lengths)?.into_iter().map(|len| self.0.of(len));
        array_of(py, costs)
    }
}

/// Costs of sequences: a name, coefficients, or a function of lengths, int64 (n,), that returns
/// float64 (n,).
#[derive(Clone)]
pub enum PyCost {
    Named(NamedCost),
    Linear(CoreCosts),
    Function(Arc<Py<PyAny>>),
}

#[pymethods]
impl PackSpec {
    /// By default, oversized sequences are split by `concat`, get a bin of their own if balanced,
    /// and are an error otherwise.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "called in one place")]
    fn new(
        algorithm: &Bound<PyAny>,
        oversize: Option<&Bound<PyAny>>,
        capacity: Option<usize>,
        max_sequences: Option<usize>,
        multiple_of: usize,
        max_cost: f64,
        cost: &Bound<PyAny>,
        min_bins: usize,
        bins_multiple_of: usize,
        grow_by: &Bound<PyAny>,
        num_bins: Option<usize>,
        allow_fewer_bins: bool,
    ) -> Result<Self> {
        let algorithm = ALGORITHMS.read(algorithm)?;
        let oversize = match (oversize, algorithm) {
            (Some(oversize), _) => OVERSIZES.read(oversize)?,
            (None, Algorithm::Concat) => Oversize::Split,
            (None, Algorithm::Pack(Packer::Balanced)) => Oversize::OwnBin,
            (None, Algorithm::Pack(_)) => Oversize::Error,
        };
        let growth = GROWTHS.read(grow_by)?;
        let cost = match cost.cast::<CostSpec>() {
            Ok(costs) => PyCost::Linear(costs.get().0),
            Err(_) if cost.is_callable() => PyCost::Function(Arc::new(cost.clone().unbind())),
            Err(_) => PyCost::Named(COSTS.read(cost)?),
        };
        Ok(Self {
            core: CoreSpec {
                algorithm,
                oversize,
                capacity: capacity.unwrap_or(NO_LIMIT),
                max_sequences: max_sequences.unwrap_or(NO_LIMIT),
                multiple_of,
                max_cost,
                bin_cost: cost.per_bin(),
                num_bins,
                min_bins,
                bins_multiple_of,
                allow_fewer_bins,
                growth,
            },
            cost,
        })
    }

    /// Treatment of a sequence that exceeds a bin.
    #[getter]
    fn oversize(&self) -> &'static str {
        OVERSIZES.name(self.core.oversize)
    }

    /// Pack sequences of these lengths, or numbered groups of them.
    ///
    /// # Returns
    /// Bin offsets, with the end of the last; the sequence, start and length of each piece: all
    /// int64. `costs` replaces the cost function.
    fn pack<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<i64>,
        groups: Option<PyReadonlyArray1<i64>>,
        costs: Option<PyReadonlyArray1<f64>>,
    ) -> Result<[Column<'py>; 4]> {
        let lens = column(&lengths)?;
        let groups = groups.as_ref().map(column).transpose()?;
        let costs = costs.as_ref().map(copied).transpose()?;
        let counts = [
            groups.as_ref().map_or(lens.len(), Vec::len),
            costs.as_ref().map_or(lens.len(), Vec::len),
        ];
        check_fit(counts == [lens.len(); 2])?;
        let bins = stoppable(py, move |ticks| {
            let mut pack = |cost: Cost| self.core.pack(&lens, groups.as_deref(), &cost, ticks);
            match &costs {
                Some(costs) => pack(Cost::Given(costs)),
                None => self.cost.with(pack),
            }
        })?;
        let spans = bins.spans.iter();
        Ok([
            column_of(py, bins.offsets)?,
            column_of(py, spans.clone().map(|span| span.index))?,
            column_of(py, spans.clone().map(|span| span.from))?,
            column_of(py, spans.map(|span| span.len))?,
        ])
    }

    /// Add bins to those of a plan, as many as the options require.
    ///
    /// # Returns
    /// The offsets of the bins, and the pieces in their new order, both int64. `costs` are those of
    /// pieces.
    fn grow<'py>(
        &self,
        py: Python<'py>,
        bins: &Bins,
        costs: Option<PyReadonlyArray1<f64>>,
    ) -> Result<(Column<'py>, Column<'py>)> {
        let costs = costs.as_ref().map(copied).transpose()?;
        let Pieces::Spans(bins) = &bins.pieces else {
            return Err(Core::InvalidPlan("its rows share tokens".to_owned()).into());
        };
        let count = bins.spans.len();
        check_room(count)?;
        check_fit(costs.as_ref().is_none_or(|costs| costs.len() == count))?;
        let is_split = bins.spans.iter().any(|piece| piece.from > 0);
        let noun = if is_split { "piece" } else { "sequence" };
        let grown = stoppable(py, |ticks| {
            let packed =
                ItemBins { offsets: bins.offsets.clone(), items: ticks.gathered(0..count)? };
            self.core.grow(packed, costs.as_deref(), noun, ticks)
        })?;
        Ok((column_of(py, grown.offsets)?, column_of(py, grown.items)?))
    }

    /// Pack the rows of a mini-batch, from `first_row` on, for ranks with equal numbers of bins.
    ///
    /// # Returns
    /// The rows, int64, with -1 as the one row of an empty bin; the number of rows per bin, int64
    /// (bins,); the number of filled bins.
    fn pack_for_ranks<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<i64>,
        groups: Option<PyReadonlyArray1<i64>>,
        limited: Option<PyReadonlyArray1<f64>>,
        first_row: usize,
        ranks: Ranks,
    ) -> Result<(Column<'py>, Column<'py>, usize)> {
        let lens = column(&lengths)?;
        let groups = groups.as_ref().map(column).transpose()?;
        let limited = limited.as_ref().map(copied).transpose()?;
        let counts = [
            groups.as_ref().map(Vec::len),
            limited.as_ref().map(Vec::len),
            ranks.costs.as_ref().map(Vec::len),
        ];
        let mut counts = counts.into_iter().flatten();
        check_fit(ranks.count > 0 && counts.all(|count| count == lens.len()))?;
        let found = stoppable(py, |ticks| {
            let rows = PackedRows {
                lens: &lens,
                groups: groups.as_deref(),
                limited: limited.as_deref(),
                first_row,
            };
            let spec = self.core.for_ranks(ranks.count);
            ranks.deal().pack(rows, &spec, ranks.count, ticks)
        })?;
        let counts = found.bins.iter().map(|rows| rows.len().max(1));
        let rows = found.bins.iter().flat_map(|rows| {
            let synthetic = rows.is_empty().then_some(-1);
            rows.iter().map(|&row| to_i64(row)).chain(synthetic)
        });
        Ok((array_of(py, rows)?, column_of(py, counts)?, found.filled))
    }

    /// Pack whole rows and deal the bins to ranks in turn; `places` count against the capacity.
    ///
    /// # Returns
    /// The bins, rank by rank; the lengths of the rows of each, int64; the number of filled bins.
    fn dealt_in_turn<'py>(
        &self,
        py: Python<'py>,
        lengths: PyReadonlyArray1<i64>,
        places: PyReadonlyArray1<i64>,
        multiple_of: usize,
        ranks: usize,
    ) -> Result<(Bins, Vec<Column<'py>>, usize)> {
        let (lens, places) = (column(&lengths)?, column(&places)?);
        check_fit(ranks > 0 && places.len() == lens.len())?;
        let found = stoppable(py, |ticks| {
            let rows = PackedRows { lens: &places, groups: None, limited: None, first_row: 0 };
            Deal::Strided.pack(rows, &self.core.for_ranks(ranks), ranks, ticks)
        })?;
        let lens_of = |rows: &Vec<usize>| column_of(py, rows.iter().map(|&row| lens[row]));
        let lens_of_bins = try_gathered(found.bins.iter().map(lens_of))?;
        let mut end = 0;
        let ends = found.bins.iter().map(|rows| {
            end += rows.len();
            end
        });
        let whole = |&index: &usize| Span { index, from: 0, len: lens[index] };
        let pieces = Pieces::Spans(CoreBins {
            offsets: gathered(once(0).chain(ends))?,
            spans: gathered(found.bins.iter().flatten().map(whole))?,
        });
        let bins = Bins { pieces, multiple_of };
        Ok((bins, lens_of_bins, found.filled))
    }
}

/// The assignment of rows or bins to ranks: the number of ranks; true to deal in turn; and, to
/// balance costs, those of rows and of a synthetic row.
pub struct Ranks {
    pub count: usize,
    is_strided: bool,
    pub costs: Option<Vec<f64>>,
    synthetic: f64,
}

impl<'py> FromPyObject<'_, 'py> for Ranks {
    type Error = PyErr;

    fn extract(options: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        type Options<'py> = (usize, bool, Option<PyReadonlyArray1<'py, f64>>, f64);
        let (count, is_strided, costs, synthetic): Options = options.extract()?;
        Ok(Self { count, is_strided, costs: costs.as_ref().map(copied).transpose()?, synthetic })
    }
}

impl Ranks {
    pub fn deal(&self) -> Deal<'_> {
        match &self.costs {
            Some(costs) => Deal::Balanced { costs, synthetic: self.synthetic },
            None if self.is_strided => Deal::Strided,
            None => Deal::Contiguous,
        }
    }
}

impl PyCost {
    /// Default cost of sequences.
    pub const FLOPS: Self = Self::Named(NamedCost::Flops);

    /// Cost of a bin without its sequences.
    fn per_bin(&self) -> f64 {
        match self {
            Self::Linear(costs) => costs.per_bin,
            Self::Named(_) | Self::Function(_) => 0.0,
        }
    }

    /// Call `work` with the cost.
    pub fn with<T>(&self, work: impl FnOnce(Cost) -> T) -> T {
        match self {
            Self::Named(NamedCost::Flops) => work(Cost::Flops),
            Self::Named(NamedCost::Tokens) => work(Cost::Tokens),
            Self::Linear(costs) => work(Cost::Linear(costs)),
            Self::Function(function) => {
                let call = |lens: &[usize]| {
                    let costs = Python::attach(|py| {
                        let lens = column_of(py, lens.iter().copied())?;
                        let costs: PyReadonlyArray1<f64> =
                            function.bind(py).call1((lens,))?.extract()?;
                        copied(&costs)
                    });
                    Ok(costs?)
                };
                work(Cost::Function(&call))
            }
        }
    }
}

/// Index of the first number that is not a valid length, if any.
#[pyfunction]
pub fn first_no_length(lengths: PyReadonlyArray1<i64>, most: i64) -> Result<Option<usize>> {
    let is_none = |length: &i64| !(0..=most).contains(length);
    Ok(values(&lengths)?.iter().position(is_none))
}

/// Python's own integers of a list, or those of an int64 array, as a new array; `None` if an item is
/// none or not from 0 to `most`, and for any others, subclasses included.
#[pyfunction]
pub fn counts_in<'py>(given: &Bound<'py, PyAny>, most: i64) -> Result<Option<Column<'py>>> {
    let is_count = |count: &i64| (0..=most).contains(count);
    let Ok(list) = given.cast_exact::<PyList>() else {
        let array = given.cast_exact::<PyUntypedArray>().ok();
        let Some(Ok(array)) = array.map(|it| it.extract::<PyReadonlyArray1<i64>>()) else {
            return Ok(None);
        };
        let counts = if array.data().is_aligned() { array.as_slice().ok() } else { None };
        let counts = counts.filter(|it| it.len() < LONG && it.iter().all(is_count));
        return counts.map(|it| array_of(given.py(), it.iter().copied())).transpose();
    };
    let mut counts = with_room(list.len())?;
    for item in list.iter() {
        let count = exact(&item).filter(is_count);
        match count.filter(|_| item.is_exact_instance_of::<PyInt>()) {
            Some(count) => add(&mut counts, count)?,
            None => return Ok(None),
        }
        if counts.len() % LONG == 0 {
            list.py().check_signals()?;
        }
    }
    array_of(list.py(), counts).map(Some)
}

/// Deal bins to ranks, in equal numbers and with balanced costs; the number of bins is a multiple
/// of the ranks.
///
/// # Returns
/// The bins of all ranks, int64 (bins,).
#[pyfunction]
pub fn deal_bins<'py>(
    py: Python<'py>,
    costs: PyReadonlyArray1<f64>,
    ranks: usize,
) -> Result<Column<'py>> {
    let costs = copied(&costs)?;
    check_fit(ranks > 0 && costs.len().is_multiple_of(ranks))?;
    let bins = stoppable(py, |ticks| fastcollate::plan::deal_bins(&costs, ranks, ticks))?;
    column_of(py, bins)
}

/// Bins of sequences, or of rows that share tokens: their pieces, checked.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Bins {
    pub pieces: Pieces,
    pub multiple_of: usize,
}

/// The pieces of each bin.
pub enum Pieces {
    Spans(CoreBins),
    Trees(Vec<Tree>),
}

#[pymethods]
impl Bins {
    /// Bins from their offsets in pieces, and the sequence, start and length of each piece. A row
    /// that shares tokens has one piece, which starts where they end.
    ///
    /// # Errors
    /// `ValueError` with the first defect of the tables.
    #[new]
    fn new(
        offsets: PyReadonlyArray1<i64>,
        indices: PyReadonlyArray1<i64>,
        starts: PyReadonlyArray1<i64>,
        lengths: PyReadonlyArray1<i64>,
        sequences: usize,
        multiple_of: usize,
        shares: bool,
    ) -> Result<Self> {
        check_room(indices.len()?.max(offsets.len()?))?;
        let tables = BinTables {
            offsets: &values(&offsets)?,
            indices: &values(&indices)?,
            starts: &values(&starts)?,
            lens: &values(&lengths)?,
            sequences,
        };
        let pieces = match shares {
            true => tables.trees().map(Pieces::Trees),
            false => tables.bins().map(Pieces::Spans),
        };
        Ok(Self { pieces: pieces.map_err(PyValueError::new_err)?, multiple_of })
    }
}

/// Check that tables fit each other, as those of the Python code here do.
///
/// # Errors
/// [`Core::InvalidPlan`].
pub fn check_fit(fits: bool) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(Core::InvalidPlan("its tables do not fit".to_owned()).into()),
    }
}

fn column(array: &PyReadonlyArray1<i64>) -> Result<Vec<usize>> {
    usizes("a table", array)
}
