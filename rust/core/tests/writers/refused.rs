//! Lengths, widths and tables that contradict each other are refused.

use super::*;

#[test]
fn errors_name_the_place() {
    let column = SliceColumn::new(
        "loss_mask",
        vec![Slice::F32(&[]), Slice::F32(&[1.0, f32::NAN])],
        vec![],
        Check::Number,
    );
    let error = Column::<f32>::read(&column, 1, 1, &mut [0.0]).unwrap_err();
    assert!(
        error.to_string().starts_with("loss_mask[1][1] is NaN"),
        "{error}"
    );

    let column = SliceColumn::new(
        "prompts",
        vec![Slice::U64(&[1, u64::MAX])],
        vec![],
        Check::None,
    );
    let error = Column::<i64>::read(&column, 0, 1, &mut [0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "prompts[0][1] is 18446744073709551615, which does not fit int64"
    );
}

#[test]
fn a_number_per_row_lies_on_the_last_token_of_the_last_piece() {
    let response = Response {
        pieces: vec![(1, 0, 2, true), (3, 1, 2, true), (0, 0, 0, true)],
        tail: 2,
    };
    let (assembly, _) = assemble(&[response]);
    let last = assembly.on_last_token(|_| true).unwrap();
    let piece = Piece {
        turn: 0, // the row's source
        from: 0,
        start: 7,
        len: 1,
        trains: true,
    };
    assert_eq!(last.pieces(0), [piece]);

    let (assembly, _) = assemble(&[Response {
        pieces: vec![],
        tail: 4,
    }]);
    assert_eq!(assembly.on_last_token(|_| true), Err(0));
    let nothing = assembly.on_last_token(|_| false).unwrap();
    assert!(nothing.pieces(0).is_empty());
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    assert_eq!(
        Turns::new(vec![], vec![]),
        Err(Error::EmptyBatch(TokenForm::Parts))
    );
    let error = Turns::new(vec![1, 2], vec![3]).unwrap_err();
    assert_eq!(error.to_string(), "responses has 1 row, but prompts has 2");
    let turns = Turns::new(vec![1, 2], vec![3, 4]).unwrap();
    let error = turns.check_response_lens("logprobs", &[3, 5]);
    let error = error.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("logprobs[1] has 5 items, but responses[1] has 4")
    );
    let error = turns.check_stream_lens("entropy", &[4, 5], false);
    assert!(matches!(error, Err(Error::StreamLength { row: 1, .. })));
    for lens in [[4, 6], [3, 5], [0, 0]] {
        assert!(turns.check_stream_lens("routes", &lens, true).is_ok());
    }
    assert!(turns.check_stream_lens("routes", &[4, 4], true).is_err());
    assert!(turns.check_stream_lens("routes", &[5, 5], true).is_err());
    let assembly = Assembly::row_per_turn(&turns);
    assert!(
        assembly
            .with_response_lens("rewards", &[0, 4], &turns)
            .is_ok()
    );
    let error = assembly
        .with_response_lens("rewards", &[5, 0], &turns)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::RowTooLong {
                row: 0,
                found: 5,
                widest: 4,
                ..
            }
        ),
        "{error}"
    );
    let last = assembly
        .with_last_tokens("loss_mask", &[0, 3], &turns)
        .unwrap();
    let starts = |row| {
        last.pieces(row)
            .iter()
            .map(|piece| (piece.start, piece.len))
    };
    assert_eq!(starts(0).collect::<Vec<_>>(), [(3, 0)]);
    assert_eq!(starts(1).collect::<Vec<_>>(), [(1, 3)]);
    let error = assembly
        .with_last_tokens("loss_mask", &[3, 5], &turns)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("loss_mask[1] has 5 items, but responses[1] has 4")
    );
}

#[test]
fn rows_wider_than_a_fixed_width_are_refused() {
    let assembly = row_per_turn(&[1, 3], &[4, 2]);
    let refuse = |layout, widths| {
        Placement::of_layout(&assembly, layout, widths)
            .unwrap_err()
            .to_string()
    };
    let widths = WidthOptions::default();
    let pad_to = WidthOptions {
        sequence: Some(4),
        ..widths
    };
    let message = refuse(Layout::Left, pad_to);
    assert!(
        message.starts_with("row 0 has 5 tokens, but pad_to is 4"),
        "{message}"
    );
    let prompt = WidthOptions {
        prompt: Some(2),
        ..widths
    };
    let message = refuse(Layout::TwoSegment, prompt);
    assert!(
        message.starts_with("row 1 has 3 prompt tokens, but pad_prompt_to is 2"),
        "{message}"
    );
    let response = WidthOptions {
        response: Some(3),
        ..widths
    };
    let message = refuse(Layout::Right, response);
    assert!(
        message.starts_with("row 0 has 4 response tokens, but"),
        "{message}"
    );
}

#[test]
fn tables_that_are_no_plan_are_refused() {
    let row = Row {
        source: Some(0),
        prompt_len: 1,
        response_len: 4,
        is_padding: false,
    };
    let piece = |start, len| Piece {
        turn: 0,
        from: 0,
        start,
        len,
        trains: true,
    };
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

    let segment = |row, from, len, dst_row, dst_col| Segment {
        row,
        from,
        len,
        dst_row,
        dst_col,
    };
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
    assert!(matches!(
        Grid::new(usize::MAX, 2, vec![]),
        Err(Error::TooLarge { .. })
    ));

    let assembly = row_per_turn(&[1], &[4]);
    let grid = |row, from, len| Grid::new(1, 9, vec![segment(row, from, len, 0, 0)]).unwrap();
    let new =
        |sequence, response| Placement::new(&assembly, Layout::Left, sequence, response, None);
    assert!(new(grid(0, 0, 5), grid(0, 1, 3)).is_ok());
    assert!(new(grid(0, 1, 5), grid(0, 0, 4)).is_err());
    assert!(new(grid(0, 0, 5), grid(0, 0, 5)).is_err());
    assert!(new(grid(1, 0, 1), grid(0, 0, 4)).is_err());
}
