//! The load of an item or a bin.

/// The load of an item or a bin, or the limit of a bin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Tokens.
    pub size: usize,
    /// Sequences.
    pub count: usize,
    /// Cost of the sequences.
    pub cost: f64,
}

impl Load {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            size: self.size.saturating_add(other.size),
            count: self.count.saturating_add(other.count),
            cost: self.cost + other.cost,
        }
    }

    /// True if no part of it exceeds the limit.
    pub fn is_within(self, limit: Self) -> bool {
        self.size <= limit.size && self.count <= limit.count && self.cost <= limit.cost
    }

    /// True if a bin of this load has capacity for the item.
    pub fn has_room_for(self, item: Self, limit: Self) -> bool {
        self.plus(item).is_within(limit)
    }
}
