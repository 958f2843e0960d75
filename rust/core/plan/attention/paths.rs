//! Attention by paths: queries in segments, and for each the keys from the root of its tree to its
//! end, gathered for kernels that take offsets of variable lengths.

use super::{Placement, to_i32};
use crate::error::{Error, Result};
use crate::memory::{add, check_room};

/// A span of positions without a fork inside: each of them attends to its path up to itself. A run
/// of padding is a segment of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathSegment {
    /// The first position, counted over all output rows.
    begin: usize,
    /// Number of tokens before it in its path.
    depth: usize,
    /// Number of positions.
    pub len: usize,
}

impl PathSegment {
    /// Number of keys from the root to its end.
    #[must_use]
    pub fn path_len(&self) -> usize {
        self.depth + self.len
    }
}

/// The segments of all positions, in order.
#[derive(Debug)]
pub struct AttentionPaths {
    /// The segments.
    pub segments: Vec<PathSegment>,
    /// Number of keys of all paths.
    pub keys: usize,
}

impl Placement {
    /// The segments of queries.
    ///
    /// # Errors
    /// As [`Placement::subtrees`].
    pub fn attention_paths(&self) -> Result<AttentionPaths> {
        let runs = self.subtrees()?;
        let mut of_rows = runs.segments().iter().peekable();
        // The segments before the current run in its path, with the ends of their subtrees.
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut segments: Vec<PathSegment> = Vec::new();
        for row in 0..runs.rows() {
            let place = row * runs.width();
            let (mut covered, mut subtree_end) = (place, None);
            while let Some(run) = of_rows.next_if(|run| run.dst_row == row) {
                let (begin, end) = (place + run.dst_col, place + run.from);
                // Without a fork between the two, all subtrees end at one column.
                let joins = covered == begin && subtree_end == Some(end);
                if let Some(last) = segments.last_mut().filter(|_| joins) {
                    last.len += run.len;
                } else {
                    pad(&mut segments, covered, begin)?;
                    while path.pop_if(|(_, end)| *end <= begin).is_some() {}
                    let depth = path.last().map_or(0, |&(parent, _)| segments[parent].path_len());
                    path.push((segments.len(), end));
                    add(&mut segments, PathSegment { begin, depth, len: run.len })?;
                }
                (covered, subtree_end) = (begin + run.len, Some(end));
            }
            pad(&mut segments, covered, place + runs.width())?;
        }
        check_room(segments.len())?;
        let keys = segments.iter().map(PathSegment::path_len).sum();
        Ok(AttentionPaths { segments, keys })
    }
}

/// Add padding that attends to itself, if there is any.
fn pad(segments: &mut Vec<PathSegment>, begin: usize, end: usize) -> Result<()> {
    let (depth, len) = (0, end - begin);
    match len {
        0 => Ok(()),
        _ => add(segments, PathSegment { begin, depth, len }),
    }
}

impl AttentionPaths {
    /// Check that int32 counts all positions and keys.
    ///
    /// # Errors
    /// [`Error::TooManyKeys`].
    pub fn check(&self) -> Result<()> {
        let end = self.segments.last().map_or(0, |last| last.begin + last.len);
        let count = self.keys.max(end);
        i32::try_from(count).map_or(Err(Error::TooManyKeys { count }), |_| Ok(()))
    }

    /// Write the positions of keys, path by path.
    ///
    /// # Panics
    /// If there is room for another number of keys, which is not checked.
    pub fn write_keys(&self, keys: &mut [i64]) {
        // The path to the current segment: the number of tokens up to the end of each part, and
        // its first key.
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut begin = 0;
        for segment in &self.segments {
            let (depth, count) = (segment.depth, segment.path_len());
            while path.pop_if(|(end, _)| *end > depth).is_some() {}
            let (before, of_path) = keys.split_at_mut(begin);
            let (shared, own) = of_path[..count].split_at_mut(depth);
            if let Some(&(_, parent)) = path.last() {
                shared.copy_from_slice(&before[parent..][..depth]);
            }
            for (key, position) in own.iter_mut().zip(i64::from(to_i32(segment.begin))..) {
                *key = position;
            }
            path.push((count, begin));
            begin += count;
        }
    }
}
