//! What an item or a bin has.

/// What an item has, a bin holds, or may hold at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Tokens.
    pub size: usize,
    /// Sequences.
    pub count: usize,
    /// What they cost.
    pub cost: f64,
}

impl Load {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            size: self.size.saturating_add(other.size),
            count: self.count.saturating_add(other.count),
            cost: self.cost + other.cost,
        }
    }

    /// Whether nothing of it is above the limit.
    pub fn is_within(self, limit: Self) -> bool {
        self.size <= limit.size && self.count <= limit.count && self.cost <= limit.cost
    }

    /// Whether a bin that holds this can take the item as well.
    pub fn has_room_for(self, item: Self, limit: Self) -> bool {
        self.plus(item).is_within(limit)
    }
}
