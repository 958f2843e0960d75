//! Next fit: each item goes to the last bin, or opens the next.

use super::{ItemBins, Items, Load};
use crate::error::Result;
use crate::ticks::Ticks;

/// Pack items in order.
///
/// # Errors
/// Those of `ticks`.
pub fn pack(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let mut packed = ItemBins {
        offsets: vec![0],
        items: (0..items.len()).collect(),
    };
    let mut bin: Option<Load> = None;
    for item in 0..items.len() {
        ticks.done(1)?;
        let load = items.get(item);
        bin = Some(match bin {
            Some(bin) if bin.has_room_for(load, limit) => bin.plus(load),
            Some(_) => {
                packed.offsets.push(item);
                load
            }
            None => load,
        });
    }
    if bin.is_some() {
        packed.offsets.push(items.len());
    }
    Ok(packed)
}
