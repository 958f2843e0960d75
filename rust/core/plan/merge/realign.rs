//! Turns also continue a group whose sampled tokens re-tokenisation changed: the next prompt is
//! right.

use super::{Decision, Difference, Exact, Group, Policy, Streams};
use crate::error::Result;
use crate::plan::Piece;

/// As [`Exact`](super::Exact), but a difference near the end of the group is no break: sampled
/// tokens that changed are masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Realign {
    /// The masked tokens.
    pub masked: Masked,
    /// Maximum distance of a difference from the end of the group, unless it lies in the last
    /// response.
    pub max_drift_tokens: usize,
    /// Turns break at this number of tokens: with [`Masked::Response`], in their response (slime);
    /// with [`Masked::Tail`], in the group from the difference on (TRL).
    pub fork_threshold: Option<usize>,
}

/// The sampled tokens masked where the next prompt differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masked {
    /// The whole response, and later ones (slime).
    Response,
    /// Tokens from the difference on (TRL).
    Tail,
    /// Tokens from the difference on, except the end of the response if it occurs at another
    /// position.
    Span,
}

impl Policy for Realign {
    fn decide(&mut self, turn: usize, groups: &[Group], streams: &Streams) -> Result<Decision> {
        let decision = Exact.decide(turn, groups, streams)?;
        let (Decision::Open(Some(difference)), Some(open)) = (&decision, groups.last()) else {
            return Ok(decision);
        };
        let Difference { from, position } = *difference;
        let turns = streams.turns;
        let end = turns.stream_len(from);
        let is_drift =
            position >= turns.prompt_lens()[from] || end - position <= self.max_drift_tokens;
        let is_long = self.fork_threshold.is_some_and(|threshold| match self.masked {
            Masked::Response => turns.response_lens()[turn] >= threshold,
            Masked::Tail => end - position >= threshold,
            Masked::Span => false,
        });
        if position < open.prompt_len || !is_drift || is_long {
            return Ok(decision);
        }
        let survivors = self.survivors(open, position, turn, streams)?;
        Ok(Decision::Realign(groups.len() - 1, *difference, survivors))
    }
}

impl Realign {
    /// The pieces of a group that remain if the prompt of `turn` differs from `position` on.
    fn survivors(
        self,
        group: &Group,
        position: usize,
        turn: usize,
        streams: &Streams,
    ) -> Result<Vec<Piece>> {
        let at = position - group.prompt_len;
        let cut = group.pieces.iter().find(|piece| (piece.start..piece.end()).contains(&at));
        let before = group.pieces.iter().filter(|piece| piece.start < at);
        if self.masked == Masked::Response {
            let stands = |piece: &&Piece| cut.is_none_or(|cut| piece.turn < cut.turn);
            return Ok(before.filter(stands).copied().collect());
        }
        let mut survivors: Vec<_> =
            before.map(|piece| Piece { len: piece.len.min(at - piece.start), ..*piece }).collect();
        if self.masked == Masked::Span
            && let Some(cut) = cut
        {
            let from = cut.from + at - cut.start;
            let mut rest = vec![0; streams.turns.response_lens()[cut.turn] - from];
            streams.read(cut.turn, streams.turns.prompt_lens()[cut.turn] + from, &mut rest)?;
            let mut prompt = vec![0; streams.turns.prompt_lens()[turn] - position];
            streams.read(turn, position, &mut prompt)?;
            let pause = || streams.tokens.pause();
            let (start, len) = longest_suffix(&rest, &prompt, pause)?;
            if len > 0 {
                survivors.push(Piece {
                    from: from + rest.len() - len,
                    start: at + start,
                    len,
                    ..*cut
                });
            }
        }
        Ok(survivors)
    }
}

/// The longest suffix of `tokens` that occurs in `text`: its first position, and its length.
fn longest_suffix(
    tokens: &[i64],
    text: &[i64],
    pause: impl Fn() -> Result<()>,
) -> Result<(usize, usize)> {
    /// Tokens between two pauses.
    const CHUNK: usize = 1 << 16;
    // Reversed, it is a prefix, which the Knuth-Morris-Pratt algorithm finds in one pass.
    let pattern: Vec<_> = tokens.iter().rev().collect();
    let mut borders = vec![0; pattern.len()];
    let extended = |borders: &[usize], mut len: usize, token: &i64| {
        while len > 0 && (len == pattern.len() || pattern[len] != token) {
            len = borders[len - 1];
        }
        len + usize::from(pattern.get(len).is_some_and(|next| *next == token))
    };
    for index in 1..pattern.len() {
        if index % CHUNK == 0 {
            pause()?;
        }
        borders[index] = extended(&borders, borders[index - 1], pattern[index]);
    }
    let (mut len, mut best) = (0, (0, 0));
    for (start, token) in text.iter().enumerate().rev() {
        if start % CHUNK == 0 {
            pause()?;
        }
        len = extended(&borders, len, token);
        if len >= best.1 {
            best = (start, len);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    fn longest_suffix(tokens: &[i64], text: &[i64]) -> (usize, usize) {
        super::longest_suffix(tokens, text, || Ok(())).unwrap()
    }

    #[test]
    fn the_longest_suffix_is_found_where_it_stands_first() {
        assert_eq!(longest_suffix(&[1, 2, 3], &[9, 2, 3, 4, 2, 3]), (1, 2));
        assert_eq!(longest_suffix(&[1, 2, 3], &[2, 3, 1, 2, 3]), (2, 3));
        assert_eq!(longest_suffix(&[1, 1, 1], &[1, 1, 2, 1]), (0, 2));
        assert_eq!(longest_suffix(&[1, 1], &[1, 1, 1]), (0, 2));
        assert_eq!(longest_suffix(&[1, 2], &[1, 1]).1, 0);
        assert_eq!(longest_suffix(&[], &[1]).1, 0);
        assert_eq!(longest_suffix(&[1], &[]).1, 0);
    }

    #[test]
    fn the_longest_suffix_is_that_of_trying_all() {
        let words = |len: u32| (0..3_usize.pow(len)).map(move |word| digits(word, len));
        for tokens in (0..5).flat_map(words) {
            for text in (0..6).flat_map(words) {
                let tried = (0..tokens.len()).find_map(|from| {
                    let suffix = &tokens[from..];
                    let start = text.windows(suffix.len()).position(|part| part == suffix)?;
                    Some((start, suffix.len()))
                });
                let found = longest_suffix(&tokens, &text);
                assert_eq!(Some(found).filter(|(_, len)| *len > 0), tried);
            }
        }
    }

    fn digits(word: usize, len: u32) -> Vec<i64> {
        (0..len).map(|place| i64::from(word as u32 / 3_u32.pow(place) % 3)).collect()
    }
}
