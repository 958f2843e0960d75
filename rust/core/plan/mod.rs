//! Plans: small integer tables that say what goes where. No token is in them.

mod assembly;
mod attention;
mod bins;
mod chunks;
mod costs;
mod gather;
mod joining;
mod layout;
pub mod merge;
pub mod pack;
mod packed;
pub mod partition;
mod placement;
mod rank_bins;
mod shard;
pub mod share;
mod step;
mod tables;
mod trained;
mod tree;
mod turns;

pub use assembly::{Assembly, Pick, Piece, Row};
pub use bins::{Bins, Span};
pub use chunks::{Chunk, CpRank};
pub use costs::{Costs, Span as AttentionSpan};
pub use gather::{Of, Per, Places, Shift, Values, gather_places};
pub use layout::{BinSource, Form, Layout, LayoutSpec, PackedSpec, TreeSource, TreeSpec};
pub use packed::{BinLayout, Extent, PaddingAs};
pub use placement::{Align, Band, Grid, Longest, Placement, Segment, Widths};
pub use rank_bins::{Deal, RankBins, Rows as PackedRows, deal_bins};
pub use shard::{Shard, ShardBins, WidthsOf};
pub use step::{Assignment, Cause, Indivisible, MAX_SLOTS, Padding, Slot, Slots, Split};
pub use tables::{BinTables, StepTables};
pub use trained::Unpredicted;
pub use tree::Paths;
pub use turns::{Along, TokenForm, Turns};
