//! Turns go on with whichever group of their trajectory they can: sub-agents, retries, folding.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Difference, Group, Policy, Step, Streams};
use crate::column::Tokens;

/// Ids that are read at a time.
const CHUNK: usize = 1 << 10;

/// All groups of a trajectory stay open. A turn joins the one whose tokens are the longest prefix of
/// its prompt, of equal ones the one that was opened first, as prime-rl's interleaved rollouts do.
#[derive(Debug, Clone, Default)]
pub struct Branch {
    /// Groups by the length and the hash of their tokens, so that a prompt's prefixes find them.
    open: BTreeMap<usize, HashMap<u64, BTreeSet<usize>>>,
    /// The hash of each group's tokens.
    hashes: Vec<u64>,
}

impl<C: Tokens> Policy<C> for Branch {
    fn begin(&mut self) {
        self.open.clear();
        self.hashes.clear();
    }

    fn step(
        &mut self,
        turn: usize,
        groups: &[Group],
        streams: &Streams<C>,
    ) -> Result<Step, C::Error> {
        let turns = streams.turns;
        let mut hash = PrefixHash::of_turn(turn);
        let mut candidates: Vec<usize> = Vec::new();
        for (&len, by_hash) in self.open.range(..=turns.prompt_lens()[turn]) {
            if let Some(found) = by_hash.get(&hash.up_to(len, streams)?) {
                candidates.extend(found.iter().rev());
            }
        }
        let end = turns.stream_len(turn);
        let hash = hash.up_to(end, streams)?;
        for &group in candidates.iter().rev() {
            let last = groups[group].last;
            let len = turns.stream_len(last);
            // A hash may be that of other tokens: only a comparison tells.
            if streams.common_prefix(last, turn)? == len {
                self.remove(group, len);
                self.hashes[group] = hash;
                self.insert(group, end);
                return Ok(Step::Join(group));
            }
        }
        self.hashes.push(hash);
        self.insert(groups.len(), end);
        if groups.is_empty() {
            return Ok(Step::Open(None));
        }
        let from = turn - 1;
        let position = streams.common_prefix(from, turn)?;
        Ok(Step::Open(Some(Difference { from, position })))
    }
}

impl Branch {
    fn insert(&mut self, group: usize, len: usize) {
        let by_hash = self.open.entry(len).or_default();
        by_hash.entry(self.hashes[group]).or_default().insert(group);
    }

    fn remove(&mut self, group: usize, len: usize) {
        let Some(by_hash) = self.open.get_mut(&len) else {
            return;
        };
        let hash = self.hashes[group];
        if let Some(groups) = by_hash.get_mut(&hash) {
            groups.remove(&group);
            if groups.is_empty() {
                by_hash.remove(&hash);
            }
        }
        if by_hash.is_empty() {
            self.open.remove(&len);
        }
    }
}

/// A polynomial over a turn's first tokens, modulo the prime 2^61 - 1.
struct PrefixHash {
    turn: usize,
    len: usize,
    value: u64,
}

impl PrefixHash {
    const PRIME: u64 = (1 << 61) - 1;
    /// Any number will do that is not small.
    const BASE: u128 = 0x0123_4567_89AB_CDEF;

    fn of_turn(turn: usize) -> Self {
        Self {
            turn,
            len: 0,
            value: 0,
        }
    }

    /// The hash of the first `len` tokens, of which no fewer are asked than before.
    fn up_to<C: Tokens>(&mut self, len: usize, streams: &Streams<C>) -> Result<u64, C::Error> {
        let mut ids = [0; CHUNK];
        while self.len < len {
            let ids = &mut ids[..CHUNK.min(len - self.len)];
            streams.read(self.turn, self.len, ids)?;
            for &id in &*ids {
                self.push(id);
            }
            self.len += ids.len();
        }
        Ok(self.value)
    }

    fn push(&mut self, id: i64) {
        // From 1 on, so that zeros count.
        let id = u128::from(id.cast_unsigned()) + 1;
        let product = u128::from(self.value) * Self::BASE + id;
        // 2^61 is 1, so what lies above that bit is added below; twice leaves at most one prime.
        let folded = (product & u128::from(Self::PRIME)) + (product >> 61);
        let folded = (folded as u64 & Self::PRIME) + (folded >> 61) as u64;
        self.value = if folded >= Self::PRIME {
            folded - Self::PRIME
        } else {
            folded
        };
    }
}
