//! The plan as Python sees it: an opaque value that shows its tables as NumPy arrays.

use fastcollate::Error as Core;
use fastcollate::plan::{Assembly, Grid, Of, Piece, Placement, Row, Segment, Shift, gather_places};
use numpy::ndarray::{Array2, Dimension, Ix1, Ix2};
use numpy::prelude::*;
use numpy::{PyArray1, PyReadonlyArray};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::error::Result;
use crate::layout::{layout_at, named};

/// What the rows of a batch are made of and where they lie. Immutable; holds no token.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Plan {
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
    pub fn longest_row(&self) -> usize {
        let lens = self.assembly.rows().iter();
        lens.map(Row::len).max().unwrap_or(0)
    }

    /// Prompt tokens of each row, int64 (rows,).
    #[getter]
    fn prompt_lens<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.rows_array(py, |row| row.prompt_len)
    }

    /// Response tokens of each row, int64 (rows,).
    #[getter]
    fn response_lens<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.rows_array(py, |row| row.response_len)
    }

    /// Where the values of all response tokens stand in an output of `width` positions a row, int64
    /// (response tokens,), row by row; -1 where there is none, if `may_miss`.
    fn gather_places<'py>(
        &self,
        py: Python<'py>,
        of_sequence: bool,
        next_token: bool,
        width: usize,
        may_miss: bool,
    ) -> Result<Bound<'py, PyArray1<i64>>> {
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
        let places = gather_places(&self.assembly, &self.placement, of, shift, width, may_miss)?;
        let places = places.into_iter().map(|place| place.map_or(-1, to_i64));
        Ok(PyArray1::from_iter(py, places))
    }

    /// Where each row begins in the outputs, counted over all their positions: int64 (rows,), for
    /// token streams and for responses.
    fn row_starts<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>) {
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
        let (pieces, offsets) = self.assembly.piece_table();
        let pieces = table(pieces, |piece| {
            let trains = usize::from(piece.trains);
            [piece.turn, piece.from, piece.start, piece.len, trains]
        });
        let tables = PyDict::new(py);
        let layout = to_i64(named(self.placement.layout).0);
        tables.set_item("layout", PyArray1::from_slice(py, &[layout]))?;
        tables.set_item("source", self.rows_array(py, |row| row.source))?;
        tables.set_item("prompt_lens", self.prompt_lens(py))?;
        tables.set_item("response_lens", self.response_lens(py))?;
        let offsets = offsets.iter().copied().map(to_i64);
        tables.set_item("piece_offsets", PyArray1::from_iter(py, offsets))?;
        tables.set_item("pieces", pieces.to_pyarray(py))?;
        let grids = [
            ("sequence", &self.placement.sequence),
            ("response", &self.placement.response),
        ];
        for (name, grid) in grids {
            let segments = table(grid.segments(), |segment| {
                let Segment {
                    row,
                    from,
                    len,
                    dst_row,
                    dst_col,
                } = *segment;
                [row, from, len, dst_row, dst_col]
            });
            let shape = [grid.rows(), grid.width()].map(to_i64);
            tables.set_item(format!("{name}_shape"), PyArray1::from_slice(py, &shape))?;
            tables.set_item(format!("{name}_segments"), segments.to_pyarray(py))?;
        }
        Ok(tables)
    }

    /// The plan of such tables, checked.
    #[classmethod]
    fn from_dict(_: &Bound<PyType>, tables: &Bound<PyDict>) -> Result<Self> {
        let [source, prompt_lens, response_lens, piece_offsets] =
            ["source", "prompt_lens", "response_lens", "piece_offsets"]
                .map(|name| column(tables, name));
        let (source, prompt_lens, response_lens) = (source?, prompt_lens?, response_lens?);
        if source.len() != prompt_lens.len() || source.len() != response_lens.len() {
            let reason = "source, prompt_lens and response_lens differ in length";
            return Err(Core::InvalidPlan(reason.to_owned()).into());
        }
        let rows = (0..source.len())
            .map(|row| Row {
                source: source[row],
                prompt_len: prompt_lens[row],
                response_len: response_lens[row],
            })
            .collect();
        let pieces = rows_of_five(tables, "pieces")?
            .into_iter()
            .map(|[turn, from, start, len, trains]| Piece {
                turn,
                from,
                start,
                len,
                trains: trains != 0,
            })
            .collect();
        let assembly = Assembly::new(rows, pieces, piece_offsets?)?;
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
        self.assembly == other.assembly && self.placement == other.placement
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

impl Plan {
    fn rows_array<'py>(
        &self,
        py: Python<'py>,
        value: impl Fn(&Row) -> usize,
    ) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_iter(
            py,
            self.assembly.rows().iter().map(|row| to_i64(value(row))),
        )
    }
}

/// Lengths and indices count items in memory, so they fit.
fn to_i64(value: usize) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

fn table<T>(items: &[T], row: impl Fn(&T) -> [usize; 5]) -> Array2<i64> {
    let rows: Vec<_> = items.iter().map(|item| row(item).map(to_i64)).collect();
    Array2::from(rows)
}

/// A table as an array of its own with so many dimensions: whoever made it may have aligned it
/// badly, or keep changing it.
fn array<'py, D: Dimension>(
    tables: &Bound<'py, PyDict>,
    name: &str,
) -> Result<PyReadonlyArray<'py, i64, D>> {
    let invalid = |reason: &str| Core::InvalidPlan(format!("{name} {reason}"));
    let table = tables
        .get_item(name)?
        .ok_or_else(|| invalid("is missing"))?;
    let py = tables.py();
    let numpy = py.import("numpy")?;
    let table = numpy.call_method1("asarray", (table,))?;
    let kind: char = table.getattr("dtype")?.getattr("kind")?.extract()?;
    if kind != 'i' {
        return Err(invalid("does not hold signed integers").into());
    }
    let copy = table.call_method1("astype", ("int64",))?;
    let array = copy.extract::<PyReadonlyArray<i64, D>>();
    Ok(array.map_err(|_| invalid("has a wrong number of dimensions"))?)
}

fn to_usize(name: &str, value: i64) -> Result<usize> {
    let negative = |_| Core::InvalidPlan(format!("{name} holds the negative number {value}"));
    Ok(value.try_into().map_err(negative)?)
}

fn column(tables: &Bound<PyDict>, name: &str) -> Result<Vec<usize>> {
    let array = array::<Ix1>(tables, name)?;
    let values = array.as_array();
    values.iter().map(|&value| to_usize(name, value)).collect()
}

fn rows_of_five(tables: &Bound<PyDict>, name: &str) -> Result<Vec<[usize; 5]>> {
    let array = array::<Ix2>(tables, name)?;
    let array = array.as_array();
    if array.ncols() != 5 {
        let reason = format!("{name} has {} columns, not 5", array.ncols());
        return Err(Core::InvalidPlan(reason).into());
    }
    let row = |row: numpy::ndarray::ArrayView1<i64>| {
        let mut values = [0; 5];
        for (to, &value) in values.iter_mut().zip(row) {
            *to = to_usize(name, value)?;
        }
        Ok(values)
    };
    array.rows().into_iter().map(row).collect()
}

fn grid(tables: &Bound<PyDict>, name: &str) -> Result<Grid> {
    let shape_name = format!("{name}_shape");
    let shape = column(tables, &shape_name)?;
    let [rows, width] = shape[..] else {
        return Err(Core::InvalidPlan(format!("{shape_name} is not (rows, width)")).into());
    };
    let segments = rows_of_five(tables, &format!("{name}_segments"))?
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
