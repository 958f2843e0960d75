//! Writers against a plain model of the plan: for every position, what has to stand there.

use fastcollate::plan::{Assembly, Grid, Layout, Piece, Placement, Row, Segment, Turns};
use fastcollate::write::{
    Destination, Fill, Labels, PositionPadding, write_field, write_labels, write_mask,
    write_positions, write_tokens,
};
use fastcollate::{Check, Column, Error, Slice, SliceColumn, TokenStreams, unstopped};
use proptest::collection::vec;
use proptest::prelude::*;

/// A column of any width per token that knows its values: token `t` of turn `n` is `n, t, 0`, ...
struct Coordinates {
    lens: Vec<usize>,
    inner: usize,
}

impl Coordinates {
    fn value(turn: usize, token: usize, part: usize) -> i64 {
        i64::try_from(1 + (turn * 1_000 + token) * 10 + part).unwrap()
    }
}

impl Column<i64> for Coordinates {
    fn row_len(&self, turn: usize) -> usize {
        self.lens[turn]
    }

    fn read(&self, turn: usize, from: usize, out: &mut [i64]) -> Result<(), Error> {
        assert!(from + out.len() / self.inner <= self.lens[turn]);
        for (index, value) in out.iter_mut().enumerate() {
            *value = Self::value(turn, from + index / self.inner, index % self.inner);
        }
        Ok(())
    }
}

fn integers<'a>(field: &'a str, rows: &'a [Vec<i64>]) -> SliceColumn<'a> {
    let rows = rows.iter().map(|row| Slice::I64(row)).collect();
    SliceColumn::new(field, rows, vec![], Check::None)
}

fn row_per_turn(prompt_lens: &[usize], response_lens: &[usize]) -> Assembly {
    let turns = Turns::new(prompt_lens.to_vec(), response_lens.to_vec()).unwrap();
    unstopped(|ticks| Assembly::row_per_turn(&turns, ticks))
}

/// A response of pieces with gaps before, between and after them, each from a turn of its own.
#[derive(Debug, Clone)]
struct Response {
    /// Gap before the piece, offset in its turn, its length, and whether it trains.
    pieces: Vec<(usize, usize, usize, bool)>,
    tail: usize,
}

fn responses() -> impl Strategy<Value = Vec<Response>> {
    let piece = (0..4_usize, 0..4_usize, 0..5_usize, any::<bool>());
    let response =
        (vec(piece, 0..4), 0..3_usize).prop_map(|(pieces, tail)| Response { pieces, tail });
    vec(response, 1..6)
}

/// The assembly of such responses, and the lengths of the turns their pieces come from.
fn assemble(responses: &[Response]) -> (Assembly, Vec<usize>) {
    let (mut rows, mut pieces, mut offsets, mut lens) = (vec![], vec![], vec![0], vec![]);
    for response in responses {
        let mut start = 0;
        for &(gap, from, len, trains) in &response.pieces {
            start += gap;
            let turn = lens.len();
            pieces.push(Piece { turn, from, start, len, trains });
            lens.push(from + len);
            start += len;
        }
        rows.push(Row {
            source: Some(0),
            prompt_len: 0,
            response_len: start + response.tail,
            is_padding: false,
        });
        offsets.push(pieces.len());
    }
    (Assembly::new(rows, pieces, offsets).unwrap(), lens)
}

/// Each row cut into segments of at most `cut` tokens, with `space` positions before each.
fn scatter(lens: &[usize], cut: usize, space: usize) -> Grid {
    let widest = lens.iter().map(|len| len + space * len.div_ceil(cut)).max();
    let segments = lens.iter().enumerate().flat_map(|(row, &len)| {
        (0..len).step_by(cut).enumerate().map(move |(index, from)| Segment {
            row,
            from,
            len: cut.min(len - from),
            dst_row: row,
            dst_col: from + space * (index + 1),
        })
    });
    Grid::new(lens.len(), widest.unwrap_or(0) + 1, segments.collect()).unwrap()
}

/// What every position of a grid holds: a row and a position in it, or padding.
fn model(grid: &Grid) -> Vec<Option<(usize, usize)>> {
    let mut positions = vec![None; grid.positions()];
    for segment in grid.segments() {
        for index in 0..segment.len {
            let place = segment.dst_row * grid.width() + segment.dst_col + index;
            assert_eq!(positions[place], None);
            positions[place] = Some((segment.row, segment.from + index));
        }
    }
    positions
}

/// Write a grid in slices into memory that holds `before`.
fn in_slices<T: Copy>(
    grid: &Grid,
    slice_positions: usize,
    inner: usize,
    before: T,
    is_zeroed: bool,
    mut write: impl FnMut(&fastcollate::plan::GridSlice, Destination<T>),
) -> Vec<T> {
    let mut all = vec![before; grid.positions() * inner];
    let mut at = 0;
    for slice in grid.slices(slice_positions) {
        assert_eq!(slice.begin, at);
        let values = &mut all[slice.begin * inner..slice.end * inner];
        write(&slice, Destination { values, is_zeroed });
        at = slice.end;
    }
    assert_eq!(at, grid.positions());
    all
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn responses_are_pieces_gaps_and_padding(
        responses in responses(),
        (cut, space, slice_positions) in (1..6_usize, 0..3_usize, 1..40_usize),
        inner in 1..4_usize,
    ) {
        let (assembly, lens) = assemble(&responses);
        let response_lens: Vec<_> = assembly.rows().iter().map(|row| row.response_len).collect();
        let grid = scatter(&response_lens, cut, space);
        let column = Coordinates { lens, inner };
        let pad: Vec<i64> = (0..).map(|part| -10 - part).take(inner).collect();
        let gap: Vec<i64> = (0..).map(|part| -20 - part).take(inner).collect();
        let fill = Fill { pad: &pad, gap: &gap };

        let written = in_slices(&grid, slice_positions, inner, -99, false, |slice, to| {
            write_field(&column, &assembly, slice, fill, to).unwrap();
        });

        let value_at = |row: usize, position: usize, part: usize| {
            let of_piece = assembly.pieces(row).iter().find(|piece| {
                (piece.start..piece.start + piece.len).contains(&position)
                    && piece.trains
            });
            of_piece.map_or(gap[part], |piece| {
                Coordinates::value(piece.turn, piece.from + position - piece.start, part)
            })
        };
        let expected: Vec<_> = model(&grid)
            .into_iter()
            .flat_map(|place| (0..inner).map(move |part| (place, part)))
            .map(|(place, part)| match place {
                Some((row, position)) => value_at(row, position, part),
                None => pad[part],
            })
            .collect();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn tokens_are_prompts_then_responses(
        lens in vec((0..5_usize, 0..5_usize), 1..6),
        (cut, space, slice_positions) in (1..6_usize, 0..3_usize, 1..40_usize),
        pad in -3..3_i64,
        is_zeroed in any::<bool>(),
    ) {
        let (prompt_lens, response_lens): (Vec<_>, Vec<_>) = lens.iter().copied().unzip();
        let assembly = row_per_turn(&prompt_lens, &response_lens);
        let totals: Vec<_> = lens.iter().map(|(prompt, response)| prompt + response).collect();
        let grid = scatter(&totals, cut, space);
        let tokens = TokenStreams::Parts {
            prompts: Coordinates { lens: prompt_lens.clone(), inner: 1 },
            responses: Coordinates { lens: response_lens, inner: 1 },
        };
        let before = if is_zeroed { 0 } else { -99 };

        let written = in_slices(&grid, slice_positions, 1, before, is_zeroed, |slice, to| {
            write_tokens(&tokens, &assembly, slice, pad, to).unwrap();
        });

        let expected: Vec<_> = model(&grid)
            .into_iter()
            .map(|place| match place {
                Some((row, at)) if at < prompt_lens[row] => Coordinates::value(row, at, 0),
                Some((row, at)) => Coordinates::value(row, at - prompt_lens[row], 0),
                None => pad,
            })
            .collect();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn masks_tell_where_segments_lie(
        lens in vec(0..7_usize, 1..6),
        (cut, space, slice_positions) in (1..6_usize, 0..3_usize, 1..40_usize),
        is_zeroed in any::<bool>(),
        (inside, outside) in (0..3_i64, 0..3_i64),
    ) {
        let grid = scatter(&lens, cut, space);
        let before = if is_zeroed { 0 } else { -99 };
        let written = in_slices(&grid, slice_positions, 1, before, is_zeroed, |slice, to| {
            write_mask::<i64>(slice, inside, outside, to);
        });
        let value = |at: &Option<_>| if at.is_some() { inside } else { outside };
        let expected: Vec<_> = model(&grid).iter().map(value).collect();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn positions_count_tokens_and_pad_by_choice(
        lens in vec(0..7_usize, 1..6),
        (cut, space, slice_positions) in (1..6_usize, 0..3_usize, 1..40_usize),
    ) {
        let grid = scatter(&lens, cut, space);
        for padding in [PositionPadding::Zero, PositionPadding::One, PositionPadding::RepeatLast] {
            let written = in_slices(&grid, slice_positions, 1, -99, false, |slice, to| {
                write_positions::<i64>(slice, padding, to);
            });
            let mut last = 0;
            for (place, at) in model(&grid).into_iter().enumerate() {
                if place % grid.width() == 0 {
                    last = 0;
                }
                let expected = match (at, padding) {
                    (Some((_, at)), _) => {
                        last = i64::try_from(at).unwrap();
                        last
                    }
                    (None, PositionPadding::Zero) => 0,
                    (None, PositionPadding::One) => 1,
                    (None, PositionPadding::RepeatLast) => last,
                };
                prop_assert_eq!(written[place], expected);
            }
        }
    }

    #[test]
    fn labels_are_the_ids_that_train(
        responses in responses(),
        prompt_len in 0..5_usize,
        (cut, space, slice_positions) in (1..6_usize, 0..3_usize, 1..40_usize),
        (masked, shifted) in any::<(bool, bool)>(),
    ) {
        let (assembly, turn_lens) = assemble(&responses);
        let rows = assembly.rows().iter().enumerate().map(|(index, row)| Row {
            source: Some(index),
            prompt_len,
            ..*row
        });
        let (pieces, offsets) = assembly.piece_table();
        let assembly =
            Assembly::new(rows.collect(), pieces.to_vec(), offsets.to_vec()).unwrap();
        let response_lens: Vec<_> = assembly.rows().iter().map(|row| row.response_len).collect();
        let lens: Vec<_> = assembly.rows().iter().map(Row::len).collect();
        let grid = scatter(&lens, cut, space);
        // Ids are their coordinates; of every turn, each third token has no weight.
        let ids = |lens: &[usize]| -> Vec<Vec<i64>> {
            let id = |row, at| Coordinates::value(row, at, 0);
            let row = |(row, &len): (usize, &usize)| (0..len).map(|at| id(row, at)).collect();
            lens.iter().enumerate().map(row).collect()
        };
        let (prompts, responses) = (ids(&vec![prompt_len; lens.len()]), ids(&response_lens));
        let weights: Vec<Vec<f64>> = turn_lens
            .iter()
            .map(|&len| (0..len).map(|at| f64::from(u8::from(at % 3 > 0))).collect())
            .collect();
        let tokens = TokenStreams::Parts {
            prompts: integers("prompts", &prompts),
            responses: integers("responses", &responses),
        };
        let weights: Vec<_> = weights.iter().map(|row| Slice::F64(row)).collect();
        let mask = SliceColumn::new("loss_mask", weights, vec![], Check::Number);
        let written = in_slices(&grid, slice_positions, 1, -99, false, |slice, to| {
            let mask = masked.then_some((&mask as _, &assembly));
            let labels = Labels { mask, round: |_| (), shifted, ignored: -100 };
            write_labels(&tokens, labels, &assembly, slice, to).unwrap();
        });

        let label = |row: usize, at: usize| {
            let at = at.checked_sub(prompt_len)?;
            let weight = assembly.pieces(row).iter().find_map(|piece| {
                let inside = at.checked_sub(piece.start).filter(|&offset| offset < piece.len)?;
                piece.trains.then(|| (piece.from + inside) % 3 > 0)
            });
            let trains = weight.is_some_and(|trains| trains || !masked);
            trains.then(|| Coordinates::value(row, at, 0))
        };
        let expected: Vec<_> = model(&grid)
            .into_iter()
            .map(|at| at.and_then(|(row, at)| label(row, at + usize::from(shifted))))
            .map(|label| label.unwrap_or(-100))
            .collect();
        prop_assert_eq!(written, expected);
    }

}

#[test]
fn tables_that_are_no_plan_are_refused() {
    let row = Row { source: Some(0), prompt_len: 1, response_len: 4, is_padding: false };
    let piece = |start, len| Piece { turn: 0, from: 0, start, len, trains: true };
    assert!(Assembly::new(vec![row], vec![piece(0, 2), piece(2, 2)], vec![0, 2]).is_ok());
    for (pieces, offsets) in [
        (vec![piece(0, 5)], vec![0, 1]),
        (vec![piece(0, 3), piece(2, 1)], vec![0, 2]),
        (vec![piece(usize::MAX, 1)], vec![0, 1]),
        (vec![piece(0, 1)], vec![0, 0]),
        (vec![piece(0, 1)], vec![0]),
        (vec![piece(0, 1)], vec![]),
    ] {
        let refused = Assembly::new(vec![row], pieces, offsets);
        assert!(matches!(refused, Err(Error::InvalidPlan(_))), "{refused:?}");
    }

    let segment = |row, from, len, dst_row, dst_col| Segment { row, from, len, dst_row, dst_col };
    for segments in [
        vec![segment(0, 0, 5, 0, 0), segment(0, 0, 1, 0, 4)],
        vec![segment(0, 0, 1, 1, 0), segment(0, 0, 1, 0, 0)],
        vec![segment(0, 0, 6, 1, 0)],
        vec![segment(0, 0, 1, 2, 0)],
        vec![segment(0, 0, 1, 0, 6)],
        vec![segment(0, 0, usize::MAX, 0, 1)],
    ] {
        let refused = Grid::new(2, 5, segments);
        assert!(matches!(refused, Err(Error::InvalidPlan(_))), "{refused:?}");
    }
    assert!(matches!(Grid::new(usize::MAX, 2, vec![]), Err(Error::TooLarge { .. })));

    let assembly = row_per_turn(&[1], &[4]);
    let grid = |row, from, len| Grid::new(1, 9, vec![segment(row, from, len, 0, 0)]).unwrap();
    let new =
        |sequence, response| Placement::new(&assembly, Layout::Left, sequence, response, None);
    assert!(new(grid(0, 0, 5), grid(0, 1, 3)).is_ok());
    assert!(new(grid(0, 1, 5), grid(0, 0, 4)).is_err());
    assert!(new(grid(0, 0, 5), grid(0, 0, 5)).is_err());
    assert!(new(grid(1, 0, 1), grid(0, 0, 4)).is_err());
}
