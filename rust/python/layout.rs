//! Layouts by name, and the widths that do not come from the data.

use fastcollate::plan::{Assembly, Layout, Longest, Placement, Widths};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Result;

/// All layouts and their names.
const LAYOUTS: [(Layout, &str); 4] = [
    (Layout::Left, "left"),
    (Layout::TwoSegment, "two_segment"),
    (Layout::Right, "right"),
    (Layout::Jagged, "jagged"),
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
fn layout_of(name: &str) -> PyResult<Layout> {
    let named = LAYOUTS.iter().find(|(_, other)| *other == name);
    named.map(|(layout, _)| *layout).ok_or_else(|| {
        let names = LAYOUTS.map(|(_, name)| format!("'{name}'")).join(", ");
        PyValueError::new_err(format!("layout is '{name}'; it can be {names}"))
    })
}

/// A layout and the widths that do not come from the data.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct LayoutSpec {
    layout: Layout,
    widths: Widths,
}

#[pymethods]
impl LayoutSpec {
    #[new]
    fn new(
        name: &str,
        pad_to: Option<usize>,
        max_prompt_len: Option<usize>,
        max_response_len: Option<usize>,
        pad_to_multiple_of: usize,
    ) -> PyResult<Self> {
        Ok(Self {
            layout: layout_of(name)?,
            widths: Widths {
                sequence: pad_to,
                prompt: max_prompt_len,
                response: max_response_len,
                multiple_of: pad_to_multiple_of,
                least: Longest::default(),
            },
        })
    }
}

impl LayoutSpec {
    /// Check that rows are no longer than fixed widths.
    ///
    /// # Errors
    /// `ValueError` naming the first that is.
    pub fn check(&self, assembly: &Assembly) -> Result<()> {
        Ok(self.widths.check(assembly.rows())?)
    }

    /// Lay an assembly's rows out, as wide as if the `least` were among them.
    ///
    /// # Errors
    /// `ValueError` for rows wider than a fixed width.
    pub fn place(&self, assembly: &Assembly, least: Longest) -> Result<Placement> {
        let widths = Widths {
            least,
            ..self.widths
        };
        Ok(Placement::of_layout(assembly, self.layout, widths)?)
    }
}
