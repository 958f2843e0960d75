//! Merges of parts are joined to those of the whole. Policies are compared with loops in Python.

use fastcollate::plan::merge::{
    Branch, Exact, Masked, Merge, MergeRewards, Policy, Realign, Streams,
};
use fastcollate::plan::{Assembly, Pick, TokenForm, Turns};
use fastcollate::{Check, Error, Slice, SliceColumn, TokenStreams, unstopped};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A turn, made of an earlier one of its trajectory.
#[derive(Debug, Clone)]
struct Next {
    /// How many turns back that one lies.
    back: usize,
    /// Where its tokens are changed: from there on, so many are replaced by these.
    change: Option<(Index, usize, Vec<i64>)>,
    observation: Vec<i64>,
    response: Vec<i64>,
}

fn trajectories() -> impl Strategy<Value = Vec<Vec<Next>>> {
    let words = || vec(0..3_i64, 0..4);
    let change = (any::<Index>(), prop_oneof![0..3_usize, Just(99)], words());
    let next =
        (prop_oneof![4 => Just(0), 1 => 0..4_usize], prop::option::of(change), words(), words());
    let next = next.prop_map(|(back, change, observation, response)| Next {
        back,
        change,
        observation,
        response,
    });
    vec(vec(next, 1..7), 1..4)
}

/// Prompts and responses of all turns, and where trajectories end.
fn written_out(trajectories: &[Vec<Next>]) -> (Vec<Vec<i64>>, Vec<Vec<i64>>, Vec<usize>) {
    let (mut prompts, mut responses, mut ends) = (vec![], vec![], vec![]);
    for turns in trajectories {
        let mut streams: Vec<Vec<i64>> = vec![];
        for next in turns {
            let before = streams.len().checked_sub(next.back + 1);
            let mut prompt = before.map_or_else(Vec::new, |turn| streams[turn].clone());
            if let Some((from, count, words)) = &next.change {
                let from = from.index(prompt.len() + 1);
                let to = (from + count).min(prompt.len());
                prompt.splice(from..to, words.iter().copied());
            }
            prompt.extend(&next.observation);
            streams.push([&prompt[..], &next.response].concat());
            prompts.push(prompt);
            responses.push(next.response.clone());
        }
        ends.push(prompts.len());
    }
    (prompts, responses, ends)
}

/// The way in which turns join.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Exact,
    Branch,
    Realign(Realign),
}

fn merged(prompts: &[Vec<i64>], responses: &[Vec<i64>], ends: &[usize], rule: Rule) -> Merge {
    fn column<'a>(field: &'a str, rows: &'a [Vec<i64>]) -> SliceColumn<'a> {
        let rows = rows.iter().map(|row| Slice::I64(row)).collect();
        SliceColumn::new(field, rows, vec![], Check::None)
    }
    fn by(streams: &Streams, ends: &[usize], mut policy: impl Policy) -> Merge {
        Merge::of_turns(streams, ends.to_vec(), &mut policy, MergeRewards::Error).unwrap()
    }
    let lens = |rows: &[Vec<i64>]| rows.iter().map(Vec::len).collect();
    let turns = Turns::new(lens(prompts), lens(responses)).unwrap();
    let pairs = prompts.iter().zip(responses);
    let sequences: Vec<_> = pairs.map(|(prompt, own)| [&prompt[..], own].concat()).collect();
    let parts = TokenStreams::Parts {
        prompts: column("prompts", prompts),
        responses: column("responses", responses),
    };
    let whole = TokenStreams::Whole {
        sequences: column("sequences", &sequences),
        prompt_lens: lens(prompts),
    };
    let [merge, of_whole] = [&parts, &whole].map(|tokens| {
        let turns = &turns;
        let streams = Streams { tokens, turns };
        match rule {
            Rule::Exact => by(&streams, ends, Exact),
            Rule::Branch => by(&streams, ends, Branch::default()),
            Rule::Realign(realign) => by(&streams, ends, realign),
        }
    });
    assert_eq!(of_whole, merge);
    merge
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn parts_that_are_joined_are_merged_as_one(
        trajectories in trajectories(),
        at in any::<Index>(),
        drops in any::<bool>(),
        padding in any::<Index>(),
    ) {
        let at = at.index(trajectories.len());
        let parts = [&trajectories[..at], &trajectories[at..]].into_iter();
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        let realign = Realign { masked: Masked::Tail, max_drift_tokens: 2, fork_threshold: None };
        for rule in [Rule::Exact, Rule::Branch, Rule::Realign(realign)] {
            let merge_all = |trajectories: &[_]| {
                let (prompts, responses, ends) = written_out(trajectories);
                merged(&prompts, &responses, &ends, rule)
            };
            let trained = |merge: Merge| merge.without_untrainable(None);
            let merge = |trajectories: &[_]| {
                let merge = merge_all(trajectories);
                trained(merge.clone()).ok().filter(|_| drops).unwrap_or(merge)
            };
            let all_drop = parts.iter().any(|part| trained(merge_all(part)).is_err());
            if drops && all_drop {
                continue;  // then nothing of that part is left out
            }
            let (whole, merges) = (merge(&trajectories), parts.iter().map(|part| merge(part)));
            let merges: Vec<_> = merges.collect();
            let merges: Vec<_> = merges.iter().collect();
            prop_assert_eq!(Merge::joined(&merges), Ok(whole.clone()));

            // Also where rows are copies that train nothing, or synthetic.
            let padded = |merge: &Merge, first: usize| {
                let rows = merge.assembly.rows().len();
                let copied = padding.index(whole.assembly.rows().len());
                let picks = (first..first + rows).flat_map(|row| {
                    let pick = Pick { row: Some(row - first), is_padding: row == copied };
                    let synthetic = Pick { row: None, is_padding: true };
                    [Some(pick), (row == copied).then_some(synthetic)]
                });
                (merge.turns.clone(), merge.assembly.picked(&picks.flatten().collect::<Vec<_>>()))
            };
            let mut first = 0;
            let parts: Vec<_> = merges.iter().map(|merge| {
                first += merge.assembly.rows().len();
                padded(merge, first - merge.assembly.rows().len())
            }).collect();
            let parts: Vec<_> = parts.iter().map(|(turns, rows)| (turns, rows)).collect();
            prop_assert_eq!(Assembly::joined(&parts), Ok(padded(&whole, 0)));
        }
    }
}

#[test]
fn parts_that_do_not_go_together() {
    let merge = |rewards| Merge { rewards, ..merged(&[vec![1]], &[vec![2]], &[1], Rule::Exact) };
    let (sum, last) = (merge(MergeRewards::Sum), merge(MergeRewards::Last));
    assert_eq!(Merge::joined(&[&sum, &sum]).map(|joined| joined.rewards), Ok(MergeRewards::Sum));
    assert!(matches!(Merge::joined(&[&sum, &last]), Err(Error::InvalidPlan(_))));
    assert_eq!(Merge::joined(&[]), Err(Error::EmptyBatch(TokenForm::Parts)));
    // Each part can be counted, but not all of them.
    let turns = Turns::new(vec![1 << 62], vec![1]).unwrap();
    let long =
        Merge { assembly: unstopped(|ticks| Assembly::row_per_turn(&turns, ticks)), turns, ..sum };
    assert!(matches!(Merge::joined(&[&long, &long]), Err(Error::InvalidPlan(_))));
}
