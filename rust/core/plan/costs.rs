//! Costs: what a forward and backward pass over bins of sequences takes, linear in what they hold.

/// Attention of some layers that does not see all tokens before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// How many tokens a window, or a chunk, has. Not 0.
    pub len: usize,
    /// The share of layers, from 0 to 1.
    pub share: f64,
}

/// What tokens, pairs of tokens in attention, sequences and bins cost: finite, not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Of a token.
    pub per_token: f64,
    /// Of a token that looks at one token, itself or before it, in all layers.
    pub per_pair: f64,
    /// Of a sequence.
    pub per_sequence: f64,
    /// Of a bin, or a micro-batch.
    pub per_bin: f64,
    /// Layers that see as many tokens, the last ones.
    pub window: Option<Span>,
    /// Layers that see those of the same chunk.
    pub chunk: Option<Span>,
}

impl Costs {
    /// The pairs of tokens in a sequence's attention, on the average of all layers.
    #[allow(clippy::cast_precision_loss, reason = "costs are floats")]
    pub fn pairs(&self, len: usize) -> f64 {
        let triangle = |len: usize| {
            let len = len as f64;
            len * (len + 1.0) / 2.0
        };
        let windowed = |window: usize| {
            let begin = len.min(window);
            triangle(begin) + (len - begin) as f64 * window as f64
        };
        let chunked = |chunk: usize| (len / chunk) as f64 * triangle(chunk) + triangle(len % chunk);
        let share = |span: Option<Span>| span.map_or(0.0, |span| span.share);
        let full = (1.0 - share(self.window) - share(self.chunk)).max(0.0);
        let mut pairs = full * triangle(len);
        if let Some(Span { len, share }) = self.window {
            pairs += share * windowed(len);
        }
        if let Some(Span { len, share }) = self.chunk {
            pairs += share * chunked(len);
        }
        pairs
    }

    /// What a sequence costs.
    pub fn of(&self, len: usize) -> f64 {
        self.per_sequence + self.of_tokens(len)
    }

    /// What the first tokens of a sequence cost: nothing if there are none.
    #[allow(clippy::cast_precision_loss, reason = "costs are floats")]
    pub fn of_tokens(&self, len: usize) -> f64 {
        self.per_token * len as f64 + self.per_pair * self.pairs(len)
    }
}
