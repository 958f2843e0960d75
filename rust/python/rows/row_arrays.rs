//! Arrays of one row, decoded into memory when it is stored.

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;

use fastcollate::batch::FieldSpec as Field;
use fastcollate::plan::{Align, TokenForm};
use fastcollate::{
    AnyColumn, Check, Dtype, Error as Core, FieldColumn as _, WholeNumbers, bf16, f16,
};
use numpy::{PyArray1, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use super::py_rows::{Missing, PyRows};
use super::reader::Reader;
use super::tokens::TokenInput;
use crate::error::{Error, Result};

/// The form of an array; empty for a row that is None.
#[derive(Clone, PartialEq)]
pub struct StoredForm {
    /// Name in NumPy.
    pub dtype: Cow<'static, str>,
    item_bytes: usize,
    /// Trailing dimensions of a token's values.
    pub trailing: Vec<usize>,
}

/// An array of a row before it is stored.
pub struct Array<'py> {
    source: Source<'py>,
    pub tokens: usize,
    pub form: StoredForm,
}

enum Source<'py> {
    /// Values to decode into a dtype: those of the only row, from this token on.
    Row(Dtype, Rc<PyRows<'py>>, usize),
    /// The bytes of any contiguous array.
    Bytes(Bound<'py, PyArray1<u8>>),
    /// None, which is read back as None: the dimensions of its tokens follow from other rows.
    Missing,
}

impl<'py> Array<'py> {
    /// A token range of the only row.
    fn new(dtype: Dtype, row: &Rc<PyRows<'py>>, tokens: Range<usize>) -> Self {
        Self {
            tokens: tokens.len(),
            form: StoredForm::new(dtype, row),
            source: Source::Row(dtype, row.clone(), tokens.start),
        }
    }

    /// The ids of a row: prompt and response.
    pub fn of_tokens(tokens: &TokenInput<'py>, index: usize) -> Result<(TokenForm, [Self; 2])> {
        let read = |name, row| {
            let row = PyRows::single::<i64>(name, index, row)?.without_booleans()?;
            let len = row.lens()?[0];
            Ok::<_, Error>((Rc::new(row), len))
        };
        let ids = |row, tokens| Self::new(Dtype::I32, row, tokens);
        match tokens {
            TokenInput::Parts { prompts, responses } => {
                let (prompt, prompt_len) = read("prompts", prompts)?;
                let (response, response_len) = read("responses", responses)?;
                let arrays = [ids(&prompt, 0..prompt_len), ids(&response, 0..response_len)];
                Ok((TokenForm::Parts, arrays))
            }
            TokenInput::Whole { sequences, prompt_lens } => {
                let (sequence, len) = read("sequences", sequences)?;
                let found = prompt_lens.as_ref().map(|len| len.extract());
                let found = found.transpose()?.unwrap_or(0);
                if found > len {
                    let row = index;
                    return Err(Core::PromptTooLong { row, found, len }.into());
                }
                let arrays = [ids(&sequence, 0..found), ids(&sequence, found..len)];
                Ok((TokenForm::Whole, arrays))
            }
        }
    }

    /// A row of a field for a prompt and a response of these lengths; none if it is one number,
    /// which has no dtype but Python's. Floats are float32 unless the field needs more: all other
    /// dtypes are rounded from that.
    pub fn of_field(
        field: &Field,
        row: &Bound<'py, PyAny>,
        index: usize,
        lens: [usize; 2],
        form: TokenForm,
        missing: Missing,
    ) -> Result<Option<Self>> {
        let (name, [prompt, response]) = (&field.name, lens);
        let (check, has_trailing) = (field.check(), !field.is_plain);
        let is_number = row.is_none()
            || row.is_exact_instance_of::<PyFloat>()
            || row.is_exact_instance_of::<PyInt>();
        if let Some(spread) = field.spread.filter(|_| is_number) {
            // An integer beyond floats is not 0.
            let number = (!row.is_none()).then(|| row.extract().unwrap_or(f64::INFINITY));
            return match response == 0 && spread.loses(number) {
                true => Err(spread.no_token(name, index, form).into()),
                false => Ok(None),
            };
        }
        if row.is_none() && !matches!(missing, Missing::NoRow) {
            missing.number(name, index)?;
            return Ok(Some(Self {
                source: Source::Missing,
                tokens: 0,
                form: StoredForm::MISSING,
            }));
        }
        let dtype = match field.dtype {
            None | Some(Dtype::F16 | Dtype::Bf16) => Dtype::F32,
            Some(dtype) => dtype,
        };
        let read = |reader: Reader<'_, 'py>| reader.with_missing(missing).read_single(index, row);
        let row = match dtype {
            _ if matches!(check, Check::Whole(_)) => {
                read(Reader::new::<f64>(name, has_trailing))?.checked::<f64>(check)
            }
            Dtype::F64 => read(Reader::new::<f64>(name, has_trailing))?.checked::<f64>(check),
            Dtype::F32 => read(Reader::new::<f32>(name, has_trailing))?.checked::<f32>(check),
            _ => read(Reader::new::<i64>(name, has_trailing))?.checked::<i64>(check),
        }?;
        let found = row.lens()?[0];
        field.check_row(index, lens, found, form)?;
        field.check_prompt(&row, 0, prompt)?;
        let from = match field.align() {
            Align::Response => 0,
            Align::Sequence => prompt,
        };
        Ok(Some(Self::new(dtype, &Rc::new(row), from..found)))
    }

    /// A contiguous array.
    pub fn of_numpy(array: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let array = array.cast::<PyUntypedArray>()?;
        let dtype = array.dtype();
        let bytes = array.call_method1(intern!(py, "reshape"), (-1,))?;
        let bytes = bytes.call_method1(intern!(py, "view"), (intern!(py, "uint8"),))?;
        let text: String = dtype.getattr(intern!(py, "str"))?.extract()?;
        Ok(Self {
            tokens: array.shape()[0],
            form: StoredForm {
                dtype: text.into(),
                item_bytes: dtype.getattr(intern!(py, "itemsize"))?.extract()?,
                trailing: array.shape()[1..].to_vec(),
            },
            source: Source::Bytes(bytes.cast_into()?),
        })
    }

    /// True if it has neither tokens nor trailing dimensions.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0 && self.form.trailing.is_empty() && !self.form.is_missing()
    }

    /// Widen the dtype from 32 to 64 bits. Returns true if it was 32.
    pub fn widen(&mut self) -> bool {
        match &mut self.source {
            Source::Row(dtype @ Dtype::I32, row, _) => {
                *dtype = Dtype::I64;
                self.form = StoredForm::new(Dtype::I64, row);
                true
            }
            _ => false,
        }
    }

    /// Write its values into memory of their size.
    pub fn write(&self, bytes: &mut [u8]) -> Result<()> {
        match &self.source {
            Source::Row(dtype, row, from) if row.holds_whole_numbers() => {
                Ok(decode(&WholeNumbers(&**row), *from, *dtype, bytes)?)
            }
            Source::Row(dtype, row, from) => Ok(decode(&**row, *from, *dtype, bytes)?),
            Source::Bytes(values) => {
                let values = values.try_readonly().map_err(PyErr::from)?;
                bytes.copy_from_slice(values.as_slice().map_err(PyErr::from)?);
                Ok(())
            }
            Source::Missing => Ok(()),
        }
    }
}

impl StoredForm {
    const MISSING: Self = Self { dtype: Cow::Borrowed(""), item_bytes: 0, trailing: Vec::new() };

    pub fn is_missing(&self) -> bool {
        *self == Self::MISSING
    }

    fn new(dtype: Dtype, rows: &PyRows) -> Self {
        Self {
            dtype: dtype.name().into(),
            item_bytes: dtype.size(),
            trailing: rows.trailing().to_vec(),
        }
    }

    pub fn token_bytes(&self) -> usize {
        let dimensions = self.trailing.iter().copied();
        dimensions.fold(self.item_bytes, usize::saturating_mul)
    }
}

/// Decode the only row, from a token on, into `bytes`.
fn decode<C: AnyColumn>(row: &C, from: usize, dtype: Dtype, bytes: &mut [u8]) -> Result<(), Core> {
    match dtype {
        Dtype::Bool => {
            bytes.fill(0); // recycled memory may hold invalid ones
            row.read(0, from, bytemuck::checked::cast_slice_mut::<_, bool>(bytes))
        }
        Dtype::U8 => row.read(0, from, bytes),
        Dtype::I16 => row.read(0, from, bytemuck::cast_slice_mut::<_, i16>(bytes)),
        Dtype::I32 => row.read(0, from, bytemuck::cast_slice_mut::<_, i32>(bytes)),
        Dtype::I64 => row.read(0, from, bytemuck::cast_slice_mut::<_, i64>(bytes)),
        Dtype::F32 => row.read(0, from, bytemuck::cast_slice_mut::<_, f32>(bytes)),
        Dtype::F64 => row.read(0, from, bytemuck::cast_slice_mut::<_, f64>(bytes)),
        Dtype::F16 => row.read(0, from, bytemuck::cast_slice_mut::<_, f16>(bytes)),
        Dtype::Bf16 => row.read(0, from, bytemuck::cast_slice_mut::<_, bf16>(bytes)),
    }
}
