//! The turns: the input of every plan.

use std::sync::Arc;

use crate::error::{Error, Result};

/// The lengths of turns' prompts and responses, in the order of the input: of all turns, or of
/// chosen ones, which have an index here beside their number in the input.
#[derive(Debug, Clone)]
pub struct Turns {
    prompt_lens: Vec<usize>,
    response_lens: Vec<usize>,
    form: TokenForm,
    chosen: Option<Arc<Chosen>>,
}

/// Some turns of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Their numbers in the input, ascending.
    pub numbers: Vec<usize>,
    /// Number of turns of the input.
    pub total: usize,
}

impl Chosen {
    /// The turns of these numbers, in any order.
    pub fn new(mut numbers: Vec<usize>, total: usize) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        Self { numbers, total }
    }

    /// True if there are others, and all numbers are of turns of the input.
    pub fn is_part(&self) -> bool {
        self.numbers.len() < self.total && self.numbers.last() < Some(&self.total)
    }

    /// The index of a turn.
    pub fn index(&self, number: usize) -> Option<usize> {
        self.numbers.binary_search(&number).ok()
    }

    /// The chosen ones of one value per turn.
    pub fn of<T: Copy>(&self, values: &[T]) -> Vec<T> {
        self.numbers.iter().map(|&number| values[number]).collect()
    }
}

/// The form in which tokens of turns are given, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenForm {
    /// As prompts and responses.
    Parts,
    /// As sequences, which begin with their prompts.
    Whole,
}

/// The tokens that a field or a model's output has one value each for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// The responses.
    Response,
    /// The sequences.
    Sequence,
}

impl TokenForm {
    /// Check that there are turns, and the same number of rows in a field.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`] and [`Error::RowCount`].
    pub fn check_counts(self, turns: usize, field: &str, found: usize) -> Result<()> {
        if turns == 0 && found == 0 {
            return Err(Error::EmptyBatch(self));
        }
        if found == turns {
            return Ok(());
        }
        Err(Error::RowCount { field: field.to_owned(), found, expected: turns, form: self })
    }

    /// The argument with a row for each turn.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Parts => "prompts",
            Self::Whole => "sequences",
        }
    }

    /// A turn's prompt.
    pub fn prompt(self, turn: usize) -> String {
        match self {
            Self::Parts => format!("prompts[{turn}]"),
            Self::Whole => format!("the prompt of sequences[{turn}]"),
        }
    }

    /// A turn's response.
    pub fn response(self, turn: usize) -> String {
        match self {
            Self::Parts => format!("responses[{turn}]"),
            Self::Whole => format!("the response of sequences[{turn}]"),
        }
    }

    /// A turn's response if it has no prompt.
    pub fn sequence(self, turn: usize) -> String {
        match self {
            Self::Parts => self.response(turn),
            Self::Whole => format!("sequences[{turn}]"),
        }
    }

    /// The tokens of a turn.
    pub fn stream(self, turn: usize) -> String {
        match self {
            Self::Parts => format!("prompts[{turn}] + responses[{turn}] have"),
            Self::Whole => format!("sequences[{turn}] has"),
        }
    }
}

/// Turns of the same lengths are equal, whatever the form of their tokens.
impl PartialEq for Turns {
    fn eq(&self, other: &Self) -> bool {
        self.prompt_lens == other.prompt_lens
            && self.response_lens == other.response_lens
            && self.chosen == other.chosen
    }
}

impl Eq for Turns {}

impl Turns {
    /// Turns with prompts and responses of the given lengths.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`], [`Error::RowCount`], and [`Error::InvalidPlan`] for more tokens than
    /// can be counted.
    pub fn new(prompt_lens: Vec<usize>, response_lens: Vec<usize>) -> Result<Self> {
        Self::among(prompt_lens, response_lens, None)
    }

    /// As [`new`](Self::new), of chosen turns of an input.
    ///
    /// # Errors
    /// As [`new`](Self::new); but there may be no turn.
    pub fn among(
        prompt_lens: Vec<usize>,
        response_lens: Vec<usize>,
        chosen: Option<Arc<Chosen>>,
    ) -> Result<Self> {
        let (form, counts) = (TokenForm::Parts, [prompt_lens.len(), response_lens.len()]);
        if chosen.is_none() || counts != [0; 2] {
            form.check_counts(counts[0], "responses", counts[1])?;
        }
        let mut end = 0_usize;
        let mut is_countable = |lens: (&usize, &usize)| {
            let after = end.checked_add(*lens.0).and_then(|end| end.checked_add(*lens.1));
            end = after.unwrap_or(end);
            after.is_some_and(|end| isize::try_from(end).is_ok())
        };
        let mut lens = prompt_lens.iter().zip(&response_lens);
        if let Some(turn) = lens.position(|lens| !is_countable(lens)) {
            let reason = format!("turns up to {turn} have more tokens than can be counted");
            return Err(Error::InvalidPlan(reason));
        }
        Ok(Self { prompt_lens, response_lens, form, chosen })
    }

    /// Turns with sequences of the given lengths, which begin with prompts of `prompt_lens`: of all
    /// turns, or of chosen ones.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`], [`Error::RowCount`], and [`Error::PromptTooLong`].
    pub fn of_sequences(
        lens: &[usize],
        prompt_lens: Vec<usize>,
        chosen: Option<Arc<Chosen>>,
    ) -> Result<Self> {
        let form = TokenForm::Whole;
        if chosen.is_none() {
            form.check_counts(lens.len(), "prompt_lens", prompt_lens.len())?;
        }
        let number = |row| chosen.as_ref().map_or(row, |chosen| chosen.numbers[row]);
        let pairs = lens.iter().zip(&prompt_lens).enumerate();
        let response_lens = pairs.map(|(row, (&len, &prompt_len))| {
            len.checked_sub(prompt_len).ok_or(Error::PromptTooLong {
                row: number(row),
                found: prompt_len,
                len,
            })
        });
        Ok(Self { response_lens: response_lens.collect::<Result<_>>()?, prompt_lens, form, chosen })
    }

    /// The lengths of some of these turns, by number.
    #[must_use]
    pub fn only(&self, numbers: Vec<usize>) -> Self {
        let mut chosen = Chosen::new(numbers, self.total());
        chosen.numbers.retain(|&number| self.index(number).is_some());
        let indices = chosen.numbers.iter().filter_map(|&number| self.index(number));
        let (prompt_lens, response_lens) =
            indices.map(|index| (self.prompt_lens[index], self.response_lens[index])).unzip();
        let chosen = (chosen.numbers.len() < chosen.total).then(|| Arc::new(chosen));
        Self { prompt_lens, response_lens, form: self.form, chosen }
    }

    /// Rows of a single field, as prompts of the given lengths; may be empty.
    pub fn of_rows(lens: Vec<usize>) -> Self {
        Self {
            response_lens: vec![0; lens.len()],
            prompt_lens: lens,
            form: TokenForm::Parts,
            chosen: None,
        }
    }

    /// Number of turns here.
    pub fn count(&self) -> usize {
        self.prompt_lens.len()
    }

    /// Number of turns of the input.
    pub fn total(&self) -> usize {
        self.chosen().map_or(self.count(), |chosen| chosen.total)
    }

    /// The turns here, if not all of the input.
    pub fn chosen(&self) -> Option<&Arc<Chosen>> {
        self.chosen.as_ref()
    }

    /// The number in the input of the turn at this index.
    pub fn number(&self, index: usize) -> usize {
        self.chosen().map_or(index, |chosen| chosen.numbers[index])
    }

    /// The index of the turn with this number in the input.
    pub fn index(&self, number: usize) -> Option<usize> {
        match &self.chosen {
            Some(chosen) => chosen.index(number),
            None => (number < self.count()).then_some(number),
        }
    }

    /// The form of the tokens.
    pub fn form(&self) -> TokenForm {
        self.form
    }

    /// Tokens of every prompt.
    pub fn prompt_lens(&self) -> &[usize] {
        &self.prompt_lens
    }

    /// Tokens of every response.
    pub fn response_lens(&self) -> &[usize] {
        &self.response_lens
    }

    /// Tokens of a turn's prompt and response.
    pub fn stream_len(&self, turn: usize) -> usize {
        self.prompt_lens[turn] + self.response_lens[turn]
    }

    /// Check that a field has one row per turn.
    ///
    /// # Errors
    /// [`Error::RowCount`].
    pub fn check_count(&self, field: &str, found: usize) -> Result<()> {
        self.form.check_counts(self.total(), field, found)
    }

    /// Check that a field has one value per token of its `along`.
    ///
    /// # Errors
    /// As [`check_response_lens`](Self::check_response_lens) and
    /// [`check_stream_lens`](Self::check_stream_lens).
    pub fn check_lens(&self, field: &str, lens: &[usize], align: Align) -> Result<()> {
        match align {
            Align::Response => self.check_response_lens(field, lens),
            Align::Sequence => self.check_stream_lens(field, lens, false),
        }
    }

    /// Offset of a turn's response values in a field.
    pub fn response_start(&self, turn: usize, align: Align) -> usize {
        match align {
            Align::Response => 0,
            Align::Sequence => self.prompt_lens[turn],
        }
    }

    /// Check that a field has one value per response token.
    ///
    /// # Errors
    /// [`Error::RowLength`] naming the first turn of another length.
    pub fn check_response_lens(&self, field: &str, lens: &[usize]) -> Result<()> {
        let mut expected = self.response_lens.iter().zip(lens);
        match expected.position(|(expected, found)| found != expected) {
            None => Ok(()),
            Some(row) => Err(Error::RowLength {
                field: field.to_owned(),
                row: self.number(row),
                found: lens[row],
                expected: self.response_lens[row],
                stream: self.stream_len(row),
                form: self.form,
            }),
        }
    }

    /// Check that a sequence-aligned field has one value per prompt and response token or, where it
    /// `may_lack_last`, for all but the last or none.
    ///
    /// # Errors
    /// [`Error::StreamLength`] naming the first turn of another length.
    pub fn check_stream_lens(
        &self,
        field: &str,
        lens: &[usize],
        may_lack_last: bool,
    ) -> Result<()> {
        for (row, &found) in lens.iter().enumerate() {
            let expected = self.stream_len(row);
            let lacks_last = found == 0 || found + 1 == expected;
            if found != expected && !(may_lack_last && lacks_last) {
                return Err(Error::StreamLength {
                    field: field.to_owned(),
                    row: self.number(row),
                    found,
                    expected,
                    response: self.response_lens[row],
                    form: self.form,
                    may_lack_last,
                });
            }
        }
        Ok(())
    }
}
