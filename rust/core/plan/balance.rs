//! Balancing: which rank gets what, so that all have about the same to do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What goes to one rank as a whole: so many rows, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Item {
    /// Number of rows.
    pub rows: usize,
    /// What they cost, in any unit: finite and not negative.
    pub cost: f64,
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
/// items first. Equal ones go in order, to the lowest rank: the result is the same everywhere.
///
/// # Errors
/// The first item for which no rank has room.
pub fn balance(
    items: &[Item],
    ranks: usize,
    capacity: usize,
    first: First,
) -> Result<Vec<usize>, usize> {
    let mut order: Vec<_> = (0..items.len())
        .map(|index| {
            let item = items[index];
            let rows = if first == First::Large { item.rows } else { 0 };
            (Reverse((rows, bits(item.cost))), index)
        })
        .collect();
    order.sort_unstable();

    let mut loads: BinaryHeap<_> = (0..ranks).map(|rank| Reverse((0, rank, 0))).collect();
    let mut without_room = Vec::new();
    let mut rank_of = vec![0; items.len()];
    for (_, index) in order {
        let item = items[index];
        loop {
            let Some(Reverse((load, rank, rows))) = loads.pop() else {
                return Err(index);
            };
            if rows + item.rows <= capacity {
                rank_of[index] = rank;
                let load = f64::from_bits(load) + item.cost;
                if rows + item.rows < capacity {
                    loads.push(Reverse((bits(load), rank, rows + item.rows)));
                }
                break;
            }
            without_room.push(Reverse((load, rank, rows)));
        }
        loads.extend(without_room.drain(..));
    }
    Ok(rank_of)
}

/// What orders costs, none of which is negative.
fn bits(cost: f64) -> u64 {
    (cost + 0.0).to_bits() // of -0.0, 0.0
}
