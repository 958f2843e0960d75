//! Which rows go first, and what cannot be divided. Steps are compared with a reference in Python.

use fastcollate::plan::partition::{First, Item, balance};
use fastcollate::plan::{Cause, Deal, Indivisible, Padding, Slot, Split};
use fastcollate::unstopped;

#[test]
fn groups_in_order_are_distributed_evenly() {
    let split = Split {
        ranks: 4,
        deal: Deal::Contiguous,
        padding: Padding::CopyFirst,
        groups: Some(&[0, 2, 4, 6, 8, 10, 11, 12]),
    };
    let slots = unstopped(|ticks| split.slots(&[0, 12], ticks)).unwrap().slots;
    let rows = |slots: &[Slot]| slots.iter().filter(|slot| !slot.is_padding).count();
    let counts: Vec<_> = slots.chunks(4).map(rows).collect();
    assert_eq!(counts, [4, 4, 2, 2]);
}

#[test]
fn what_cannot_be_divided_is_named() {
    let split = |deal| Split {
        ranks: 2,
        deal,
        padding: Padding::Refused,
        groups: Some(&[0, 1, 2, 5, 8, 10]),
    };
    let refused = |cause| Err(Indivisible { mini_batch: 1, cause });
    assert_eq!(
        unstopped(|ticks| split(Deal::Contiguous).slots(&[0, 2, 10], ticks)),
        refused(Cause::Group(3))
    );
    assert_eq!(
        unstopped(|ticks| split(Deal::Strided).slots(&[0, 2, 10], ticks)),
        refused(Cause::Group(4))
    );
    assert_eq!(
        unstopped(|ticks| split(Deal::Strided).slots(&[0, 2, 5, 10], ticks)),
        refused(Cause::Rows)
    );
}

#[test]
fn the_largest_are_placed_first() {
    let items = [(1, 1.0), (3, 2.0), (1, 5.0), (1, 2.0)].map(|(rows, cost)| Item { rows, cost });
    let balanced = |ranks, capacity, first| {
        let taken = vec![Item::NOTHING; ranks];
        unstopped(|ticks| balance(&items, &taken, capacity, first, ticks))
    };
    assert_eq!(balanced(2, 3, First::Large), Some(vec![1, 0, 1, 1]));
    assert_eq!(balanced(2, 4, First::Costly), Some(vec![0, 1, 0, 1]));
    assert_eq!(balanced(2, 2, First::Costly), None);
    assert_eq!(balanced(0, 2, First::Costly), None);
}
