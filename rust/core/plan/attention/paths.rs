//! Attention by paths: queries in segments, and for each the keys from the root of its tree to its
//! end, gathered for kernels that take offsets of variable lengths.

use std::ops::Range;

use super::{Placement, to_i32, to_usize};
use crate::error::{Error, Result};
use crate::memory::check_room;

/// The number of segments and of keys, and of the longest of each.
///
/// A segment is a span of positions without a fork inside: each of them attends to its path up to
/// itself. A run of padding is a segment of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathSizes {
    /// Number of segments.
    pub segments: usize,
    /// Number of keys of all paths.
    pub keys: usize,
    /// Number of positions of the longest segment.
    pub longest_segment: usize,
    /// Number of keys of the longest path.
    pub longest_path: usize,
}

/// The arrays of paths.
#[derive(Debug)]
pub struct PathTables<'a> {
    /// Offsets of segments in the positions, with the end.
    pub segments: &'a mut [i32],
    /// Offsets of paths in the keys, with the end.
    pub paths: &'a mut [i32],
    /// The positions of the keys, path by path.
    pub keys: &'a mut [i64],
}

/// A segment: its first position, the number of tokens before it in its path, and its length.
#[derive(Debug, Clone, Copy)]
struct PathSegment {
    begin: usize,
    depth: usize,
    len: usize,
}

impl Placement {
    /// The sizes of the paths.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn path_sizes(&self) -> Result<PathSizes> {
        check_room(self.sequence.segments().len())?;
        let mut sizes = PathSizes::default();
        self.each_segment(|PathSegment { depth, len, .. }| {
            sizes.segments += 1;
            sizes.keys += depth + len;
            sizes.longest_segment = sizes.longest_segment.max(len);
            sizes.longest_path = sizes.longest_path.max(depth + len);
        });
        Ok(sizes)
    }

    /// Check that int32 counts all positions and keys.
    ///
    /// # Errors
    /// [`Error::TooManyKeys`].
    pub fn check_paths(&self, sizes: &PathSizes) -> Result<()> {
        let count = sizes.keys.max(self.sequence.positions());
        match i32::try_from(count) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::TooManyKeys { count }),
        }
    }

    /// Write the paths, with positions counted over all output rows.
    ///
    /// # Panics
    /// If the tables are of other sizes, which are not checked.
    pub fn write_paths(&self, tables: PathTables) {
        let PathTables {
            segments,
            paths,
            keys,
        } = tables;
        let mut at = segments.len() - 1;
        segments[at] = to_i32(self.sequence.positions());
        // Offsets of paths are depths at first.
        self.each_segment(|segment| {
            paths[at] = to_i32(segment.depth);
            at -= 1;
            segments[at] = to_i32(segment.begin);
        });
        paths[0] = 0;
        // The path to the current segment: the number of tokens up to the end of each part, and
        // its first key.
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut begin = 0;
        for (segment, offset) in segments.windows(2).zip(&mut paths[1..]) {
            let (depth, len) = (to_usize(*offset), to_usize(segment[1] - segment[0]));
            while path.pop_if(|(end, _)| *end > depth).is_some() {}
            let (before, of_path) = keys.split_at_mut(begin);
            let (shared, own) = of_path[..depth + len].split_at_mut(depth);
            if let Some(&(_, parent)) = path.last() {
                shared.copy_from_slice(&before[parent..][..depth]);
            }
            for (key, position) in own.iter_mut().zip(i64::from(segment[0])..) {
                *key = position;
            }
            path.push((depth + len, begin));
            begin += depth + len;
            *offset = to_i32(begin);
        }
    }

    /// Call a function with each segment, from the last to the first.
    fn each_segment(&self, mut found: impl FnMut(PathSegment)) {
        let grid = &self.sequence;
        let mut end = grid.segments().len();
        // Depths at which later rows fork from the current path, ascending, and the number of rows
        // that do.
        let mut forks: Vec<(usize, usize)> = Vec::new();
        for row in (0..grid.rows()).rev() {
            let place = row * grid.width();
            let mut covered = place + grid.width();
            // The segment before all found ones, which the one before it may join.
            let mut open: Option<PathSegment> = None;
            forks.clear();
            while let Some(last) = end.checked_sub(1)
                && grid.segments()[last].dst_row == row
            {
                end = last;
                let segment = &grid.segments()[last];
                if segment.len == 0 {
                    continue;
                }
                let (begin, depth) = (place + segment.dst_col, self.first_depth(segment));
                let padding = PathSegment::padding(begin + segment.len..covered);
                if padding.len > 0 {
                    open.replace(padding).map(&mut found);
                }
                covered = begin;
                // A row that continues a whole one is no fork: it joins the last part.
                let is_whole = |&mut (fork, count): &mut (usize, usize)| {
                    fork == depth + segment.len && count == 1
                };
                let mut joins = padding.len == 0 && forks.pop_if(is_whole).is_some();
                let mut part_end = segment.len;
                loop {
                    let fork = forks.pop_if(|(fork, _)| *fork > depth);
                    let at = fork.map_or(0, |(fork, _)| fork - depth);
                    if at < part_end {
                        let joined = open.take_if(|_| std::mem::take(&mut joins));
                        open.take().map(&mut found);
                        open = Some(PathSegment {
                            begin: begin + at,
                            depth: depth + at,
                            len: part_end - at + joined.map_or(0, |after| after.len),
                        });
                        part_end = at;
                    }
                    if fork.is_none() {
                        break;
                    }
                }
                match forks.last_mut() {
                    _ if depth == 0 => {}
                    Some((fork, count)) if *fork == depth => *count += 1,
                    _ => forks.push((depth, 1)),
                }
            }
            open.map(&mut found);
            let padding = PathSegment::padding(place..covered);
            if padding.len > 0 {
                found(padding);
            }
        }
    }
}

impl PathSegment {
    /// Padding that attends to itself.
    fn padding(positions: Range<usize>) -> Self {
        Self {
            begin: positions.start,
            depth: 0,
            len: positions.len(),
        }
    }
}
