//! The plan as Python sees it: an opaque value that shows its tables as NumPy arrays.

use fastcollate::Error as Core;
use fastcollate::plan::{
    Assembly, Grid, Of, Per, Placement, Row, Segment, Shift, Turns, Values, gather_places,
};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::error::Result;
use crate::layout::{layout_at, named};
use crate::tables::{self, Column, column, column_of, rows_of, rows_of_table, set_table, to_i64};

/// What the rows of a batch are made of and where they lie. Immutable; holds no token.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Plan {
    pub turns: Turns,
    pub assembly: Assembly,
    pub placement: Placement,
}

#[pymethods]
impl Plan {
    /// The layout's name.
    #[getter]
    fn layout(&self) -> &'static str {
        named(self.placement.layout).1
    }

    /// Number of turns that the rows are made of.
    #[getter]
    fn num_turns(&self) -> usize {
        self.turns.count()
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.assembly.rows().len()
    }

    /// Positions of an output row in sequence-aligned outputs such as `input_ids`.
    #[getter]
    fn width(&self) -> usize {
        self.placement.sequence.width()
    }

    /// Positions of an output row in response-aligned outputs such as `loss_mask`.
    #[getter]
    fn response_width(&self) -> usize {
        self.placement.response.width()
    }

    /// Positions of all output rows together, in sequence-aligned outputs.
    #[getter]
    fn num_positions(&self) -> usize {
        self.placement.sequence.positions()
    }

    /// Tokens of the longest row.
    #[getter]
    fn longest_row(&self) -> usize {
        longest_row(&self.assembly)
    }

    /// Prompt tokens of each row, int64 (rows,).
    #[getter]
    fn prompt_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        rows_of(py, &self.assembly, |row| row.prompt_len)
    }

    /// Response tokens of each row, int64 (rows,).
    #[getter]
    fn response_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        rows_of(py, &self.assembly, |row| row.response_len)
    }

    /// The last turn of each row, whose prompt + response are its tokens: int64 (rows,).
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> Column<'py> {
        rows_of(py, &self.assembly, |row| row.source)
    }

    /// Where the values of response tokens stand in an output of `width` positions a row, int64, and
    /// how many of them each row or turn has, int64; -1 where there is none, if `may_miss`.
    #[allow(clippy::too_many_arguments, reason = "called once")]
    fn gather_places<'py>(
        &self,
        py: Python<'py>,
        of_sequence: bool,
        next_token: bool,
        width: usize,
        per_turn: bool,
        gaps: bool,
        may_miss: bool,
    ) -> Result<(Column<'py>, Column<'py>)> {
        let of = if of_sequence {
            Of::Sequence
        } else {
            Of::Response
        };
        let shift = if next_token {
            Shift::NextToken
        } else {
            Shift::None
        };
        let per = if per_turn {
            Per::Turn
        } else {
            Per::Row { gaps }
        };
        let values = Values { of, shift, width };
        let (turns, assembly, placement) = (&self.turns, &self.assembly, &self.placement);
        let (places, lens) = gather_places(turns, assembly, placement, values, per, may_miss)?;
        let places = places.into_iter().map(|place| place.map_or(-1, to_i64));
        Ok((PyArray1::from_iter(py, places), column_of(py, lens)))
    }

    /// Where each row begins in the outputs, counted over all their positions: int64 (rows,), for
    /// token streams and for responses.
    fn row_starts<'py>(&self, py: Python<'py>) -> (Column<'py>, Column<'py>) {
        let starts = |grid: &Grid| {
            let mut starts = vec![0; self.num_rows()];
            // From the last segment of a row to its first, which stays.
            for segment in grid.segments().iter().rev() {
                starts[segment.row] = to_i64(segment.dst_row * grid.width() + segment.dst_col);
            }
            PyArray1::from_vec(py, starts)
        };
        (
            starts(&self.placement.sequence),
            starts(&self.placement.response),
        )
    }

    /// The plan's tables as NumPy arrays, all int64.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tables = PyDict::new(py);
        let layout = named(self.placement.layout).0;
        tables.set_item("layout", column_of(py, [layout]))?;
        tables::set_assembly(&tables, &self.turns, &self.assembly)?;
        let grids = [
            ("sequence", &self.placement.sequence),
            ("response", &self.placement.response),
        ];
        for (name, grid) in grids {
            let shape = column_of(py, [grid.rows(), grid.width()]);
            tables.set_item(format!("{name}_shape"), shape)?;
            set_table(
                &tables,
                &format!("{name}_segments"),
                grid.segments(),
                |segment| {
                    let Segment {
                        row,
                        from,
                        len,
                        dst_row,
                        dst_col,
                    } = *segment;
                    [row, from, len, dst_row, dst_col]
                },
            )?;
        }
        Ok(tables)
    }

    /// The plan of such tables, checked.
    #[classmethod]
    fn from_dict(_: &Bound<PyType>, tables: &Bound<PyDict>) -> Result<Self> {
        let (turns, assembly) = tables::assembly(tables)?;
        let layout = match column(tables, "layout")?[..] {
            [index] => layout_at(index),
            _ => None,
        };
        let unknown = || Core::InvalidPlan("layout is not the number of one".to_owned());
        let layout = layout.ok_or_else(unknown)?;
        let placement = Placement::new(
            &assembly,
            layout,
            grid(tables, "sequence")?,
            grid(tables, "response")?,
        )?;
        Ok(Self {
            turns,
            assembly,
            placement,
        })
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let from_dict = slf.get_type().getattr("from_dict")?;
        Ok((from_dict, (slf.get().to_dict(slf.py())?,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        (&self.turns, &self.assembly) == (&other.turns, &other.assembly)
            && self.placement == other.placement
    }

    fn __repr__(&self) -> String {
        format!(
            "Plan(num_rows={}, width={}, response_width={})",
            self.num_rows(),
            self.width(),
            self.response_width()
        )
    }
}

/// Tokens of the longest row.
pub fn longest_row(assembly: &Assembly) -> usize {
    assembly.rows().iter().map(Row::len).max().unwrap_or(0)
}

fn grid(tables: &Bound<PyDict>, name: &str) -> Result<Grid> {
    let shape_name = format!("{name}_shape");
    let shape = column(tables, &shape_name)?;
    let [rows, width] = shape[..] else {
        return Err(Core::InvalidPlan(format!("{shape_name} is not (rows, width)")).into());
    };
    let segments = rows_of_table(tables, &format!("{name}_segments"))?
        .into_iter()
        .map(|[row, from, len, dst_row, dst_col]| Segment {
            row,
            from,
            len,
            dst_row,
            dst_col,
        })
        .collect();
    Ok(Grid::new(rows, width, segments)?)
}
