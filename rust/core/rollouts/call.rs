//! One call, by the conventions of its source.

use std::borrow::Cow;

use super::schema::{COUNT, Column};

/// The values of a call, as its source has them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Call<'a> {
    /// Integers, or the bits of float32.
    pub columns: [Option<&'a [i32]>; COUNT],
}

/// Columns of numbers that are not negative, with their names in errors.
const MASKS: [(Column, &str); 4] = [
    (Column::LossMask, "loss mask"),
    (Column::AttentionMask, "attention mask"),
    (Column::Trains, "flags"),
    (Column::Masked, "flags"),
];

/// The columns of which each gives the tokens of a response, the first that a call has.
const RESPONSES: [Column; 2] = [Column::Responses, Column::Sequences];

/// The tokens of log-probabilities, which stand for the response if there is no other.
const LOGPROB_IDS: [Column; 2] = [Column::LogprobIds, Column::LogprobTokens];

/// Stands for the id of a log-probability without one.
pub const UNKNOWN: i32 = -1;

/// The tokens of a call.
pub struct Tokens<'a> {
    /// Its prompt, if the source has it.
    pub prompt: Option<Cow<'a, [i32]>>,
    /// Its response.
    pub response: Cow<'a, [i32]>,
    /// Number of values that a column over the whole sequence lacks at the beginning.
    lead: usize,
    /// An attention mask over prompt and response, which is 0 on padding, and its split.
    padding: Option<(&'a [f32], usize)>,
}

impl<'a> Call<'a> {
    /// The number of columns.
    pub const COLUMNS: usize = COUNT;

    /// A column of integers.
    pub fn ids(&self, column: Column) -> Option<&'a [i32]> {
        self.columns[column as usize]
    }

    /// A column of float32.
    pub fn numbers(&self, column: Column) -> Option<&'a [f32]> {
        self.ids(column).map(bytemuck::cast_slice)
    }

    /// True if the call has a response.
    pub fn has_response(&self) -> bool {
        self.response().is_some()
    }

    /// False for a call that the source excludes from training.
    pub fn trains(&self) -> bool {
        let flag = |column, default| match self.numbers(column) {
            Some(&[flag, ..]) => flag != 0.0,
            _ => default,
        };
        flag(Column::Trains, true) && !flag(Column::Masked, false)
    }

    fn response(&self) -> Option<&'a [i32]> {
        let is_known = |ids: &&[i32]| !ids.is_empty() && !ids.contains(&UNKNOWN);
        let tokens = RESPONSES.into_iter().find_map(|column| self.ids(column));
        tokens.or_else(|| {
            let mut ids = LOGPROB_IDS.into_iter().filter_map(|column| self.ids(column));
            ids.find(is_known)
        })
    }

    /// Check that masks are weights, and that log-probabilities are those of the response's tokens.
    ///
    /// # Errors
    /// The first number or token that is wrong, as a text that continues the call's name.
    pub fn check(&self) -> Result<(), String> {
        for (column, name) in MASKS {
            let mask = self.numbers(column).unwrap_or(&[]);
            let is_wrong = |one: &f32| !(0.0..f32::INFINITY).contains(one);
            if let Some(at) = mask.iter().position(is_wrong) {
                return Err(format!(
                    "has {} at item {at} of its {name}, whose values are finite numbers from 0 on",
                    mask[at]
                ));
            }
        }
        let response = self.response().unwrap_or(&[]);
        if let Some(ids) = self.ids(Column::LogprobIds).filter(|ids| ids.len() > response.len()) {
            let (found, tokens) = (ids.len(), tally(response.len(), "token"));
            return Err(format!("has {found} log-probabilities, but its response has {tokens}"));
        }
        for ids in LOGPROB_IDS.map(|one| self.ids(one)) {
            let mut pairs = ids.unwrap_or(&[]).iter().zip(response).enumerate();
            let differ =
                |&(_, (found, id)): &(usize, (&i32, &i32))| found != id && *found != UNKNOWN;
            if let Some((at, (found, expected))) = pairs.find(differ) {
                return Err(format!(
                    "has log-probabilities of other tokens than its response: token {at} is \
                     {found}, but {expected} in the response"
                ));
            }
        }
        Ok(())
    }

    /// The tokens of prompt and response.
    ///
    /// # Errors
    /// No response, lengths that exceed the sequence, targets that are not the sequence's, and an
    /// attention mask of another length; each as a text that continues the call's name.
    pub fn tokens(&self) -> Result<Tokens<'a>, String> {
        let (prompt, whole) = (self.ids(Column::Prompts), self.ids(Column::Sequences));
        let is_split = prompt.is_some() && self.ids(Column::Responses).is_some();
        let mut tokens = if let (Some(whole), false) = (whole, is_split) {
            self.split(whole)?
        } else {
            let response = self.response().ok_or("has no token ids of a response")?;
            let prompt = prompt.map(Cow::Borrowed);
            Tokens { prompt, response: Cow::Borrowed(response), lead: 0, padding: None }
        };
        if let Some(mask) = self.numbers(Column::AttentionMask) {
            let split = tokens.prompt.as_ref().map_or(0, |prompt| prompt.len());
            let count = split + tokens.response.len();
            if mask.len() != count {
                return Err(format!(
                    "has an attention mask of {}, but prompt and response have {}",
                    tally(mask.len(), "item"),
                    tally(count, "token")
                ));
            }
            tokens.prompt = tokens.prompt.map(|prompt| kept(&prompt, &mask[..split]));
            tokens.response = kept(&tokens.response, &mask[split..]);
            tokens.padding = Some((mask, split));
        }
        Ok(tokens)
    }

    /// True for a sequence of which no column tells the prompt from the response.
    pub fn is_whole(&self) -> bool {
        let others = [
            Column::Prompts,
            Column::Responses,
            Column::PromptLens,
            Column::ResponseLens,
            Column::LossMask,
        ];
        let has = |column| self.ids(column).is_some();
        has(Column::Sequences) && !others.into_iter().any(has)
    }

    /// Prompt and response of a sequence.
    fn split(&self, whole: &'a [i32]) -> Result<Tokens<'a>, String> {
        let (mut whole, mut lead) = (Cow::Borrowed(whole), 0);
        let mask = self.numbers(Column::LossMask);
        if let Some(targets) = self.ids(Column::Targets) {
            if mask.is_none() {
                return Err("has targets, but neither weights nor a mask".to_owned());
            }
            let count = whole.len();
            if targets.len() != count || count > 0 && whole[1..] != targets[..count - 1] {
                let reason = "has targets that are not its sequence from the second token on";
                return Err(reason.to_owned());
            }
            lead = usize::from(count > 0);
            whole = [&whole[..lead], targets].concat().into();
        }
        let count = whole.len();
        let len = |column, name| {
            let Some(&[found]) = self.ids(column) else {
                return Ok(None);
            };
            let len = usize::try_from(found).ok().filter(|len| *len <= count);
            let tokens = tally(count, "token");
            len.map(Some)
                .ok_or_else(|| format!("has {found} {name} tokens, but its sequence has {tokens}"))
        };
        let attention = self.numbers(Column::AttentionMask).unwrap_or(&[]);
        let is_padded = |until: usize| attention.iter().take(until).any(|&value| value == 0.0);
        let unclear = "has padding, so that its prompt does not end where its length says; leave \
                       out tokens whose attention mask is 0";
        let split = if let Some(prompt) = len(Column::PromptLens, "prompt")? {
            if is_padded(prompt) {
                return Err(unclear.to_owned());
            }
            prompt
        } else if let Some(response) = len(Column::ResponseLens, "response")? {
            if is_padded(count) {
                return Err(unclear.to_owned());
            }
            count - response
        } else {
            let own = mask.filter(|mask| mask.len() + lead == count);
            let first = own.and_then(|mask| mask.iter().position(|&value| value != 0.0));
            let split = own.map(|mask| first.unwrap_or(mask.len()) + lead);
            split.map_or_else(|| self.split_by_part(&whole), Ok)?
        };
        let split = split.max(lead);
        let (prompt, response) = match whole {
            Cow::Borrowed(whole) => (whole[..split].into(), whole[split..].into()),
            Cow::Owned(mut whole) => {
                let response = whole.split_off(split);
                (whole.into(), response.into())
            }
        };
        Ok(Tokens { prompt: Some(prompt), response, lead, padding: None })
    }

    /// The length of a sequence's prompt, by the prompt or the response beside it; else 0.
    fn split_by_part(&self, whole: &[i32]) -> Result<usize, String> {
        let (split, is_part) = match (self.ids(Column::Prompts), self.ids(Column::Responses)) {
            (Some(ids), _) => (Some(ids.len()), whole.starts_with(ids)),
            (None, Some(ids)) => (whole.len().checked_sub(ids.len()), whole.ends_with(ids)),
            (None, None) => (Some(0), true),
        };
        split.filter(|_| is_part).ok_or_else(|| {
            "has a sequence that does not begin with its prompt, or end with its response; leave \
             one of them out, or pass both prompts and responses"
                .to_owned()
        })
    }
}

impl Tokens<'_> {
    /// The attention mask of the response with its padding; empty without one.
    pub fn attention(&self) -> &[f32] {
        self.padding.map_or(&[], |(mask, split)| &mask[split..])
    }

    /// One value for each response token: of values over the response, over the whole sequence, or
    /// over the tokens at 1 of `mask`.
    ///
    /// # Errors
    /// Another number of values, as a text that continues the call's name.
    #[expect(clippy::disallowed_methods, reason = "calls ask for the room first")]
    pub fn along<'v>(
        &self,
        values: &'v [f32],
        mask: Option<&[f32]>,
        name: &str,
    ) -> Result<Cow<'v, [f32]>, String> {
        let (found, count) = (values.len(), self.response.len());
        if let Some((padding, split)) = self.padding {
            let (whole, padding) = (padding.len(), &padding[split..]);
            if found == whole || found == padding.len() {
                return Ok(kept(&values[found - padding.len()..], padding));
            }
        }
        let prompt = self.prompt.as_ref().map_or(0, |prompt| prompt.len());
        if found == count || found + self.lead == prompt + count {
            return Ok(Cow::Borrowed(&values[found - count..]));
        }
        let trained = |mask: &&[f32]| mask.iter().filter(|&&value| value != 0.0).count() == found;
        if let Some(mask) = mask.filter(trained) {
            let mut values = values.iter().copied();
            let mut one = |mask: &f32| (*mask != 0.0).then(|| values.next()).flatten();
            return Ok(mask.iter().map(|mask| one(mask).unwrap_or(0.0)).collect());
        }
        let text = match name {
            "loss mask" => format!("a loss mask of {}", tally(found, "item")),
            _ => format!("{found} {name}"),
        };
        let tokens = tally(count, "token");
        Err(format!("has {text}, but its response has {tokens}"))
    }
}

/// The values at 1 of a mask.
#[expect(clippy::disallowed_methods, reason = "calls ask for the room first")]
fn kept<'v, T: Copy>(values: &[T], mask: &[f32]) -> Cow<'v, [T]> {
    let pairs = values.iter().zip(mask).filter(|(_, mask)| **mask != 0.0);
    pairs.map(|(value, _)| *value).collect()
}

/// A number of things.
fn tally(count: usize, thing: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{end}")
}
