//! Swapping: items move from the heaviest part to the lightest.

use std::collections::BTreeSet;

use super::Parts;
use super::sort;
use super::weight::Float;
use crate::error::Result;
use crate::polling::Ticks;

/// Items of a part by cost, ties by index.
type Members = Vec<(Float<f64>, usize)>;

/// The item that goes from the heaviest part to the lightest, and the one that comes back, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Exchange {
    /// The resulting difference between the two parts.
    difference: Float<f64>,
    item: usize,
    /// None sorts before every item.
    back: Option<usize>,
    moved: Float<f64>,
}

/// Exchange an item of the heaviest part for one of the lightest, or for nothing if parts may be of
/// different sizes, as long as that makes the heavier of the two lighter.
///
/// The exchange that leaves the smallest difference is taken, then that of the lowest items. Of
/// parts of equal weight, the first counts as the lightest, and the last as the heaviest. The
/// number of rounds is limited. Items of the resulting parts are sorted.
///
/// # Errors
/// Those of `ticks`.
pub fn swap(
    costs: &[f64],
    parts: &Parts,
    equal_size: bool,
    rounds: usize,
    ticks: &mut Ticks,
) -> Result<Parts> {
    let mut members: Vec<Members> = Vec::with_capacity(parts.iter().len());
    let mut loads = BTreeSet::new();
    for (index, part) in parts.iter().enumerate() {
        let items = part.iter().map(|&item| (Float(costs[item]), item));
        let mut items: Members = items.collect();
        let load: f64 = items.iter().map(|(cost, _)| cost.0).sum();
        loads.insert((Float(load), index));
        sort(&mut items, ticks)?;
        members.push(items);
    }
    for _ in 0..rounds {
        let (Some(&lightest), Some(&heaviest)) = (loads.first(), loads.last()) else {
            break;
        };
        let difference = heaviest.0.0 - lightest.0.0;
        let (from, to) = (heaviest.1, lightest.1);
        let found = best(&members[from], &members[to], difference, equal_size, ticks)?;
        let Some(exchange) = found.filter(|_| from != to) else {
            break;
        };
        for (load, part, moved) in
            [(heaviest, from, -exchange.moved.0), (lightest, to, exchange.moved.0)]
        {
            loads.remove(&load);
            loads.insert((Float(load.0.0 + moved), part));
        }
        give(&mut members, from, to, (Float(costs[exchange.item]), exchange.item));
        if let Some(item) = exchange.back {
            give(&mut members, to, from, (Float(costs[item]), item));
        }
    }
    let mut out = Parts::with_capacity(members.len(), costs.len());
    for members in &members {
        ticks.done(members.len())?;
        out.push(members.iter().map(|&(_, item)| item));
    }
    out.sorted(ticks)
}

/// The best exchange between a part and a lighter one.
fn best(
    heavy: &Members,
    light: &Members,
    difference: f64,
    equal_size: bool,
    ticks: &mut Ticks,
) -> Result<Option<Exchange>> {
    ticks.done(light.len())?;
    // Of items of equal cost, the first is taken; None costs nothing.
    let nothing = (!equal_size).then_some((Float(0.0), None));
    let mut back: Vec<_> = light.iter().map(|&(cost, item)| (cost, Some(item))).collect();
    back.splice(0..0, nothing);
    back.dedup_by_key(|(cost, _)| *cost);
    let mut heavy = heavy.clone();
    heavy.dedup_by_key(|(cost, _)| *cost);

    let mut next = 0;
    let mut best: Option<Exchange> = None;
    for (cost, item) in heavy {
        ticks.done(1)?;
        // An item of the cost that would leave no difference lies between the two candidates.
        while next < back.len() && cost.0 - back[next].0.0 > difference / 2.0 {
            next += 1;
        }
        for &(back_cost, back) in &back[next.saturating_sub(1)..(next + 1).min(back.len())] {
            let moved = cost.0 - back_cost.0;
            let exchange = Exchange {
                difference: Float((difference - 2.0 * moved).abs()),
                item,
                back,
                moved: Float(moved),
            };
            let is_better = best.is_none_or(|best| exchange < best);
            if exchange.difference.0 < difference && is_better {
                best = Some(exchange);
            }
        }
    }
    Ok(best)
}

fn give(members: &mut [Members], from: usize, to: usize, member: (Float<f64>, usize)) {
    if let Ok(place) = members[from].binary_search(&member) {
        members[from].remove(place);
    }
    let place = members[to].partition_point(|other| *other < member);
    members[to].insert(place, member);
}
