//! Plans: small integer tables that say what goes where. No token is in them.

mod assembly;
mod gather;
mod placement;

pub use assembly::{Assembly, Piece, Row};
pub use gather::{Of, Shift, gather_places};
pub use placement::{Align, Band, Grid, Layout, Placement, Segment, Widths};
