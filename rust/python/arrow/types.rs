//! Arrow types that rows can be read from, and the names of all others.

use std::fmt::{self, Display};

use fastcollate::few;

/// The type of an array.
#[derive(Clone, PartialEq)]
pub enum DataType {
    Number(Number),
    /// Nulls alone: the items of lists that are all empty.
    Null,
    List(Form, Box<Item>),
    Struct(Vec<Item>),
    /// Types of the indices and of the items.
    Dictionary(Box<Self>, Box<Self>),
    /// The name of an unsupported type.
    Other(&'static str),
}

/// The items of a list or column.
#[derive(Clone, PartialEq)]
pub struct Item {
    pub data_type: DataType,
    pub is_nullable: bool,
}

/// Storage of lists in the array of their items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// 32-bit offsets.
    List,
    /// 64-bit offsets.
    LargeList,
    /// 32-bit offsets and sizes.
    ListView,
    /// 64-bit offsets and sizes.
    LargeListView,
    /// A fixed size, contiguous.
    FixedSize(usize),
}

/// Size of a buffer: bits per item, and the number of extra items.
pub struct Width {
    pub bits: usize,
    pub more: usize,
}

/// Number types; booleans are packed to one bit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    Float32,
    Float64,
}

/// Each number type's format in Arrow, and its kind and bytes in NumPy.
const NUMBERS: [(Number, &str, (u8, usize)); 12] = [
    (Number::Boolean, "b", (b'b', 1)),
    (Number::Int8, "c", (b'i', 1)),
    (Number::Int16, "s", (b'i', 2)),
    (Number::Int32, "i", (b'i', 4)),
    (Number::Int64, "l", (b'i', 8)),
    (Number::UInt8, "C", (b'u', 1)),
    (Number::UInt16, "S", (b'u', 2)),
    (Number::UInt32, "I", (b'u', 4)),
    (Number::UInt64, "L", (b'u', 8)),
    (Number::Float16, "e", (b'f', 2)),
    (Number::Float32, "f", (b'f', 4)),
    (Number::Float64, "g", (b'f', 8)),
];

impl Form {
    /// The format string in schemas.
    pub fn format(self) -> String {
        match self {
            Self::List => "+l".to_owned(),
            Self::LargeList => "+L".to_owned(),
            Self::ListView => "+vl".to_owned(),
            Self::LargeListView => "+vL".to_owned(),
            Self::FixedSize(size) => format!("+w:{size}"),
        }
    }
}

impl Number {
    /// The number type of this NumPy kind and item size.
    pub fn of_numpy(kind: u8, bytes: usize) -> Option<Self> {
        let mut numbers = NUMBERS.iter();
        numbers.find(|(_, _, numpy)| *numpy == (kind, bytes)).map(|(number, ..)| *number)
    }

    /// The format string in schemas.
    pub fn format(self) -> &'static str {
        self.row().1
    }

    pub fn bits(self) -> usize {
        match self {
            Self::Boolean => 1,
            _ => 8 * self.row().2.1,
        }
    }

    fn row(self) -> &'static (Self, &'static str, (u8, usize)) {
        let mut numbers = NUMBERS.iter();
        numbers.find(|(number, ..)| *number == self).expect("the table has all numbers")
    }
}

impl DataType {
    /// The buffers of an array without the null buffer; the reason if such arrays are not read.
    pub fn widths(&self) -> Result<Vec<Width>, String> {
        let width = |bits, more| Width { bits, more };
        Ok(match self {
            Self::Number(number) => vec![width(number.bits(), 0)],
            Self::Null | Self::Struct(_) | Self::List(Form::FixedSize(_), _) => Vec::new(),
            Self::List(Form::List, _) => vec![width(32, 1)],
            Self::List(Form::LargeList, _) => vec![width(64, 1)],
            Self::List(Form::ListView, _) => vec![width(32, 0), width(32, 0)],
            Self::List(Form::LargeListView, _) => vec![width(64, 0), width(64, 0)],
            Self::Dictionary(..) | Self::Other(_) => {
                return Err(format!("it holds {self}"));
            }
        })
    }

    /// Lists of nullable items, the default of Arrow's libraries.
    pub fn list(form: Form, data_type: Self) -> Self {
        let is_nullable = true;
        let item = Item { data_type, is_nullable };
        Self::List(form, item.into())
    }

    /// The type of a format whose children, if any, are not read; `None` if unknown.
    pub fn of_leaf(format: &str) -> Option<Self> {
        if let Some((number, ..)) = NUMBERS.iter().find(|(_, name, _)| *name == format) {
            return Some(Self::Number(*number));
        }
        if format == "n" {
            return Some(Self::Null);
        }
        let are_integers = |text: &str| text.split(',').all(|number| number.parse::<i32>().is_ok());
        Some(Self::Other(match format {
            "z" => "Binary",
            "Z" => "LargeBinary",
            "vz" => "BinaryView",
            "u" => "Utf8",
            "U" => "LargeUtf8",
            "vu" => "Utf8View",
            "tdD" => "Date32",
            "tdm" => "Date64",
            "tts" | "ttm" => "Time32",
            "ttu" | "ttn" => "Time64",
            "tDs" | "tDm" | "tDu" | "tDn" => "Duration",
            "tiM" | "tiD" | "tin" => "Interval",
            "+m" => "Map",
            "+r" => "RunEndEncoded",
            _ => match format.split_once(':')? {
                ("+ud", _) => "DenseUnion",
                ("+us", _) => "SparseUnion",
                ("tss" | "tsm" | "tsu" | "tsn", _) => "Timestamp",
                ("w", size) if are_integers(size) => "FixedSizeBinary",
                ("d", parameters) if are_integers(parameters) => "Decimal",
                _ => return None,
            },
        }))
    }

    /// The items of its children.
    pub fn items(&self) -> &[Item] {
        match self {
            Self::List(_, item) => std::slice::from_ref(item),
            Self::Struct(columns) => columns,
            _ => &[],
        }
    }
}

impl Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Null => f.write_str("Null"),
            Self::List(Form::FixedSize(size), item) => write!(f, "FixedSizeList({size} x {item})"),
            Self::List(form, item) => write!(f, "{form:?}({item})"),
            Self::Struct(columns) => {
                let columns: Vec<_> = few(columns.iter().map(Item::to_string));
                write!(f, "Struct({})", columns.join(", "))
            }
            Self::Dictionary(numbers, values) => write!(f, "Dictionary({numbers}, {values})"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let nullable = if self.is_nullable { "" } else { "non-null " };
        write!(f, "{nullable}{}", self.data_type)
    }
}
