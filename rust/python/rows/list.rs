//! Lists and tuples of Python numbers, decoded straight into the destination.
//!
//! This is the hot path: frameworks pass `list[list[int]]`. An exact `int` or `float` is read from
//! a borrowed item, since no Python code can run meanwhile; any other item is owned first, and the
//! list's length is checked again afterwards.

use std::ffi::c_int;
use std::ptr;

use fastcollate::{Location, Lookahead, bf16, f16};
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::{with_critical_section, with_critical_section2};
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::number::{Decode, decode};
use crate::error::{Error, Result};

/// Prefetch distance in items. A batch of 4.7 M tokens takes 29.4 ms with 48, 27.9 with 96, 27.0
/// with 128 and 27.4 with 192.
const AHEAD: usize = 128;

/// A `list` or `tuple`.
#[derive(Clone, Copy)]
pub enum Items<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
}

impl<'a, 'py> Items<'a, 'py> {
    fn object(self) -> &'a Bound<'py, PyAny> {
        match self {
            Self::List(list) => list,
            Self::Tuple(tuple) => tuple,
        }
    }

    /// The items of an object that is exactly a list or a tuple.
    pub fn exact(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        let list = object.cast_exact().ok().map(Self::List);
        list.or_else(|| object.cast_exact().ok().map(Self::Tuple))
    }

    /// The item at an index, if there is one.
    pub fn get(self, index: usize) -> Option<Bound<'py, PyAny>> {
        match self {
            Self::List(list) => list.get_item(index).ok(),
            Self::Tuple(tuple) => tuple.get_item(index).ok(),
        }
    }

    /// The current number of items.
    pub fn count(self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    /// A function that returns a borrowed reference to the item at an index.
    ///
    /// # Safety
    /// Indices are below [`count`](Self::count). The function and its references are valid until
    /// Python code runs, or on free-threaded builds until the list's critical section is left.
    #[cfg(not(Py_LIMITED_API))]
    #[inline]
    unsafe fn borrow(self) -> impl Fn(usize) -> *mut ffi::PyObject {
        let object = self.object().as_ptr();
        // SAFETY: the object is of this type.
        let first: *const *mut ffi::PyObject = unsafe {
            match self {
                Self::List(_) => (*object.cast::<ffi::PyListObject>()).ob_item.cast_const(),
                Self::Tuple(_) => {
                    (&raw const (*object.cast::<ffi::PyTupleObject>()).ob_item).cast()
                }
            }
        };
        // SAFETY: the caller keeps the index in bounds.
        move |index| unsafe { *first.add(index) }
    }

    /// The same with the stable interface only.
    ///
    /// # Safety
    /// As above.
    #[cfg(Py_LIMITED_API)]
    #[inline]
    unsafe fn borrow(self) -> impl Fn(usize) -> *mut ffi::PyObject {
        let object = self.object().as_ptr();
        // SAFETY: the object is of this type, and the caller keeps the index in bounds (so that it
        // also fits Py_ssize_t).
        move |index: usize| unsafe {
            match self {
                Self::List(_) => ffi::PyList_GetItem(object, index.cast_signed()),
                Self::Tuple(_) => ffi::PyTuple_GetItem(object, index.cast_signed()),
            }
        }
    }
}

/// Output types that exact Python numbers decode into without running Python code.
pub trait DecodeExact: Decode {
    /// Decode an exact `int`, `float` or `bool`; `None` for any other object and for values that do
    /// not fit.
    ///
    /// # Safety
    /// `item` points to a live object and the thread is attached to the interpreter.
    unsafe fn decode_exact(item: *mut ffi::PyObject) -> Option<Self>;
}

/// Types decoded by a function of an exact number's 64 bits as an int or a float.
macro_rules! decode_exact {
    ($($type:ty: $read:ident, $cast:expr;)*) => {$(
        impl DecodeExact for $type {
            #[inline]
            unsafe fn decode_exact(item: *mut ffi::PyObject) -> Option<Self> {
                // SAFETY: passed on from the caller.
                unsafe { $read(item) }.and_then($cast)
            }
        }
    )*};
}

decode_exact! {
    bool: exact_int, |value| (value == 0 || value == 1).then_some(value == 1);
    u8: exact_int, |value| value.try_into().ok();
    i16: exact_int, |value| value.try_into().ok();
    i32: exact_int, |value| value.try_into().ok();
    i64: exact_int, Some;
    f16: exact_float, |value| Some(f16::from_f32(value as f32));
    bf16: exact_float, |value| Some(bf16::from_f32(value as f32));
    f32: exact_float, |value| Some(value as f32);
    f64: exact_float, Some;
}

/// Decode an exact `int`, `float` or `bool`, as [`DecodeExact::decode_exact`].
#[inline(always)]
pub fn exact<T: DecodeExact>(item: &Bound<PyAny>) -> Option<T> {
    // SAFETY: the reference proves both.
    unsafe { T::decode_exact(item.as_ptr()) }
}

/// The value of an exact `float`, or of an `int` as the nearest float.
///
/// # Safety
/// `item` points to a live object and the thread is attached to the interpreter.
#[inline(always)]
#[allow(clippy::cast_precision_loss, reason = "as in NumPy, a Python number goes through float64")]
unsafe fn exact_float(item: *mut ffi::PyObject) -> Option<f64> {
    // SAFETY: passed on from the caller; an exact float has the layout that is read.
    unsafe {
        if ffi::PyFloat_CheckExact(item) != 0 {
            #[cfg(not(Py_LIMITED_API))]
            return Some(ffi::PyFloat_AS_DOUBLE(item));
            #[cfg(Py_LIMITED_API)]
            return Some(ffi::PyFloat_AsDouble(item));
        }
        exact_int(item).map(|value| value as f64)
    }
}

/// The value of an exact `int` that fits 64 bits, or of a `bool`.
///
/// # Safety
/// `item` points to a live object and the thread is attached to the interpreter.
#[inline(always)]
unsafe fn exact_int(item: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: passed on from the caller.
    unsafe {
        if ffi::PyLong_CheckExact(item) != 0
            && let Some(value) = one_digit(item)
        {
            return Some(value);
        }
        rare_int(item)
    }
}

/// The value of any other exact `int`, or of a `bool`: apart, so that loops over tokens are short.
///
/// # Safety
/// As [`exact_int`].
#[inline(never)]
unsafe fn rare_int(item: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: the object is live; for an exact int the conversion neither runs Python code nor
    // raises.
    unsafe {
        if ffi::PyLong_CheckExact(item) == 0 {
            // Loss masks are often booleans.
            return (ffi::PyBool_Check(item) != 0).then(|| (item == ffi::Py_True()).into());
        }
        let mut overflow: c_int = 0;
        let value = ffi::PyLong_AsLongLongAndOverflow(item, &raw mut overflow);
        (overflow == 0).then_some(value)
    }
}

/// The value of an int of at most one digit (30 bits), read from CPython's struct.
///
/// Calling CPython for every number takes 2.4 ns a token in the cache instead of 1.3, and 76 ms
/// instead of 60 for 4.7 M tokens with three fields. The layout is fixed for released versions on
/// 64-bit machines; `check_digits` refuses to load if digits are smaller.
///
/// # Safety
/// `item` points to a live exact int.
#[cfg(all(not(any(Py_LIMITED_API, Py_3_15, PyPy, GraalPy)), target_pointer_width = "64"))]
#[inline]
unsafe fn one_digit(item: *mut ffi::PyObject) -> Option<i64> {
    /// The head of `struct _longobject`.
    #[repr(C)]
    struct Int {
        head: ffi::PyObject,
        tag: usize,
        digit: u32,
    }
    // SAFETY: an int has this layout, with space for a digit even if it is zero.
    let (tag, digit) = unsafe {
        let int = item.cast::<Int>();
        ((*int).tag.cast_signed(), i64::from((*int).digit))
    };
    // The number of digits << 3, and the sign: 0 positive, 1 zero, 2 negative.
    #[cfg(Py_3_12)]
    let (is_one_digit, sign) = (tag < 2 << 3, 1 - (tag & 3));
    // The number of digits, negative for a negative number.
    #[cfg(not(Py_3_12))]
    let (is_one_digit, sign) = (matches!(tag, -1..=1), tag);
    // No branch on the sign: ones and zeros of a loss mask are hard to predict.
    is_one_digit.then(|| sign as i64 * digit)
}

/// If the layout is unknown, CPython is called for every number.
#[cfg(not(all(not(any(Py_LIMITED_API, Py_3_15, PyPy, GraalPy)), target_pointer_width = "64")))]
#[inline]
unsafe fn one_digit(_: *mut ffi::PyObject) -> Option<i64> {
    None
}

/// Check that an int's digits have 30 bits, as `one_digit` assumes.
///
/// # Errors
/// `ImportError` for a CPython that was configured with digits of 15 bits.
pub fn check_digits(py: Python) -> PyResult<()> {
    let info = py.import("sys")?.getattr("int_info")?;
    if info.getattr("bits_per_digit")?.extract::<u32>()? == 30 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "this Python keeps its ints in digits of less than 30 bits; \
         build fastcollate with the feature abi3 for it",
    ))
}

/// Prefetch an object. The numbers of a list are scattered in memory, so the processor cannot
/// predict them: without prefetches 94 ms become 101.
#[inline]
fn prefetch<T>(item: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(item.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Prefetch a list before it is read from item `from` on: first the list object, then the items'
/// addresses. The processor cannot predict rows that are read in another order than they were made
/// in: a packed batch of 1.6 M tokens with three fields takes 13.8 ms instead of 18.1 (11 in the
/// original order). Prefetching the first items too saves another 5 %, but costs other batches 2 %.
pub fn announce(list: &Bound<PyList>, len: usize, from: usize, lookahead: Lookahead) {
    /// Addresses in a cache line.
    const LINE: usize = 8;
    match lookahead {
        Lookahead::Later => prefetch(list.as_ptr()),
        #[cfg(not(any(Py_LIMITED_API, Py_GIL_DISABLED)))]
        Lookahead::Next => {
            // SAFETY: the list is live, and unchanged while the thread is attached.
            let items = unsafe { (*list.as_ptr().cast::<ffi::PyListObject>()).ob_item };
            for index in (from..len.min(from + AHEAD)).step_by(LINE) {
                prefetch(items.wrapping_add(index));
            }
        }
        // The layout of lists is unknown, or may change.
        #[cfg(any(Py_LIMITED_API, Py_GIL_DISABLED))]
        Lookahead::Next => {
            let _ = (len, from, LINE);
        }
    }
}

/// The first two items of a list or tuple, as far as there are any.
#[inline(always)]
pub fn first_two<'py>(
    items: Items<'_, 'py>,
) -> (Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>) {
    let py = items.object().py();
    with_critical_section(items.object(), || {
        let count = items.count();
        // SAFETY: no Python code runs meanwhile.
        let at = unsafe { items.borrow() };
        // SAFETY: indices are below the count, and items are live.
        let item = |index| unsafe { Bound::from_borrowed_ptr(py, at(index)) };
        ((count > 0).then(|| item(0)), (count > 1).then(|| item(1)))
    })
}

/// Take the numbers and ids of tuples `(number, id, ...)` from `from` on, up to the first item that
/// is no tuple of a `float` and an `int` or is not taken; returns how many. No references are made.
pub fn take_pairs(
    list: &Bound<PyList>,
    from: usize,
    mut take: impl FnMut(f32, i32) -> bool,
) -> usize {
    let py = list.py();
    with_critical_section(list, || {
        // SAFETY: no Python code runs meanwhile.
        let item_at = unsafe { Items::List(list).borrow() };
        let is_taken = |&index: &usize| {
            // SAFETY: the index is below the length, and items are live.
            let item = unsafe { Borrowed::from_ptr(py, item_at(index)) };
            let Ok(tuple) = item.cast_exact::<PyTuple>() else {
                return false;
            };
            if tuple.len() < 2 {
                return false;
            }
            // SAFETY: no Python code runs meanwhile.
            let at = unsafe { Items::Tuple(&tuple).borrow() };
            // SAFETY: the tuple has two items, which are live.
            let (number, id) =
                unsafe { (Borrowed::from_ptr(py, at(0)), Borrowed::from_ptr(py, at(1))) };
            number.is_exact_instance_of::<PyFloat>()
                && id.is_exact_instance_of::<PyInt>()
                && matches!((exact(&number), exact(&id)), (Some(number), Some(id)) if take(number, id))
        };
        (from..list.len()).take_while(is_taken).count()
    })
}

/// The position of a boolean among the first items of a list or tuple.
pub fn first_boolean(items: Items, count: usize) -> Option<usize> {
    with_critical_section(items.object(), || {
        // SAFETY: no Python code runs meanwhile, and indices are below the count.
        let at = unsafe { items.borrow() };
        // SAFETY: the thread is attached, since it has a reference.
        let booleans = unsafe { [ffi::Py_True(), ffi::Py_False()] };
        (0..items.count().min(count)).find(|&index| booleans.contains(&at(index)))
    })
}

/// The first entry of a dictionary.
#[inline(always)]
pub fn first_entry<'py>(
    entries: &Bound<'py, PyDict>,
) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = entries.py();
    with_critical_section(entries, || {
        let (mut at, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the dictionary is live, and does not change before both have a reference.
        unsafe {
            (ffi::PyDict_Next(entries.as_ptr(), &raw mut at, &raw mut key, &raw mut value) != 0)
                .then(|| (Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, value)))
        }
    })
}

/// Decode `out.len()` items from `from` on. `len` is the list's length in the plan.
pub fn read_items<T: DecodeExact>(
    items: Items,
    len: usize,
    from: usize,
    out: &mut [T],
    field: &str,
    row: usize,
) -> Result<()> {
    let py = items.object().py();
    let location = |position| Location { field: field.to_owned(), row, position: Some(position) };
    with_critical_section(items.object(), || {
        let mut done = 0;
        while done < out.len() {
            let found = items.count();
            if found != len {
                return Err(Error::Changed { field: field.to_owned(), row, expected: len, found });
            }
            // SAFETY: positions are below `len`, the list's length as checked after the last Python
            // code ran; borrowed items are used up before any other runs.
            let item_at = unsafe { items.borrow() };
            // SAFETY: a list's items are live, and `py` proves that the thread is attached.
            let exact = unsafe { decode_while_exact(item_at, from + done, len, &mut out[done..]) };
            done += exact;
            if let Some(value) = out.get_mut(done) {
                let position = from + done;
                // SAFETY: as above; this takes a reference before Python code can run.
                let item = unsafe { Bound::from_borrowed_ptr(py, items.borrow()(position)) };
                *value = decode(&item, || location(position))?;
                done += 1;
            }
        }
        Ok(())
    })
}

/// Decode items from `from` on up to the first that is not exact; returns their number.
///
/// # Safety
/// `item_at` gives live objects for all indices below `len`, and the thread is attached to the
/// interpreter.
unsafe fn decode_while_exact<T: DecodeExact>(
    item_at: impl Fn(usize) -> *mut ffi::PyObject,
    from: usize,
    len: usize,
    out: &mut [T],
) -> usize {
    let decode = |position, value: &mut T| {
        // SAFETY: passed on from the caller.
        match unsafe { T::decode_exact(item_at(position)) } {
            Some(exact) => {
                *value = exact;
                true
            }
            None => false,
        }
    };
    // Prefetch every second of the items that the loop below does not: usually two share a cache
    // line. Prefetching each costs 8 % in the cache, prefetching none 7 % of the time of long rows.
    (from..len.min(from + AHEAD)).step_by(2).for_each(|index| prefetch(item_at(index)));
    // Two loops avoid a comparison per item.
    let followed = out.len().min(len.saturating_sub(from + AHEAD));
    for (index, value) in out[..followed].iter_mut().enumerate() {
        prefetch(item_at(from + index + AHEAD));
        if !decode(from + index, value) {
            return index;
        }
    }
    for (index, value) in out.iter_mut().enumerate().skip(followed) {
        if !decode(from + index, value) {
            return index;
        }
    }
    out.len()
}

/// Result of comparing two lists.
pub enum Common {
    /// Length of the common prefix.
    Len(usize),
    /// Number of equal items before one that is not an exact int and must be decoded.
    Unknown(usize),
}

/// Items compared by address at once.
const BLOCK: usize = 32;

/// Compare `len` items of two lists as ints; each list comes with its length in the plan and the
/// position to begin at.
///
/// Turns made by concatenation share their int objects, so addresses are compared first. In a block
/// with differences, the values `AHEAD` items later are prefetched at once.
pub fn common_items(a: (Items, usize, usize), b: (Items, usize, usize), len: usize) -> Common {
    let ((a, a_len, a_from), (b, b_len, b_from)) = (a, b);
    with_critical_section2(a.object(), b.object(), || {
        if a.count() != a_len || b.count() != b_len {
            return Common::Unknown(0); // reading finds the change
        }
        assert!(a_from + len <= a_len && b_from + len <= b_len);
        // SAFETY: positions are below both lengths, and no Python code runs before the return.
        let (a_at, b_at) = unsafe { (a.borrow(), b.borrow()) };
        let (a_at, b_at) = (|index| a_at(a_from + index), |index| b_at(b_from + index));
        for begin in (0..len).step_by(BLOCK) {
            let block = begin..len.min(begin + BLOCK);
            let differing = |any, index| any | (a_at(index).addr() ^ b_at(index).addr());
            if block.clone().fold(0, differing) == 0 {
                continue;
            }
            for index in block.start + AHEAD..len.min(block.end + AHEAD) {
                prefetch(a_at(index));
                prefetch(b_at(index));
            }
            for index in block {
                let (a, b) = (a_at(index), b_at(index));
                // SAFETY: a list's items are live, and the thread is attached.
                match unsafe { (exact_int(a), exact_int(b)) } {
                    (Some(a), Some(b)) if a == b => {}
                    (Some(_), Some(_)) => return Common::Len(index),
                    _ => return Common::Unknown(index),
                }
            }
        }
        Common::Len(len)
    })
}

/// End of a run of equal items.
pub enum Run {
    /// The item at this index, if present, may be equal or not.
    Until(usize),
    /// The item at this index is a different text.
    UntilOther(usize),
}

/// Find the end of a run of items that are the given object or an equal text.
///
/// For 100,000 strings, ten of each text but all different objects, this and the other work on
/// prompts takes 1.0 ms. Comparing UTF-8 takes 0.8, but free-threaded builds lock a str to create
/// it.
pub fn same_until(items: &Bound<PyList>, item: &Bound<PyAny>, index: usize) -> Run {
    let py = items.py();
    let text = item.cast_exact::<PyString>().ok();
    let items = Items::List(items);
    with_critical_section(items.object(), || {
        let count = items.count();
        // SAFETY: indices are below the length, and until the return nothing runs Python code or
        // waits for a lock, which would leave the critical section.
        let item_at = unsafe { items.borrow() };
        for index in index + 1..count {
            let other = item_at(index);
            if ptr::eq(other, item.as_ptr()) {
                continue;
            }
            prefetch(item_at((index + AHEAD / 4).min(count - 1)));
            // SAFETY: a list's items are live, and the thread is attached.
            match text.and_then(|text| unsafe { is_same_text(py, text, other) }) {
                Some(true) => {}
                Some(false) => return Run::UntilOther(index),
                None => return Run::Until(index),
            }
        }
        Run::Until(count.max(index + 1))
    })
}

/// True if an object is the same text; `None` if it is not an exact `str`.
///
/// # Safety
/// `other` points to a live object.
unsafe fn is_same_text(
    py: Python,
    text: &Bound<PyString>,
    other: *mut ffi::PyObject,
) -> Option<bool> {
    // SAFETY: passed on from the caller; of two exact strs CPython compares lengths and memory, without
    // a lock, an allocation or Python code. For a str that an old extension has not filled yet, it
    // raises and returns none.
    unsafe {
        if ffi::PyUnicode_CheckExact(other) == 0 {
            return None;
        }
        let is_same = ffi::PyUnicode_RichCompare(text.as_ptr(), other, ffi::Py_EQ);
        let Some(is_same) = Bound::from_owned_ptr_or_opt(py, is_same) else {
            ffi::PyErr_Clear();
            return None;
        };
        Some(ptr::eq(is_same.as_ptr(), ffi::Py_True()))
    }
}
