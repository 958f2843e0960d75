//! Items of an array, of a value each or of an array each: which of them lack what others have.

use super::call::UNKNOWN;
use super::frame::{Frame, MISSING, State};
use super::items::SLOTS;
use super::schema::{Column, Node};
use crate::error::Result;
use crate::memory::{add, resize};

/// What items have so far; columns are bits.
#[derive(Debug, Default)]
pub struct Alike {
    /// The columns that are read.
    read: u32,
    /// Those that items lack, have one value of, and have an array of.
    lacked: u32,
    single: u32,
    arrays: u32,
    /// Number of items.
    items: usize,
    /// The slots of which items have a value.
    are_there: u32,
    /// Columns that an earlier path has, with their lengths: values of items are removed again.
    others: Vec<(Column, usize)>,
}

/// What one item has; columns are bits.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// The columns of its values.
    all: u32,
    /// Those of which it has an array.
    arrays: u32,
}

impl Seen {
    /// One value of each that a shape can read.
    pub const SLOTS: Self = Self { all: bit(SLOTS[0]) | bit(SLOTS[1]) | bit(SLOTS[2]), arrays: 0 };

    /// Add a column.
    pub fn add(&mut self, column: Column, is_array: bool) {
        self.all |= bit(column);
        self.arrays |= if is_array { bit(column) } else { 0 };
    }
}

/// Number of values so far, by slot.
#[inline(always)]
pub fn lens(frame: &mut Frame) -> [usize; SLOTS.len()] {
    SLOTS.map(|column| frame.column(column).values.len())
}

impl Alike {
    /// Prepare a frame for the values of items of a node.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn new(frame: &mut Frame, node: &Node) -> Result<Self> {
        let mut items = Self::default();
        for &(column, rank) in &node.columns {
            let values = frame.column(column);
            if values.claim(rank) {
                items.read |= bit(column);
            } else {
                add(&mut items.others, (column, values.values.len()))?;
            }
        }
        Ok(items)
    }

    /// Note an item, whose columns were `seen`, and the slots of which it `has` a value, as bits.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    #[inline(always)]
    pub fn add(&mut self, seen: Seen, has: u32, frame: &mut Frame) -> Result<()> {
        let has = has & self.read & !seen.arrays;
        let (first, lacked) = (has & !self.are_there, self.are_there & !has);
        if first | lacked != 0 {
            self.fill(first, lacked, frame)?;
        }
        self.items += 1;
        self.lacked |= self.read & !seen.all;
        self.single |= self.read & seen.all & !seen.arrays;
        self.arrays |= self.read & seen.arrays;
        Ok(())
    }

    /// Fill the slots that an item is the first to have, or lacks.
    fn fill(&mut self, first: u32, lacked: u32, frame: &mut Frame) -> Result<()> {
        for (column, missing) in SLOTS.into_iter().zip([MISSING, UNKNOWN, UNKNOWN]) {
            let values = &mut frame.column(column).values;
            let len = values.len();
            if first & bit(column) != 0 {
                resize(values, len + self.items, missing)?;
                values.swap(len - 1, len - 1 + self.items);
            } else if lacked & bit(column) != 0 {
                add(values, missing)?;
            }
        }
        self.are_there |= first;
        Ok(())
    }

    /// End the array. False if items lack what cannot be filled.
    pub fn finish(self, frame: &mut Frame, node: &Node) -> bool {
        let (lacked, single, arrays) = (self.lacked, self.single, self.arrays);
        for &(column, _) in &node.columns {
            // Of no items, there are no values.
            if self.read & bit(column) != 0 && lacked | single | arrays == 0 {
                frame.column(column).state = State::Given;
            }
        }
        for (column, len) in self.others {
            frame.column(column).values.truncate(len);
        }
        single & lacked & !Seen::SLOTS.all | arrays & (lacked | single) == 0
    }
}

/// The bits of slots that have a value.
#[inline(always)]
pub fn bits_of_slots(has: [bool; SLOTS.len()]) -> u32 {
    let [logprob, id, token] = has.map(u32::from);
    (logprob * bit(SLOTS[0])) | (id * bit(SLOTS[1])) | (token * bit(SLOTS[2]))
}

/// The bit of a column.
const fn bit(column: Column) -> u32 {
    1 << column as u32
}
