//! Hashes of prompts: 128 bits that identify a prompt without its tokens.

use crate::error::Result;
use crate::plan::merge::Streams;

/// Number of tokens read at once: a multiple of two, the block of the hash.
const CHUNK: usize = 1 << 10;

/// The hash of each turn's prompt: `MurmurHash3_x64_128`, seed 0, of its tokens as little-endian
/// int64.
///
/// The same tokens have the same hash on every machine, whatever columns they are in. Different
/// prompts collide with a probability of 2^-128 per pair; collisions can be constructed on purpose,
/// so prompts matched by hash have to be compared.
///
/// # Errors
/// Those of the columns.
pub fn prompt_hashes(streams: &Streams) -> Result<Vec<[u64; 2]>> {
    let lens = streams.turns.prompt_lens();
    let mut chunk = [0; CHUNK];
    let mut hashes: Vec<[u64; 2]> = Vec::with_capacity(lens.len());
    for (turn, &len) in lens.iter().enumerate() {
        streams.tokens.pause()?;
        // Samples of a prompt are adjacent, and comparing is faster than hashing.
        if turn > 0 && lens[turn - 1] == len && streams.common(turn - 1, turn, 0, len)? == len {
            hashes.push(hashes[turn - 1]);
            continue;
        }
        let mut state = [0; 2];
        for from in (0..len).step_by(CHUNK) {
            let tokens = &mut chunk[..CHUNK.min(len - from)];
            streams.read(turn, from, tokens)?;
            mix(&mut state, tokens);
        }
        hashes.push(finished(state, len));
    }
    Ok(hashes)
}

const FACTORS: [u64; 2] = [0x87c3_7b91_1142_53d5, 0x4cf5_ad43_2745_937f];

/// Add tokens, two to a block. Only the last call may have an odd number.
fn mix(state: &mut [u64; 2], tokens: &[i64]) {
    let [a, b] = state;
    let first = |token: i64| {
        let scaled = token.cast_unsigned().wrapping_mul(FACTORS[0]);
        scaled.rotate_left(31).wrapping_mul(FACTORS[1])
    };
    let (blocks, rest) = tokens.as_chunks::<2>();
    for &[one, other] in blocks {
        *a = (*a ^ first(one)).rotate_left(27).wrapping_add(*b);
        *a = a.wrapping_mul(5).wrapping_add(0x52dc_e729);
        let scaled = other.cast_unsigned().wrapping_mul(FACTORS[1]);
        *b ^= scaled.rotate_left(33).wrapping_mul(FACTORS[0]);
        *b = b.rotate_left(31).wrapping_add(*a);
        *b = b.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    if let [last] = *rest {
        *a ^= first(last);
    }
}

/// The hash, after all `tokens` were added.
fn finished([a, b]: [u64; 2], tokens: usize) -> [u64; 2] {
    let bytes = 8 * tokens as u64;
    let spread = |mut value: u64| {
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            value = (value ^ (value >> 33)).wrapping_mul(factor);
        }
        value ^ (value >> 33)
    };
    let added = |[a, b]: [u64; 2]| {
        let a = a.wrapping_add(b);
        [a, b.wrapping_add(a)]
    };
    added(added([a ^ bytes, b ^ bytes]).map(spread))
}
