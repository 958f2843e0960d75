//! One call, by the conventions of its source.

use std::borrow::Cow;

use super::schema::{COUNTS, Ids, Numbers};

/// An error of a call, which continues its name.
#[derive(Debug)]
pub struct Wrong {
    /// The error.
    pub reason: String,
    /// True for fewer values than tokens.
    pub is_short: bool,
}

impl Wrong {
    /// An error.
    pub fn new(reason: String) -> Self {
        Self {
            reason,
            is_short: false,
        }
    }
}

/// The values of a call, as its source has them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Call<'a> {
    /// Ids and lengths by [`Ids`].
    pub ids: [Option<&'a [i32]>; COUNTS.0],
    /// Numbers by [`Numbers`].
    pub numbers: [Option<&'a [f32]>; COUNTS.1],
}

/// Columns of numbers that are not negative, with their names in errors.
const MASKS: [(Numbers, &str); 4] = [
    (Numbers::LossMask, "loss mask"),
    (Numbers::AttentionMask, "attention mask"),
    (Numbers::Trains, "flags"),
    (Numbers::Masked, "flags"),
];

/// The tokens of a call.
pub struct Tokens<'a> {
    /// Its prompt, if the source has it.
    pub prompt: Option<Cow<'a, [i32]>>,
    /// Its response.
    pub response: Cow<'a, [i32]>,
    /// Number of values that a column over the whole sequence lacks at the beginning.
    lead: usize,
    /// The tokens that are padding, as an attention mask.
    padding: Option<Padding<'a>>,
}

/// An attention mask over prompt and response, and its split.
struct Padding<'a> {
    mask: &'a [f32],
    split: usize,
}

impl<'a> Call<'a> {
    fn ids(&self, column: Ids) -> Option<&'a [i32]> {
        self.ids[column as usize]
    }

    /// A column of numbers.
    pub fn numbers(&self, column: Numbers) -> Option<&'a [f32]> {
        self.numbers[column as usize]
    }

    /// True if the call has a prompt of its own.
    pub fn has_prompt(&self) -> bool {
        self.ids(Ids::Prompts).is_some()
    }

    /// True if the call has a response.
    pub fn has_response(&self) -> bool {
        self.response().is_some()
    }

    /// False for a call that the source excludes from training.
    pub fn trains(&self) -> bool {
        let flag = |column, default| self.numbers(column).map_or(default, |flag| flag[0] != 0.0);
        flag(Numbers::Trains, true) && !flag(Numbers::Masked, false)
    }

    fn response(&self) -> Option<&'a [i32]> {
        let own = [Ids::Responses, Ids::Sequences];
        let others = [Ids::LogprobIds, Ids::LogprobTokens];
        own.into_iter()
            .chain(others)
            .find_map(|column| self.ids(column))
    }

    /// Check that masks are weights, that there is one of what a call has one of, and that
    /// log-probabilities are those of the response's tokens.
    ///
    /// # Errors
    /// The first number or token that is wrong.
    pub fn check(&self) -> Result<(), Wrong> {
        for (column, name) in MASKS {
            let mask = self.numbers(column).unwrap_or(&[]);
            if let Some(at) = mask
                .iter()
                .position(|one| !(0.0..f32::INFINITY).contains(one))
            {
                return Err(Wrong::new(format!(
                    "has {} at item {at} of its {name}, which are finite numbers from 0 on",
                    mask[at]
                )));
            }
        }
        let ids = [Ids::PromptLens, Ids::ResponseLens].map(|one| self.ids(one).map(<[_]>::len));
        let flags = [Numbers::Trains, Numbers::Masked].map(|one| self.numbers(one).map(<[_]>::len));
        if let Some(count) = { ids.into_iter().chain(flags) }
            .flatten()
            .find(|len| *len != 1)
        {
            let found = tally(count, "number");
            return Err(Wrong::new(format!(
                "has {found} in place of one length or flag"
            )));
        }
        let response = self.response().unwrap_or(&[]);
        for column in [Ids::LogprobIds, Ids::LogprobTokens] {
            let mut pairs = self
                .ids(column)
                .unwrap_or(&[])
                .iter()
                .zip(response)
                .enumerate();
            if let Some((at, (found, expected))) = pairs.find(|(_, (found, id))| found != id) {
                return Err(Wrong::new(format!(
                    "has log-probabilities of other tokens than its response: token {at} is \
                     {found}, but {expected} in the response"
                )));
            }
        }
        Ok(())
    }

    /// The tokens of prompt and response.
    ///
    /// # Errors
    /// No response, lengths that exceed the sequence, targets that are not the sequence's, and an
    /// attention mask of another length.
    pub fn tokens(&self) -> Result<Tokens<'a>, Wrong> {
        let missing = || Wrong::new("has no token ids of a response".to_owned());
        let is_split = self.has_prompt() && self.ids(Ids::Responses).is_some();
        let is_whole = !is_split && self.ids(Ids::Sequences).is_some();
        let mut tokens = if is_whole {
            self.split()?
        } else {
            Tokens {
                prompt: self.ids(Ids::Prompts).map(Cow::Borrowed),
                response: Cow::Borrowed(self.response().ok_or_else(missing)?),
                lead: 0,
                padding: None,
            }
        };
        if let (Some(mask), false) = (self.numbers(Numbers::AttentionMask), is_whole) {
            let split = tokens.prompt.as_ref().map_or(0, |prompt| prompt.len());
            let count = split + tokens.response.len();
            if mask.len() != count {
                return Err(Wrong::new(format!(
                    "has an attention mask of {}, but prompt and response have {}",
                    tally(mask.len(), "item"),
                    tally(count, "token")
                )));
            }
            let of_prompt = |prompt: &Cow<[i32]>| kept(prompt, &mask[..split]);
            tokens.prompt = tokens.prompt.as_ref().map(of_prompt);
            tokens.response = kept(&tokens.response, &mask[split..]);
            tokens.padding = Some(Padding { mask, split });
        }
        Ok(tokens)
    }

    /// Prompt and response of a sequence.
    fn split(&self) -> Result<Tokens<'a>, Wrong> {
        let mut whole = Cow::Borrowed(self.ids(Ids::Sequences).unwrap_or(&[]));
        let mut lead = 0;
        if let Some(targets) = self.ids(Ids::Targets) {
            if self.numbers(Numbers::LossMask).is_none() {
                return Err(Wrong::new(
                    "has targets, but neither weights nor a mask".to_owned(),
                ));
            }
            let count = whole.len();
            if targets.len() != count || count > 0 && whole[1..] != targets[..count - 1] {
                return Err(Wrong::new(
                    "has targets that are not its sequence from the second token on".to_owned(),
                ));
            }
            lead = usize::from(count > 0);
            whole = Cow::Owned(whole[..lead].iter().chain(targets).copied().collect());
        }
        let count = whole.len();
        let number = |column| Some(*self.ids(column)?.first()?);
        let len = |name: &str, len: i32| {
            let len = usize::try_from(len).ok().filter(|len| *len <= count);
            len.ok_or_else(|| {
                Wrong::new(format!(
                    "has {name}, but its sequence has {}",
                    tally(count, "token")
                ))
            })
        };
        let split = if let Some(found) = number(Ids::PromptLens) {
            len(&format!("{found} prompt tokens"), found)?
        } else if let Some(found) = number(Ids::ResponseLens) {
            count - len(&format!("{found} response tokens"), found)?
        } else {
            let mask = self.numbers(Numbers::LossMask);
            let mask = mask.filter(|mask| mask.len() + lead == count);
            let first = mask.and_then(|mask| mask.iter().position(|&value| value != 0.0));
            mask.map_or(0, |mask| first.unwrap_or(mask.len()) + lead)
        };
        let split = split.max(lead);
        let (prompt, response) = match whole {
            Cow::Borrowed(whole) => (whole[..split].into(), whole[split..].into()),
            Cow::Owned(whole) => (
                whole[..split].to_vec().into(),
                whole[split..].to_vec().into(),
            ),
        };
        Ok(Tokens {
            prompt: Some(prompt),
            response,
            lead,
            padding: None,
        })
    }
}

impl Tokens<'_> {
    /// One value for each response token: of values over the response, over the whole sequence, or
    /// over the tokens at 1 of `mask`.
    ///
    /// # Errors
    /// Another number of values.
    pub fn along<'v>(
        &self,
        values: &'v [f32],
        mask: Option<&[f32]>,
        name: &str,
    ) -> Result<Cow<'v, [f32]>, Wrong> {
        let found = values.len();
        if let Some(Padding { mask, split }) = self.padding {
            let of_response = match found {
                _ if found == mask.len() => Some(&values[split..]),
                _ if found == mask.len() - split => Some(values),
                _ => None,
            };
            if let Some(values) = of_response {
                return Ok(kept(values, &mask[split..]));
            }
        }
        let count = self.response.len();
        let prompt = self.prompt.as_ref().map_or(0, |prompt| prompt.len());
        if found == count {
            return Ok(Cow::Borrowed(values));
        }
        if found + self.lead == prompt + count {
            return Ok(Cow::Borrowed(&values[prompt - self.lead..]));
        }
        let trained = |mask: &&[f32]| mask.iter().filter(|&&value| value != 0.0).count() == found;
        if let Some(mask) = mask.filter(trained) {
            let mut values = values.iter().copied();
            let mut one = |mask: &f32| (*mask != 0.0).then(|| values.next()).flatten();
            return Ok(mask.iter().map(|mask| one(mask).unwrap_or(0.0)).collect());
        }
        let text = match name {
            "loss mask" => format!("has a loss mask of {}", tally(found, "item")),
            _ => format!("has {found} {name}"),
        };
        Err(Wrong {
            reason: format!("{text}, but its response has {}", tally(count, "token")),
            is_short: found < count,
        })
    }
}

/// The values at 1 of a mask.
fn kept<'v, T: Copy>(values: &[T], mask: &[f32]) -> Cow<'v, [T]> {
    let pairs = values.iter().zip(mask);
    pairs
        .filter(|(_, mask)| **mask != 0.0)
        .map(|(value, _)| *value)
        .collect()
}

/// A number of things.
fn tally(count: usize, thing: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{end}")
}
