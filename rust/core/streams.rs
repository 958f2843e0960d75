//! Token streams of turns, given as prompt and response, or as whole sequences.

use std::convert::Infallible;

use crate::column::{At, Column, FieldColumn, Lookahead, Tokens};
use crate::error::Result;
use crate::plan::{TokenForm, Turns};

/// The token ids of turns.
#[derive(Debug, Clone)]
pub enum TokenStreams<C> {
    /// Prompts and their responses.
    Parts {
        /// The prompts.
        prompts: C,
        /// The responses.
        responses: C,
    },
    /// Sequences that begin with the prompt.
    Whole {
        /// The sequences.
        sequences: C,
        /// Number of prompt tokens of each.
        prompt_lens: Vec<usize>,
    },
}

/// The token ids of turns, independent of the column type.
pub trait AnyStreams: Column<i32> + Column<i64> {
    /// Length of the common prefix of the streams of two turns, for `len` tokens from position
    /// `from` on.
    ///
    /// # Errors
    /// Those of the columns.
    fn common_len(&self, turns: &Turns, pair: [usize; 2], from: usize, len: usize)
    -> Result<usize>;

    /// Call `Tokens::pause` of the columns, which may end long work.
    ///
    /// # Errors
    /// The reason to end it.
    fn pause(&self) -> Result<()>;
}

impl<C> TokenStreams<C> {
    /// The same streams over other columns.
    ///
    /// # Errors
    /// Those of `column`.
    pub fn try_map<'a, D, E>(
        &'a self,
        mut column: impl FnMut(&'a C) -> Result<D, E>,
    ) -> Result<TokenStreams<D>, E> {
        Ok(match self {
            Self::Parts { prompts, responses } => {
                TokenStreams::Parts { prompts: column(prompts)?, responses: column(responses)? }
            }
            Self::Whole { sequences, prompt_lens } => TokenStreams::Whole {
                sequences: column(sequences)?,
                prompt_lens: prompt_lens.clone(),
            },
        })
    }

    /// As [`try_map`](Self::try_map), with a function that cannot fail.
    pub fn map<'a, D>(&'a self, mut column: impl FnMut(&'a C) -> D) -> TokenStreams<D> {
        let Ok(mapped) = self.try_map(|one| Ok::<_, Infallible>(column(one)));
        mapped
    }

    /// The column of a token of a stream, its place there, and the number of tokens of the stream
    /// from there to the end of that column.
    fn at(&self, turns: &Turns, turn: usize, token: usize) -> (&C, At, usize) {
        let (column, begin, end) = match self {
            Self::Parts { prompts, responses } => {
                let prompt_len = turns.prompt_lens()[turn];
                if token < prompt_len {
                    (prompts, 0, prompt_len)
                } else {
                    (responses, prompt_len, turns.stream_len(turn))
                }
            }
            Self::Whole { sequences, .. } => (sequences, 0, turns.stream_len(turn)),
        };
        let at = At { turn, token: token - begin };
        (column, at, end - token)
    }
}

/// A row is the stream of a turn.
impl<T, C: Column<T>> Column<T> for TokenStreams<C> {
    fn row_len(&self, turn: usize) -> usize {
        match self {
            Self::Parts { prompts, responses } => prompts.row_len(turn) + responses.row_len(turn),
            Self::Whole { sequences, .. } => sequences.row_len(turn),
        }
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let (prompts, responses) = match self {
            Self::Parts { prompts, responses } => (prompts, responses),
            Self::Whole { sequences, .. } => return sequences.read(turn, from, out),
        };
        let prompt_len = prompts.row_len(turn);
        let from_prompt = prompt_len.saturating_sub(from).min(out.len());
        let (prompt, response) = out.split_at_mut(from_prompt);
        if !prompt.is_empty() {
            prompts.read(turn, from, prompt)?;
        }
        if !response.is_empty() {
            responses.read(turn, from.saturating_sub(prompt_len), response)?;
        }
        Ok(())
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        match self {
            Self::Parts { prompts, responses } => {
                prompts.announce(turn, from, lookahead);
                let prompt_len = prompts.row_len(turn);
                responses.announce(turn, from.saturating_sub(prompt_len), lookahead);
            }
            Self::Whole { sequences, .. } => sequences.announce(turn, from, lookahead),
        }
    }
}

impl<C: FieldColumn> TokenStreams<C> {
    /// The lengths of the prompts and responses.
    ///
    /// # Errors
    /// As [`Turns::new`] and [`Turns::of_sequences`].
    pub fn turns(&self) -> Result<Turns> {
        match self {
            Self::Parts { prompts, responses } => {
                let chosen = prompts.chosen();
                if let (Some(first), Some(second)) = (chosen, responses.chosen()) {
                    TokenForm::Parts.check_counts(first.total, "responses", second.total)?;
                }
                Turns::among(prompts.lens()?, responses.lens()?, chosen.cloned())
            }
            Self::Whole { sequences, prompt_lens } => {
                let chosen = sequences.chosen().cloned();
                Turns::of_sequences(&sequences.lens()?, prompt_lens.clone(), chosen)
            }
        }
    }
}

impl<C: Tokens + Column<i32>> AnyStreams for TokenStreams<C> {
    fn common_len(
        &self,
        turns: &Turns,
        [a, b]: [usize; 2],
        from: usize,
        len: usize,
    ) -> Result<usize> {
        let end = from + len;
        let mut token = from;
        while token < end {
            let [(a, a_at, a_len), (b, b_at, b_len)] =
                [a, b].map(|turn| self.at(turns, turn, token));
            let len = a_len.min(b_len).min(end - token);
            let common = a.common_len(a_at, b, b_at, len)?;
            token += common;
            if common < len {
                break;
            }
        }
        Ok(token - from)
    }

    fn pause(&self) -> Result<()> {
        match self {
            Self::Parts { prompts, .. } => prompts.pause(),
            Self::Whole { sequences, .. } => sequences.pause(),
        }
    }
}

/// The token streams of turns, and their lengths.
#[derive(Clone, Copy)]
pub struct Streams<'a> {
    /// The tokens.
    pub tokens: &'a dyn AnyStreams,
    /// Their lengths.
    pub turns: &'a Turns,
}

impl Streams<'_> {
    /// Length of the common prefix of a turn's stream and the prompt of a later turn.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn common_prefix(&self, last: usize, next: usize) -> Result<usize> {
        let len = self.turns.stream_len(last);
        self.common(last, next, 0, len.min(self.turns.prompt_lens()[next]))
    }

    /// Number of equal tokens in the streams of two turns from a position on, up to the first
    /// difference and at most `len`.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn common(&self, a: usize, b: usize, from: usize, len: usize) -> Result<usize> {
        self.tokens.common_len(self.turns, [a, b], from, len)
    }

    /// Read the ids of a turn's stream from a position on.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn read(&self, turn: usize, from: usize, out: &mut [i64]) -> Result<()> {
        self.tokens.read(turn, from, out)
    }
}
