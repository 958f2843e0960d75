//! Costs of a forward and backward pass over bins of sequences, linear in their contents.

/// Layers whose attention is limited to a window or a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Number of tokens in a window or a chunk. Not 0.
    pub len: usize,
    /// The share of layers, from 0 to 1.
    pub share: f64,
}

/// Costs of tokens, pairs of tokens in attention, sequences and bins: finite, not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Of a token.
    pub per_token: f64,
    /// Of a token that attends to one token, itself or an earlier one, in all layers.
    pub per_pair: f64,
    /// Of a sequence.
    pub per_sequence: f64,
    /// Of a bin, or a micro-batch.
    pub per_bin: f64,
    /// Of a segment of a tree in attention.
    pub per_segment: f64,
    /// Of a key on the path of a segment.
    pub per_key: f64,
    /// Layers that attend to a window of the last tokens.
    pub window: Option<Span>,
    /// Layers that attend within a chunk.
    pub chunk: Option<Span>,
}

impl Costs {
    /// The pairs of tokens in a sequence's attention, averaged over all layers.
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

    /// The cost of a sequence: one segment, whose path it is.
    #[allow(clippy::cast_precision_loss, reason = "costs are floats")]
    pub fn of(&self, len: usize) -> f64 {
        let of_path = self.per_segment + self.per_key * len as f64;
        self.per_sequence + of_path + self.of_tokens(len)
    }

    /// The cost of the first `len` tokens of a sequence, without those of the sequence itself
    /// and of its path.
    #[allow(clippy::cast_precision_loss, reason = "costs are floats")]
    pub fn of_tokens(&self, len: usize) -> f64 {
        self.per_token * len as f64 + self.per_pair * self.pairs(len)
    }
}
