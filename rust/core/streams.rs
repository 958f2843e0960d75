//! The token streams of turns, however they are given: prompt and response each, or whole sequences.

use std::convert::Infallible;

use crate::column::{At, Column, FieldColumn, Lookahead, Tokens};
use crate::error::Result;
use crate::plan::Turns;

/// The token ids of turns.
#[derive(Debug, Clone)]
pub enum TokenStreams<C> {
    /// A prompt, and the response to it.
    Parts {
        /// The prompts.
        prompts: C,
        /// The responses.
        responses: C,
    },
    /// A sequence, whose first tokens are the prompt.
    Whole {
        /// The sequences.
        sequences: C,
        /// How many tokens of each are its prompt.
        prompt_lens: Vec<usize>,
    },
}

/// The token ids of turns, whatever columns they are in.
pub trait AnyStreams: Column<i32> + Column<i64> {
    /// How many of `len` tokens from a position on are the same in the streams of two turns, before
    /// the first that is not.
    ///
    /// # Errors
    /// What the columns raise.
    fn common_len(&self, turns: &Turns, pair: [usize; 2], from: usize, len: usize)
    -> Result<usize>;

    /// Tell the columns that long work goes on, which they may end.
    ///
    /// # Errors
    /// Why the work is to end.
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
            Self::Parts { prompts, responses } => TokenStreams::Parts {
                prompts: column(prompts)?,
                responses: column(responses)?,
            },
            Self::Whole {
                sequences,
                prompt_lens,
            } => TokenStreams::Whole {
                sequences: column(sequences)?,
                prompt_lens: prompt_lens.clone(),
            },
        })
    }

    /// As [`try_map`](Self::try_map), for what cannot fail.
    pub fn map<'a, D>(&'a self, mut column: impl FnMut(&'a C) -> D) -> TokenStreams<D> {
        let Ok(mapped) = self.try_map(|one| Ok::<_, Infallible>(column(one)));
        mapped
    }

    /// The column in which a token of a stream is, its place there, and how many tokens of the stream are
    /// in that column from there on.
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
        let at = At {
            turn,
            token: token - begin,
        };
        (column, at, end - token)
    }
}

/// A turn's stream is a row.
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
    /// How long the prompts and responses are.
    ///
    /// # Errors
    /// As [`Turns::new`] and [`Turns::of_sequences`].
    pub fn turns(&self) -> Result<Turns> {
        match self {
            Self::Parts { prompts, responses } => Turns::new(prompts.lens(), responses.lens()),
            Self::Whole {
                sequences,
                prompt_lens,
            } => Turns::of_sequences(&sequences.lens(), prompt_lens.clone()),
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
