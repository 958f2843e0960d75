//! Bytes per second of the core's writers, on memory that is mapped already.
//!
//! 256 rows of 100 to 2,000 prompt and 100 to 4,000 response tokens, from `int32` and `float32`
//! slices. `fill` writes as many bytes with one value and is the floor.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fastcollate::plan::{Assembly, Layout, Placement, Turns, WidthOptions};
use fastcollate::write::{Destination, Fill, write_field, write_mask, write_tokens};
use fastcollate::{Check, Slice, SliceColumn, TokenStreams, unstopped};

const ROWS: usize = 256;

/// Lengths spread over a range, without a random number generator: multiples of a prime, folded.
fn lens(from: usize, to: usize) -> Vec<usize> {
    let folded = |row| from + row * 7_919 % (to - from + 1);
    (0..ROWS).map(folded).collect()
}

fn destination<T>(values: &mut [T]) -> Destination<'_, T> {
    let is_zeroed = false;
    Destination { values, is_zeroed }
}

fn writers(criterion: &mut Criterion) {
    let (prompt_lens, response_lens) = (lens(100, 2_000), lens(100, 4_000));
    let turns = Turns::new(prompt_lens.clone(), response_lens.clone()).unwrap();
    let assembly = unstopped(|ticks| Assembly::row_per_turn(&turns, ticks));
    let Placement { sequence, response, .. } =
        Placement::of_layout(&assembly, Layout::Left, WidthOptions::default()).unwrap();
    let ids_of_rows: Vec<i32> = (0..4_000).collect();
    let numbers: Vec<f32> = ids_of_rows.iter().map(|&token| token as f32).collect();
    let of_tokens = |name, lens: &[usize]| {
        let rows = lens.iter().map(|&len| Slice::I32(&ids_of_rows[..len])).collect();
        SliceColumn::new(name, rows, vec![], Check::None)
    };
    let of_numbers = |check| {
        let rows = response_lens.iter().map(|&len| Slice::F32(&numbers[..len]));
        SliceColumn::new("numbers", rows.collect(), vec![], check)
    };
    let tokens = TokenStreams::Parts {
        prompts: of_tokens("prompts", &prompt_lens),
        responses: of_tokens("responses", &response_lens),
    };
    let mut ids = vec![0_i64; sequence.positions()];
    let mut field = vec![0_f32; response.positions()];

    let mut group = criterion.benchmark_group("writers");
    group.throughput(Throughput::Bytes(size_of_val(&ids[..]) as u64));
    group.bench_function("fill int64", |bencher| {
        bencher.iter(|| black_box(&mut ids).fill(black_box(1)));
    });
    group.bench_function("write_tokens", |bencher| {
        bencher.iter(|| {
            let to = destination(black_box(&mut ids));
            write_tokens(&tokens, &assembly, &sequence.whole(), 0, to).unwrap();
        });
    });
    group.bench_function("write_mask", |bencher| {
        bencher.iter(|| write_mask(&sequence.whole(), 1, 0, destination(black_box(&mut ids))));
    });

    group.throughput(Throughput::Bytes(size_of_val(&field[..]) as u64));
    group.bench_function("fill float32", |bencher| {
        bencher.iter(|| black_box(&mut field).fill(black_box(1.0)));
    });
    let fill = Fill { pad: &[0.0], gap: &[0.0] };
    for (name, column) in [
        ("write_field", of_numbers(Check::None)),
        ("write_field, NaN refused", of_numbers(Check::Number)),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let to = destination(black_box(&mut field));
                write_field(&column, &assembly, &response.whole(), fill, to).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, writers);
criterion_main!(benches);
