//! Merging on slices alone: rows are those that loops over all tokens of all groups find.

use fastcollate::plan::merge::{
    Branch, Exact, Masked, Merge, MergeRewards, Policy, Realign, Streams,
};
use fastcollate::plan::{Assembly, Pick, TokenForm, Turns};
use fastcollate::{Check, Error, Slice, SliceColumn, TokenStreams};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Turn and position in its response, of a token that was sampled and stands.
type Origin = Option<(usize, usize)>;

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
    let next = (
        prop_oneof![4 => Just(0), 1 => 0..4_usize],
        prop::option::of(change),
        words(),
        words(),
    );
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

/// Turns that are one row so far.
#[derive(Debug, Clone)]
struct Group {
    prompt_len: usize,
    last: usize,
    tokens: Vec<i64>,
    origins: Vec<Origin>,
}

/// What has to come of turns: the rows, the row of every turn, and turn, position and whether it was
/// realigned of every break.
#[derive(Debug, PartialEq)]
struct Found {
    rows: Vec<(usize, usize, Vec<Origin>)>,
    turn_rows: Vec<Option<usize>>,
    breaks: Vec<(usize, usize, bool)>,
}

/// The way in which turns join.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Exact,
    Branch,
    Realign(Realign),
}

fn expected(prompts: &[Vec<i64>], responses: &[Vec<i64>], ends: &[usize], rule: Rule) -> Found {
    let (mut rows, mut turn_rows, mut breaks) = (vec![], vec![], vec![]);
    let mut begin = 0;
    for &end in ends {
        let mut groups: Vec<Group> = vec![];
        let mut group_of_turn = vec![];
        for turn in begin..end {
            let (prompt, response) = (&prompts[turn], &responses[turn]);
            let open = match rule {
                Rule::Branch => 0,
                _ => groups.len().saturating_sub(1),
            };
            let mut joined = (open..groups.len())
                .filter(|&group| prompt.starts_with(&groups[group].tokens))
                .rev()
                .max_by_key(|&group| groups[group].tokens.len());
            let last = groups.iter().position(|group| group.last + 1 == turn);
            if let (None, Some(last)) = (joined, last) {
                let group = &groups[last];
                let common = group.tokens.iter().zip(prompt);
                let position = common.take_while(|(a, b)| a == b).count();
                let origins = match rule {
                    Rule::Realign(rule) => {
                        realigned(group, position, turn, prompts, responses, rule)
                    }
                    _ => None,
                };
                breaks.push((turn, position, origins.is_some()));
                if let Some(origins) = origins {
                    groups[last].origins = origins;
                    joined = Some(last);
                }
            }
            let joined = joined.unwrap_or_else(|| {
                groups.push(Group {
                    prompt_len: prompt.len(),
                    last: turn,
                    tokens: vec![],
                    origins: vec![],
                });
                groups.len() - 1
            });
            let group = &mut groups[joined];
            group.last = turn;
            group.tokens = [&prompt[..], response].concat();
            group.origins.resize(prompt.len(), None);
            group
                .origins
                .extend((0..response.len()).map(|at| Some((turn, at))));
            group_of_turn.push(joined);
        }
        let mut order: Vec<_> = (0..groups.len()).collect();
        order.sort_by_key(|&group| groups[group].last);
        turn_rows.extend(group_of_turn.iter().map(|joined| {
            let place = order.iter().position(|group| group == joined);
            Some(rows.len() + place.unwrap())
        }));
        rows.extend(order.iter().map(|&group| {
            let Group {
                last,
                prompt_len,
                origins,
                ..
            } = &groups[group];
            (*last, *prompt_len, origins[*prompt_len..].to_vec())
        }));
        begin = end;
    }
    Found {
        rows,
        turn_rows,
        breaks,
    }
}

/// The origins of the tokens of a prompt that differs from its group, if it joins it all the same.
fn realigned(
    group: &Group,
    position: usize,
    turn: usize,
    prompts: &[Vec<i64>],
    responses: &[Vec<i64>],
    rule: Realign,
) -> Option<Vec<Origin>> {
    let left = group.tokens.len() - position;
    let size = match rule.masked {
        Masked::Response => responses[turn].len(),
        Masked::Tail => left,
        Masked::Span => 0,
    };
    let is_long = rule.masked != Masked::Span
        && rule
            .fork_threshold
            .is_some_and(|threshold| size >= threshold);
    let is_near = position >= prompts[group.last].len() || left <= rule.max_drift_tokens;
    if position < group.prompt_len || is_long || !is_near {
        return None;
    }
    let prompt = &prompts[turn];
    let mut origins = group.origins[..position].to_vec();
    origins.resize(prompt.len(), None);
    let Some((cut, from)) = group.origins[position] else {
        return Some(origins);
    };
    match rule.masked {
        Masked::Tail => {}
        Masked::Response => {
            for origin in &mut origins {
                *origin = origin.filter(|&(turn, _)| turn < cut);
            }
        }
        Masked::Span => {
            let stands = |&at: &usize| {
                let suffix = &responses[cut][at..];
                let mut starts = position..prompt.len();
                starts
                    .find(|&start| prompt[start..].starts_with(suffix))
                    .is_some()
            };
            if let Some(at) = (from..responses[cut].len()).find(stands) {
                let suffix = &responses[cut][at..];
                let start = (position..).find(|&start| prompt[start..].starts_with(suffix));
                for offset in 0..suffix.len() {
                    origins[start.unwrap() + offset] = Some((cut, at + offset));
                }
            }
        }
    }
    Some(origins)
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
    let sequences: Vec<_> = pairs
        .map(|(prompt, own)| [&prompt[..], own].concat())
        .collect();
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

fn found(merge: &Merge) -> Found {
    let rows = { merge.assembly.rows().iter().enumerate() }.map(|(index, row)| {
        let mut origins = vec![None; row.response_len];
        for piece in merge.assembly.pieces(index) {
            for offset in 0..piece.len {
                let origin = &mut origins[piece.start + offset];
                assert_eq!(*origin, None);
                *origin = Some((piece.turn, piece.from + offset));
            }
        }
        (row.source.unwrap(), row.prompt_len, origins)
    });
    let breaks = merge.breaks.iter();
    Found {
        rows: rows.collect(),
        turn_rows: merge.turn_rows.clone(),
        breaks: breaks
            .map(|it| (it.turn, it.difference.position, it.is_realigned))
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn rows_are_those_of_the_loops(
        trajectories in trajectories(),
        max_drift_tokens in prop_oneof![Just(0), 1..5_usize],
        fork_threshold in prop::option::of(1..6_usize),
    ) {
        let (prompts, responses, ends) = written_out(&trajectories);
        let realigns = [Masked::Tail, Masked::Response, Masked::Span].map(|masked| {
            Rule::Realign(Realign { masked, max_drift_tokens, fork_threshold })
        });
        for rule in [&[Rule::Exact, Rule::Branch][..], &realigns].concat() {
            let merge = merged(&prompts, &responses, &ends, rule);
            let expected = expected(&prompts, &responses, &ends, rule);
            prop_assert_eq!(found(&merge), expected, "{:?}", rule);
            let stands: usize = merge.assembly.piece_table().0.iter().map(|piece| piece.len).sum();
            let masked: usize = merge.masked(&merge.turns).iter().map(|(_, range)| range.len()).sum();
            prop_assert_eq!(stands + masked, responses.iter().map(Vec::len).sum::<usize>());
            prop_assert_eq!(merge.clone().checked(), Ok(merge));
        }
    }

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
    let merge = |rewards| Merge {
        rewards,
        ..merged(&[vec![1]], &[vec![2]], &[1], Rule::Exact)
    };
    let (sum, last) = (merge(MergeRewards::Sum), merge(MergeRewards::Last));
    assert_eq!(
        Merge::joined(&[&sum, &sum]).map(|joined| joined.rewards),
        Ok(MergeRewards::Sum)
    );
    assert!(matches!(
        Merge::joined(&[&sum, &last]),
        Err(Error::InvalidPlan(_))
    ));
    assert_eq!(Merge::joined(&[]), Err(Error::EmptyBatch(TokenForm::Parts)));
    // Each part can be counted, but not all of them.
    let long = Merge {
        turns: Turns::new(vec![1 << 62], vec![1]).unwrap(),
        assembly: Assembly::row_per_turn(&Turns::new(vec![1 << 62], vec![1]).unwrap()),
        ..sum
    };
    assert!(matches!(
        Merge::joined(&[&long, &long]),
        Err(Error::InvalidPlan(_))
    ));
}
