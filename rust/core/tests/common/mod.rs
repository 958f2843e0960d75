//! What several tests share.

use fastcollate::plan::pack::{Algorithm, Growth, Oversize, PackSpec, Packer};

/// First fit decreasing into bins of a capacity, without further limits.
pub fn pack_spec(capacity: usize, bins_multiple_of: usize) -> PackSpec {
    PackSpec {
        algorithm: Algorithm::Pack(Packer::FirstFitDecreasing),
        oversize: Oversize::Error,
        capacity,
        max_sequences: usize::MAX,
        multiple_of: 1,
        max_cost: f64::INFINITY,
        bin_cost: 0.0,
        num_bins: None,
        min_bins: 0,
        bins_multiple_of,
        allow_fewer_bins: false,
        growth: Growth::Move,
    }
}
