//! Trees are those that sorting and comparing whole rows finds, and are cut as all ways to cut say.

use std::collections::BTreeSet;
use std::ops::Range;

use fastcollate::plan::merge::Streams;
use fastcollate::plan::pack::{Algorithm, Cost, Growth, Oversize, PackSpec, Packer};
use fastcollate::plan::share::{Share, ShareIds, Tree, TreeRow};
use fastcollate::plan::{Row, Turns};
use fastcollate::{Check, Error, Slice, SliceColumn, TokenStreams, unstopped};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

type Tokens = Vec<i64>;

/// Rows of few different tokens, each made of the beginning of one before it: prompt and response.
fn rows() -> impl Strategy<Value = Vec<(Tokens, Tokens)>> {
    let tokens = || vec(-1..2_i64, 0..5);
    let row = (any::<Index>(), any::<Index>(), tokens(), any::<Index>());
    vec(row, 1..14).prop_map(|drawn| {
        let mut rows: Vec<Tokens> = vec![vec![]];
        let mut split = vec![];
        for (from, end, tokens, prompt) in drawn {
            let from = &rows[from.index(rows.len())];
            let stream = [&from[..end.index(from.len() + 1)], &tokens].concat();
            let (prompt, response) = stream.split_at(prompt.index(stream.len() + 1));
            split.push((prompt.to_vec(), response.to_vec()));
            rows.push(stream);
        }
        split
    })
}

fn tree_of(rows: &[(Tokens, Tokens)], share: Share, ids: ShareIds) -> Tree {
    let column = |field, part: fn(&(Tokens, Tokens)) -> &Tokens| {
        let slices = rows.iter().map(|row| Slice::I64(part(row))).collect();
        SliceColumn::new(field, slices, vec![], Check::None)
    };
    let lens = |part: fn(&(Tokens, Tokens)) -> &Tokens| rows.iter().map(move |row| part(row).len());
    let turns = Turns::new(
        lens(|(prompt, _)| prompt).collect(),
        lens(|(_, response)| response).collect(),
    );
    let row = |(row, (prompt, response)): (usize, &(Tokens, Tokens))| Row {
        source: Some(row),
        prompt_len: prompt.len(),
        response_len: response.len(),
        is_padding: false,
    };
    let tokens = TokenStreams::Parts {
        prompts: column("prompts", |(prompt, _)| prompt),
        responses: column("responses", |(_, response)| response),
    };
    let streams = Streams {
        tokens: &tokens,
        turns: &turns.unwrap(),
    };
    let rows: Vec<_> = rows.iter().enumerate().map(row).collect();
    Tree::of_rows(&streams, &rows, share, ids).unwrap()
}

fn streams_of(rows: &[(Tokens, Tokens)]) -> Vec<Tokens> {
    let stream = |(prompt, response): &(Tokens, Tokens)| [&prompt[..], response].concat();
    rows.iter().map(stream).collect()
}

fn common(a: &[i64], b: &[i64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Rows in an order, with what each has in common with the one before it.
fn compared(streams: &[Tokens], order: Vec<usize>, is_one: impl Fn(usize, usize) -> bool) -> Tree {
    let mut before: Option<usize> = None;
    let row = |row: usize| {
        let shared = before.filter(|&other| is_one(other, row));
        let shared = shared.map_or(0, |other| common(&streams[other], &streams[row]));
        before = Some(row);
        TreeRow {
            row,
            len: streams[row].len(),
            shared,
        }
    };
    Tree::new(order.into_iter().map(row).collect()).unwrap()
}

fn spec(capacity: usize) -> PackSpec {
    PackSpec {
        algorithm: Algorithm::Pack(Packer::FirstFitDecreasing),
        oversize: Oversize::OwnBin,
        capacity,
        max_sequences: usize::MAX,
        multiple_of: 1,
        max_cost: f64::INFINITY,
        bin_cost: 0.0,
        num_bins: None,
        min_bins: 0,
        bins_multiple_of: 1,
        allow_fewer_bins: false,
        growth: Growth::Move,
    }
}

fn packed(tree: &Tree, spec: &PackSpec) -> Result<Vec<Tree>, Error> {
    let cost = if spec.max_cost.is_finite() {
        Cost::Flops
    } else {
        Cost::Tokens
    };
    tree.pack(spec, &cost, &mut fastcollate::Ticks::new(&mut || Ok(())))
}

/// Every way to cut rows into runs.
fn all_cuts(rows: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
    (0..1_usize << rows.saturating_sub(1)).map(move |cuts| {
        let begins = (1..rows).filter(|place| cuts >> (place - 1) & 1 == 1);
        let begins: Vec<_> = [0].into_iter().chain(begins).collect();
        let ends = begins[1..].iter().copied().chain([rows]);
        begins
            .iter()
            .zip(ends)
            .map(|(&begin, end)| begin..end)
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn rows_are_sorted_by_their_tokens(
        rows in rows(),
        uids in vec(0..2_usize, 14),
        same_inputs in vec(0..2_usize, 14),
    ) {
        let streams = streams_of(&rows);
        let (uids, same_inputs) = (&uids[..rows.len()], &same_inputs[..rows.len()]);
        let sorted = |are_one: &dyn Fn(usize, usize) -> bool| {
            let first = |row: usize| (0..=row).find(|&other| are_one(other, row)).unwrap();
            let mut order: Vec<_> = (0..rows.len()).collect();
            order.sort_by_key(|&row| (first(row), &streams[row]));
            compared(&streams, order, are_one)
        };
        let none = ShareIds::default();
        let inputs = ShareIds { same_inputs: Some(same_inputs), ..none };
        let both = ShareIds { uids: Some(uids), ..inputs };
        let are_same = |a: usize, b: usize| same_inputs[a] == same_inputs[b];
        prop_assert_eq!(tree_of(&rows, Share::All, none), sorted(&|_, _| true));
        prop_assert_eq!(tree_of(&rows, Share::All, both), sorted(&are_same));
        prop_assert_eq!(tree_of(&rows, Share::Group, inputs), sorted(&are_same));
        let expected = sorted(&|a, b| are_same(a, b) && uids[a] == uids[b]);
        prop_assert_eq!(tree_of(&rows, Share::Group, both), expected);
    }

    #[test]
    fn prompts_are_shared_whole(rows in rows(), groups in vec(0..2_usize, 14)) {
        let ids = ShareIds { uids: None, same_inputs: Some(&groups[..rows.len()]) };
        let prompts: Vec<_> = rows.iter().map(|(prompt, _)| prompt.clone()).collect();
        let key = |row: usize| (groups[row], &prompts[row]);
        let first = |row: usize| (0..=row).find(|&other| key(other) == key(row)).unwrap();
        let mut order: Vec<_> = (0..rows.len()).collect();
        order.sort_by_key(|&row| first(row));
        let tree = compared(&prompts, order, |a, b| first(a) == first(b));
        let streams = streams_of(&rows);
        let whole = |row: &TreeRow| TreeRow { len: streams[row.row].len(), ..*row };
        let expected = Tree::new(tree.rows().iter().map(whole).collect()).unwrap();
        prop_assert_eq!(tree_of(&rows, Share::Prompts, ids), expected);
    }

    #[test]
    fn parts_are_trees_of_their_rows(rows in rows(), parts in vec(0..4_usize, 14)) {
        let tree = tree_of(&rows, Share::All, ShareIds::default());
        let part_of = |place: usize| parts[tree.rows()[place].row].checked_sub(1);
        let parted = unstopped(|ticks| tree.parted(part_of, 3, ticks));
        for (part, found) in parted.iter().enumerate() {
            let members: Vec<_> = (0..rows.len()).filter(|&row| parts[row] == part + 1).collect();
            let of_part: Vec<_> = members.iter().map(|&row| rows[row].clone()).collect();
            let expected = if of_part.is_empty() {
                Tree::default()
            } else {
                tree_of(&of_part, Share::All, ShareIds::default())
            };
            let named = |row: &TreeRow| TreeRow { row: members[row.row], ..*row };
            let expected: Vec<_> = expected.rows().iter().map(named).collect();
            prop_assert_eq!(found.rows(), &expected[..]);
        }
    }

    #[test]
    fn nodes_hold_every_shared_beginning_once(rows in rows()) {
        let streams = streams_of(&rows);
        let tree = tree_of(&rows, Share::All, ShareIds::default());
        let beginnings: BTreeSet<_> = streams
            .iter()
            .flat_map(|stream| (1..=stream.len()).map(move |end| &stream[..end]))
            .collect();
        prop_assert_eq!(tree.tokens(), beginnings.len());
        let pairs: usize = beginnings.iter().map(|beginning| beginning.len()).sum();
        prop_assert_eq!(tree.attention_pairs(), pairs as u128);

        let nodes = tree.nodes().unwrap();
        let mut of_position = vec![];
        for (index, node) in nodes.nodes.iter().enumerate() {
            prop_assert_eq!(node.start, of_position.len());
            of_position.extend((0..node.len).map(|_| index));
            prop_assert!(node.len > 0 && node.parent.is_none_or(|parent| parent < index));
        }
        prop_assert_eq!(of_position.len(), beginnings.len());
        // Beginnings are ordered as positions are, so that a position is the number of its beginning.
        let beginnings: Vec<_> = beginnings.into_iter().collect();
        for (place, row) in tree.rows().iter().enumerate() {
            let mut path = vec![];
            let mut node = nodes.leaves[place];
            while let Some(index) = node {
                let found = nodes.nodes[index];
                path.splice(0..0, found.start..found.start + found.len);
                node = found.parent;
                prop_assert_eq!(node.map_or(0, |above| nodes.nodes[above].depth + nodes.nodes[above].len), found.depth);
            }
            let expected: Vec<_> = (1..=row.len)
                .map(|end| beginnings.binary_search(&&streams[row.row][..end]).unwrap())
                .collect();
            prop_assert_eq!(path, expected);
        }
        for (q, seen_from) in beginnings.iter().enumerate() {
            for (k, seen) in beginnings.iter().enumerate() {
                let sees = k <= q && q < nodes.nodes[of_position[k]].subtree_end;
                prop_assert_eq!(sees, seen_from.starts_with(seen));
            }
        }
    }

    #[test]
    fn trees_are_cut_where_that_duplicates_least(
        rows in rows(),
        capacity in 1..30_usize,
        max_sequences in prop_oneof![Just(usize::MAX), 1..4_usize],
        max_cost in prop_oneof![Just(f64::INFINITY), Just(24_576.0 * 6.0)],
    ) {
        let tree = tree_of(&rows, Share::All, ShareIds::default());
        let next_fit = PackSpec {
            // A bin for each chunk: none is left open that the next could go to.
            max_sequences,
            max_cost,
            ..spec(capacity)
        };
        let run = |rows: &Range<usize>| {
            let of = |place: usize| rows.contains(&place).then_some(0);
            unstopped(|ticks| tree.parted(of, 1, ticks)).remove(0)
        };
        let cost = |tree: &Tree| {
            let flops = |len: usize| (len * (len + 24_576)) as f64;
            tree.rows().iter().map(|row| flops(row.len) - flops(row.shared)).sum::<f64>()
        };
        let may_be = |rows: &Range<usize>| {
            let tree = run(rows);
            let is_within = tree.tokens() <= capacity && cost(&tree) <= max_cost;
            rows.len() == 1 || (is_within && rows.len() <= max_sequences)
        };
        let tokens = |cuts: &Vec<Range<usize>>| -> usize {
            cuts.iter().map(|rows| run(rows).tokens()).sum()
        };
        let least = all_cuts(rows.len())
            .filter(|cuts| cuts.iter().all(may_be))
            .map(|cuts| tokens(&cuts))
            .min()
            .unwrap();
        let bins = packed(&tree, &next_fit).unwrap();
        for bin in &bins {
            let is_within = bin.tokens() <= capacity && cost(bin) <= max_cost;
            prop_assert!(bin.rows().len() == 1 || (is_within && bin.rows().len() <= max_sequences));
        }
        // A bin may hold several chunks of one tree, which share again.
        let found: usize = bins.iter().map(Tree::tokens).sum();
        prop_assert!(found <= least, "{} tokens instead of {}", found, least);
        let mut all: Vec<_> = bins.iter().flat_map(|bin| bin.rows().iter().map(|row| row.row)).collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..rows.len()));
    }

    #[test]
    fn missing_bins_are_made_by_the_cheapest_cuts(
        rows in rows(),
        capacity in 1..60_usize,
        min_bins in 1..14_usize,
    ) {
        let tree = tree_of(&rows, Share::All, ShareIds::default());
        let few = packed(&tree, &spec(capacity)).unwrap();
        let wanted = PackSpec { min_bins, ..spec(capacity) };
        let found = match packed(&tree, &wanted) {
            Err(Error::TooFewItems { items, .. }) => {
                prop_assert!(min_bins > rows.len() && items == rows.len());
                return Ok(());
            }
            found => found.unwrap(),
        };
        prop_assert_eq!(found.len(), min_bins.max(few.len()));
        prop_assert!(found.iter().all(|bin| !bin.rows().is_empty()));
        let tokens = |bins: &[Tree]| bins.iter().map(Tree::tokens).sum::<usize>();
        if capacity >= tree.tokens() {
            // Nothing has to be cut: any cuts into as many runs are allowed.
            let least = all_cuts(rows.len()).filter(|cuts| cuts.len() == found.len()).map(|cuts| {
                cuts.iter().map(|run| {
                    let row = |place: usize| tree.rows()[place];
                    row(run.start).len + run.clone().skip(1).map(|place| row(place).added()).sum::<usize>()
                }).sum::<usize>()
            }).min();
            if found.len() > few.len() {
                prop_assert_eq!(tokens(&found), least.unwrap());
            }
        }
    }
}

fn of(rows: &[(usize, usize)]) -> Tree {
    let row = |(row, &(len, shared))| TreeRow { row, len, shared };
    Tree::new(rows.iter().enumerate().map(row).collect()).unwrap()
}

fn rows_of(bins: &[Tree]) -> Vec<Vec<usize>> {
    let rows = |bin: &Tree| bin.rows().iter().map(|row| row.row).collect();
    bins.iter().map(rows).collect()
}

#[test]
fn of_equally_cheap_cuts_those_are_made_that_halve_the_largest() {
    let tree = of(&[
        (20, 0),
        (20, 10),
        (20, 10),
        (20, 10),
        (20, 10),
        (20, 10),
        (20, 10),
        (20, 10),
    ]);
    let bins = |min_bins| {
        rows_of(
            &packed(
                &tree,
                &PackSpec {
                    min_bins,
                    ..spec(1_000)
                },
            )
            .unwrap(),
        )
    };
    assert_eq!(bins(2), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
    assert_eq!(bins(4), [vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]]);
    assert_eq!(bins(3), [vec![0, 1], vec![2, 3], vec![4, 5, 6, 7]]);
}

#[test]
fn chunks_are_padded_behind_them() {
    let tree = of(&[(5, 0), (6, 4), (6, 4)]);
    let rounded = PackSpec {
        multiple_of: 4,
        ..spec(10)
    };
    // 5 + 2 tokens take 8 places, 5 + 2 + 2 would take 12.
    assert_eq!(
        rows_of(&packed(&tree, &rounded).unwrap()),
        [vec![1, 2], vec![0]]
    );
    assert_eq!(
        rows_of(
            &packed(
                &tree,
                &PackSpec {
                    multiple_of: 1,
                    ..rounded
                }
            )
            .unwrap()
        ),
        [vec![0, 1, 2]]
    );
}

#[test]
fn a_row_above_the_capacity_is_named_or_has_a_bin_of_its_own() {
    let tree = of(&[(5, 0), (12, 5), (13, 11), (14, 5), (7, 5)]);
    let error = packed(
        &tree,
        &PackSpec {
            oversize: Oversize::Error,
            ..spec(11)
        },
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 1 has 12 tokens, which exceeds capacity=11"
    );
    let bins = packed(&tree, &spec(12)).unwrap();
    assert_eq!(rows_of(&bins), [vec![3], vec![2], vec![0, 1], vec![4]]);
    let whole = |bin: &Tree| bin.rows()[0].shared;
    assert!(bins.iter().all(|bin| whole(bin) == 0));
}

#[test]
fn tables_that_are_no_tree_are_refused() {
    let refused = |rows: &[(usize, usize, usize)], reason: &str| {
        let row = |&(row, len, shared): &_| TreeRow { row, len, shared };
        let error = Tree::new(rows.iter().map(row).collect()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    };
    refused(
        &[(0, 2, 1)],
        "row 0 shares 1 of its 2 tokens with the row before",
    );
    refused(&[(0, 2, 0), (1, 5, 3)], "which has 2");
    refused(&[(0, 5, 0), (1, 2, 3)], "row 1 shares 3 of its 2 tokens");
    refused(&[(4, 2, 0), (4, 2, 2)], "row 4 is given twice");
    refused(
        &[(0, usize::MAX, 0), (1, 5, 0)],
        "more tokens than can be counted",
    );
    assert_eq!(Tree::new(vec![]).unwrap(), Tree::default());
}
