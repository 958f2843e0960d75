//! Largest first: each item goes to the rank of lowest cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::sort;
use crate::error::Result;
use crate::polling::Ticks;

/// A unit that goes to one rank: a number of rows, and their cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// Number of rows.
    pub rows: usize,
    /// Their cost, in any unit: finite and not negative.
    pub cost: f64,
}

impl Item {
    /// No rows, of cost 0.
    pub const NOTHING: Self = Self { rows: 0, cost: 0.0 };
}

/// The order of placing items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// By cost, the highest first.
    Costly,
    /// By number of rows, then by cost, the highest first.
    Large,
}

/// Give every item, the largest first, to the rank of lowest cost among those with capacity for it.
/// Equal items go in order; ties go to the rank with the fewest rows, then the lowest index: the
/// result is the same on every machine, and no rank stays empty while there are items of cost 0.
/// Ranks begin with the loads `taken`. None if no rank has capacity for an item.
///
/// # Errors
/// Those of `ticks`.
pub fn balance(
    items: &[Item],
    taken: &[Item],
    capacity: usize,
    first: First,
    ticks: &mut Ticks,
) -> Result<Option<Vec<usize>>> {
    let key = |index: usize| {
        let item = items[index];
        let rows = if first == First::Large { item.rows } else { 0 };
        (Reverse((rows, bits(item.cost))), index)
    };
    let mut order = ticks.gathered((0..items.len()).map(key))?;
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

/// The sort key of a cost, which is not negative.
fn bits(cost: f64) -> u64 {
    (cost + 0.0).to_bits() // of -0.0, 0.0
}
