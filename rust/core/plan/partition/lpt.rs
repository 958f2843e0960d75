//! Largest first: each item goes to the rank that has the least to do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::sorting::sort;
use crate::error::Result;
use crate::ticks::Ticks;

/// What goes to one rank as a whole: so many rows, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// Number of rows.
    pub rows: usize,
    /// What they cost, in any unit: finite and not negative.
    pub cost: f64,
}

impl Item {
    /// No rows.
    pub const NOTHING: Self = Self { rows: 0, cost: 0.0 };
}

/// Which of two items is placed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The one that costs more.
    Costly,
    /// The one of more rows, then the one that costs more.
    Large,
}

/// Give every item to the rank that has the least to do among those with room for it, the largest
/// items first. Equal ones go in order, to the rank with the fewest rows, then the lowest: the
/// result is the same everywhere, and no rank stays empty while there are items that cost nothing.
/// A rank begins with what it has `taken` before.
/// None if no rank has room for an item.
///
/// # Errors
/// What `ticks` are stopped by.
pub fn balance(
    items: &[Item],
    taken: &[Item],
    capacity: usize,
    first: First,
    ticks: &mut Ticks,
) -> Result<Option<Vec<usize>>> {
    let mut order: Vec<_> = (0..items.len())
        .map(|index| {
            let item = items[index];
            let rows = if first == First::Large { item.rows } else { 0 };
            (Reverse((rows, bits(item.cost))), index)
        })
        .collect();
    sort(&mut order, ticks)?;

    let loads = taken.iter().enumerate();
    let mut loads: BinaryHeap<_> = loads
        .filter(|(_, taken)| taken.rows < capacity)
        .map(|(rank, taken)| Reverse((bits(taken.cost), taken.rows, rank)))
        .collect();
    let mut without_room = Vec::new();
    let mut rank_of = vec![0; items.len()];
    for (_, index) in order {
        ticks.done(1)?;
        let item = items[index];
        loop {
            let Some(Reverse((load, rows, rank))) = loads.pop() else {
                return Ok(None);
            };
            if rows + item.rows <= capacity {
                rank_of[index] = rank;
                let load = f64::from_bits(load) + item.cost;
                if rows + item.rows < capacity {
                    loads.push(Reverse((bits(load), rows + item.rows, rank)));
                }
                break;
            }
            ticks.done(1)?;
            without_room.push(Reverse((load, rows, rank)));
        }
        loads.extend(without_room.drain(..));
    }
    Ok(Some(rank_of))
}

/// What orders costs, none of which is negative.
fn bits(cost: f64) -> u64 {
    (cost + 0.0).to_bits() // of -0.0, 0.0
}
