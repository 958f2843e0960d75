//! Tables of plans as they come from outside: what is wrong with them, if they are no plan.

/// No row has so many tokens: sums of all of them fit.
const MAX_TOKENS: i64 = 1 << 31;

/// The tables of bins, or of sequences and pieces of them, that lie in bins.
#[derive(Debug, Clone, Copy)]
pub struct BinTables<'a> {
    /// Where bins begin among the pieces, and where the last ends.
    pub offsets: &'a [i64],
    /// The sequence of each piece.
    pub indices: &'a [i64],
    /// Where each piece begins in its sequence.
    pub starts: &'a [i64],
    /// The tokens of each piece; as many pieces as indices and starts.
    pub lens: &'a [i64],
    /// Number of sequences.
    pub sequences: usize,
}

impl BinTables<'_> {
    /// Say why not every token of every sequence lies in exactly one piece.
    pub fn defect(&self) -> Option<String> {
        let (sequences, pieces) = (self.sequences, self.indices.len());
        if !goes_to(self.offsets, pieces) {
            return Some(format!("offsets do not go from 0 to {pieces}"));
        }
        if !self.offsets.is_sorted() {
            return Some("offsets fall".to_owned());
        }
        if pieces < sequences {
            return Some(format!(
                "there are {sequences} sequences, but only {pieces} pieces"
            ));
        }
        let mut is_there = vec![false; sequences];
        for &index in self.indices {
            let place = usize::try_from(index).ok();
            let Some(is_there) = place.and_then(|index| is_there.get_mut(index)) else {
                let last = sequences as i128 - 1;
                return Some(format!("indices are not all from 0 to {last}"));
            };
            *is_there = true;
        }
        for (name, values) in [("starts", self.starts), ("lengths", self.lens)] {
            if values.iter().any(|value| !(0..=MAX_TOKENS).contains(value)) {
                return Some(format!("{name} hold what is no number of tokens"));
            }
        }
        if let Some(index) = is_there.iter().position(|&is_there| !is_there) {
            return Some(format!("sequence {index} is in no bin"));
        }
        self.not_whole()
            .map(|index| format!("sequence {index} is not there whole"))
    }

    /// The first sequence of which a token is in no piece or in two, or that has an empty part.
    fn not_whole(&self) -> Option<i64> {
        let indices = self.indices;
        if indices.len() == self.sequences {
            let piece = self.starts.iter().position(|&start| start != 0);
            return piece.map(|piece| indices[piece]);
        }
        let mut order: Vec<_> = (0..indices.len()).collect();
        order.sort_by_key(|&piece| (indices[piece], self.starts[piece]));
        let parts = order.chunk_by(|&one, &other| indices[one] == indices[other]);
        let is_wrong = |parts: &&[usize]| {
            let mut end = 0;
            parts.iter().any(|&piece| {
                let is_gap =
                    self.starts[piece] != end || (parts.len() > 1 && self.lens[piece] == 0);
                end += self.lens[piece];
                is_gap
            })
        };
        { parts }.find(is_wrong).map(|parts| indices[parts[0]])
    }
}

/// The tables of a step: which row is in which slot.
#[derive(Debug, Clone, Copy)]
pub struct StepTables<'a> {
    /// The row in each slot; -1 is a synthetic one.
    pub rows: &'a [i64],
    /// Which slots are there to fill up.
    pub is_padding: &'a [bool],
    /// Where mini-batches begin, in slots.
    pub mini_batch_offsets: &'a [i64],
    /// Number of ranks.
    pub ranks: usize,
    /// Number of rows.
    pub num_rows: usize,
    /// Where prompts begin, in rows.
    pub prompt_offsets: &'a [i64],
    /// The first prompt of each mini-batch.
    pub mini_batch_prompts: &'a [i64],
    /// Where bins begin, in slots, if rows are packed.
    pub bin_offsets: Option<&'a [i64]>,
}

impl StepTables<'_> {
    /// Say why they are no plan: a row is not in exactly one slot, or ranks have different numbers.
    pub fn defect(&self) -> Option<String> {
        let slots = self.rows.len();
        if self.is_padding.len() != slots {
            return Some("rows and is_padding differ in length".to_owned());
        }
        let num_prompts = self.prompt_offsets.len().saturating_sub(1);
        for (name, values, end) in [
            ("mini_batch_offsets", self.mini_batch_offsets, slots),
            ("prompt_offsets", self.prompt_offsets, self.num_rows),
            ("mini_batch_prompts", self.mini_batch_prompts, num_prompts),
        ] {
            if values.len() < 2 || !goes_to(values, end) {
                return Some(format!("{name} do not go from 0 to {end}"));
            }
            if !values.is_sorted() {
                return Some(format!("{name} fall"));
            }
        }
        if self.mini_batch_prompts.len() != self.mini_batch_offsets.len() {
            return Some("mini_batch_prompts and mini_batch_offsets differ in length".to_owned());
        }
        self.uneven().or_else(|| self.misplaced())
    }

    /// Say why ranks have different numbers of rows, or of bins.
    fn uneven(&self) -> Option<String> {
        let mut ends = self.mini_batch_offsets.to_vec();
        let mut units = "rows";
        if let Some(bins) = self.bin_offsets {
            let slots = self.rows.len();
            if !goes_to(bins, slots) || bins.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Some(format!("bin_offsets do not rise from 0 to {slots}"));
            }
            for end in &mut ends {
                match bins.binary_search(end) {
                    Ok(bin) => *end = i64::try_from(bin).unwrap_or(i64::MAX),
                    Err(_) => return Some("a bin is in two mini-batches".to_owned()),
                }
            }
            units = "bins";
        }
        let is_even = |pair: &[i64]| {
            let count = usize::try_from(pair[1] - pair[0]);
            count.is_ok_and(|count| count.is_multiple_of(self.ranks))
        };
        let are_even = ends.windows(2).all(is_even);
        (!are_even).then(|| format!("ranks have different numbers of {units}"))
    }

    /// Say which rows are in no slot, or in two.
    fn misplaced(&self) -> Option<String> {
        let num_rows = self.num_rows;
        let mut slots_of = vec![0_u8; num_rows];
        let mut are_real = true;
        for (&row, &is_padding) in self.rows.iter().zip(self.is_padding) {
            match usize::try_from(row) {
                Ok(row) if row < num_rows => {
                    slots_of[row] = slots_of[row].saturating_add(u8::from(!is_padding));
                }
                Err(_) if row == -1 => are_real &= is_padding,
                _ => {
                    let last = num_rows as i128 - 1;
                    return Some(format!("rows are not all from -1 to {last}"));
                }
            }
        }
        let is_once = are_real && slots_of.iter().all(|&count| count == 1);
        (!is_once).then(|| "not every row is in one slot".to_owned())
    }
}

fn goes_to(offsets: &[i64], end: usize) -> bool {
    let end = i64::try_from(end).ok();
    offsets.first() == Some(&0) && offsets.last().copied() == end
}
