//! Layouts by name, and the widths that do not come from the data.

use fastcollate::plan::{Assembly, Layout, Longest, Packing, PaddingAs, Placement, Shift, Widths};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::bins::{BinPlan, Packed, row_lens};
use crate::error::Result;
use crate::shard::Shard;

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

/// A layout, the widths that do not come from the data, and how rows are packed.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct LayoutSpec {
    layout: Layout,
    widths: Widths,
    packing: Option<PackSpec>,
}

/// How rows are packed.
struct PackSpec {
    /// Makes bins of the rows' lengths, unless a shard has some; none for all rows in one bin.
    pack: Option<Py<PyAny>>,
    shift: Shift,
    padding_as: PaddingAs,
}

#[pymethods]
impl LayoutSpec {
    #[new]
    #[pyo3(signature = (
        name, pad_to, pad_prompt_to, pad_response_to, multiple_of,
        pack=None, shift="none", padding_as="own_segment"
    ))]
    #[allow(clippy::too_many_arguments, reason = "called in a few places")]
    fn new(
        name: &str,
        pad_to: Option<usize>,
        pad_prompt_to: Option<usize>,
        pad_response_to: Option<usize>,
        multiple_of: usize,
        pack: Option<Py<PyAny>>,
        shift: &str,
        padding_as: &str,
    ) -> PyResult<Self> {
        let layout = layout_of(name)?;
        let packing = PackSpec {
            pack,
            shift: match shift {
                "next_token" => Shift::NextToken,
                _ => Shift::None,
            },
            padding_as: padding_as_of(padding_as)?,
        };
        Ok(Self {
            layout,
            widths: Widths {
                sequence: pad_to,
                prompt: pad_prompt_to,
                response: pad_response_to,
                multiple_of,
                least: Longest::default(),
            },
            packing: (layout == Layout::Packed).then_some(packing),
        })
    }

    /// The layout's name.
    #[getter]
    fn name(&self) -> &'static str {
        named(self.layout).1
    }
}

impl LayoutSpec {
    /// Check that all rows of a step are no longer than fixed widths, nor its bins.
    ///
    /// # Errors
    /// `ValueError` naming the first that is.
    pub fn check(&self, step: &Assembly, shard: &Shard) -> Result<()> {
        match (&self.packing, &shard.bins) {
            (Some(_), Some(bins)) => bins.check_width(self.widths.sequence),
            (Some(_), None) => Ok(()),
            (None, _) => Ok(self.widths.check(step.rows())?),
        }
    }

    /// Lay an assembly's rows out, as wide as if the `least` were among them; in bins, in those of
    /// the shard, if it has some.
    ///
    /// # Errors
    /// `ValueError` for rows wider than a fixed width.
    pub fn place(
        &self,
        py: Python,
        assembly: &Assembly,
        least: Longest,
        shard: Option<&Shard>,
    ) -> Result<Placement> {
        let Some(packing) = &self.packing else {
            let widths = Widths {
                least,
                ..self.widths
            };
            return Ok(Placement::of_layout(assembly, self.layout, widths)?);
        };
        let bins = match (shard.and_then(|shard| shard.bins.as_ref()), &packing.pack) {
            (Some(bins), _) => bins.of_rows(assembly, self.widths.multiple_of),
            (None, Some(pack)) => {
                let lens = row_lens(py, assembly);
                pack.bind(py).call1((lens,))?.extract::<BinPlan>()?.bins()?
            }
            (None, None) => Packed::single(assembly),
        };
        let multiple_of = match self.widths.multiple_of {
            1 => bins.multiple_of,
            given => given,
        };
        let packing = Packing {
            multiple_of,
            shift: packing.shift,
            padding_as: packing.padding_as,
        };
        let width = self.widths.sequence;
        Ok(Placement::packed(
            assembly,
            &bins.bins,
            packing,
            width,
            bins.least_width,
        )?)
    }
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
