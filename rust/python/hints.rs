//! Remedies for the core's errors, in the words of the Python API.

use std::borrow::Cow;

use fastcollate::plan::pack::Oversized;
use fastcollate::{Dtype, Error, TOKEN_IDS};

/// The remedy for a body with other values than its schema's.
pub const BODY_ADVICE: &str = "correct it, or pass a schema with other paths";

/// The whole message of an error of the core: what is wrong, and what to do about it.
pub fn message(error: &Error) -> String {
    let hint = hint(error);
    match error {
        _ if hint.is_empty() => error.to_string(),
        Error::NoIndex { location, value, .. } => format!("{location} is {value}; {hint}"),
        Error::OtherInputs { are_given: false, .. } => {
            format!("{error} (PerRow with concat=True); {hint}")
        }
        _ => format!("{error}; {hint}"),
    }
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn hint(error: &Error) -> Cow<'static, str> {
    Cow::Borrowed(match error {
        Error::EmptyBatch(_) => "pass at least one",
        Error::RowCount { field, found, expected, form } => {
            let is_larger = |of: usize, than: usize| of > than && of.is_multiple_of(than);
            let (each, groups) = match &**field {
                "responses" => {
                    let one = form.argument().trim_end_matches('s');
                    (format!("pass one row per {one}"), "")
                }
                _ => {
                    let each = format!("pass one for each row of {}", form.argument());
                    (each, " (repeat what is per group)")
                }
            };
            return if field == "responses" && is_larger(*found, *expected) {
                let times = found / expected;
                format!(
                    "{each}: repeat each prompt for each of its samples, as by \
                     [row for row in prompts for _ in range({times})]"
                )
            } else if is_larger(*expected, *found) {
                format!(
                    "{each}: repeat what is per group for each of its rows, and flatten arrays of \
                     groups, as by values.reshape(-1)"
                )
            } else {
                format!("{each}{groups}")
            }
            .into();
        }
        Error::PromptTooLong { len, .. } => return format!("pass a length from 0 to {len}").into(),
        Error::RowLength { found, stream, .. } if found == stream => {
            let pass = "pass fc.Field(..., align='sequence')";
            return format!("its sequence has {stream}: {pass}").into();
        }
        Error::RowLength { field, found: 1, .. } if field == "rewards" || field == "advantages" => {
            "pass one value per response token, or a flat list of one number per row"
        }
        Error::RowLength { found, expected, .. } if found > expected => {
            "pass one value per response token (fc.unpad(values, lengths) takes padding out)"
        }
        Error::RowLength { .. } => "pass one value per response token",
        Error::StreamLength { may_lack_last: true, found, expected, .. } if found < expected => {
            "pass starts=, the first captured token of each row (0 if these are the first ones)"
        }
        Error::StreamLength { may_lack_last: true, .. } => "pass at most one value per token",
        Error::StreamLength { found, response, .. } if found == response => {
            let pass = "pass fc.Field(..., align='response')";
            return format!("its response has {response}: {pass}").into();
        }
        Error::StreamLength { .. } => "pass one value per prompt and response token",
        Error::RunTooLong { .. } => "pass a smaller start, or fewer items",
        Error::ValueCount { .. } => "pass all values of its tokens, one token after the other",
        Error::NegativeCount { .. } => "pass the number of values of each token",
        Error::NotAmongValues { .. } => {
            "pass own_token='add' to add such ids, or 'keep' to leave the values as they are"
        }
        Error::ShapedValues { .. } => "pass fields of their own for several numbers per value",
        Error::RowTooLong { .. } => {
            "pass at most that many (if all rows have too many, are prompts and responses swapped?)"
        }
        Error::NoLastToken { .. } => {
            "pass 0, a response of at least one token, or one value per response token"
        }
        Error::NoTokenFor { .. } => "pass None instead, with default=, or spread='all'",
        Error::MissingRow { .. } => "pass its values (a field's default= stands for missing ones)",
        Error::EarlierNumber { .. } => {
            "pass merge=fc.planning.Merge(..., rewards='sum') to add up the numbers of a row's turns, \
             rewards='last' to drop all but the last turn's, or one reward per response token"
        }
        Error::BadLogprob(_) => "pass bad_logprobs='mask' or 'keep'",
        Error::WrongType { .. } => "convert it first",
        Error::DoesNotFit { .. } => "pass a value that fits, or another dtype",
        Error::NoIndex { limit, .. } if *limit == i64::MAX => {
            "pass indices from 0 on, or -1 for none"
        }
        Error::NoIndex { limit, .. } if *limit == TOKEN_IDS => {
            "token ids are integers from 0 to 2147483647"
        }
        Error::NoIndex { limit, .. } => {
            return format!("pass indices from 0 to {}", limit - 1).into();
        }
        Error::NotFinite { location, .. } if location.field == "advantages" => {
            "pass a finite number (if all rewards of a group are equal, divide by their standard \
             deviation + 1e-6)"
        }
        Error::NotFinite { location, .. } if location.field == "rewards" => {
            "fill missing rewards, or drop their rows"
        }
        Error::NotFinite { .. } => "pass a finite number",
        Error::Negative { location, .. } => {
            let field = &location.field;
            return format!(
                "pass 0 for tokens that do not train (if these are labels, pass labels != -100 as \
                 the {field})"
            )
            .into();
        }
        Error::NotWhole { dtype, .. } => {
            let range = dtype.whole_weights();
            return match dtype {
                Dtype::Bool => "pass 0 or 1, or a dtype of floats".into(),
                _ => format!(
                    "pass whole numbers from {} to {}, or a dtype of floats",
                    range.start(),
                    range.end()
                )
                .into(),
            };
        }
        Error::Trailing { .. } => "pass values of one shape",
        Error::TooManyTokens { .. } | Error::TooManyPositions { .. } => "pass fewer rows",
        Error::WideAttention { .. } => "pass a smaller capacity, or fewer rows",
        Error::TooManyKeys { .. } => "pass one bin at a time, or use a block mask",
        Error::TooWide { argument, .. } => {
            return format!("pass a larger {argument}, or shorter rows").into();
        }
        Error::BinTooWide { .. } => "pass a smaller capacity, or a larger pad_to",
        Error::StepTooWide { widest, .. } => {
            return format!("pass at least {widest}, or plan the step with a smaller capacity")
                .into();
        }
        Error::OtherBins(_) => "pass each row in one bin",
        Error::OtherSequenceCount { .. }
        | Error::OtherSequenceLength { .. }
        | Error::OtherTokens { .. } => "pass a plan of these rows",
        Error::OtherInputs { are_given: true, .. } => "plan the tree with the same ids",
        Error::OtherInputs { .. } => "pass same_inputs, an id of each row's other inputs",
        Error::TooLarge { .. } => "pass fewer or shorter rows",
        Error::WidthTooLarge { argument, .. } => {
            return format!("pass a smaller {argument}").into();
        }
        Error::NoPrompt { .. } | Error::SplitRow { .. } => {
            "pass missing as the value of such tokens"
        }
        Error::NotInBatch { .. } => {
            "pass missing as the value of such tokens, or gather from the batch of all rows"
        }
        Error::OtherTurns { .. } | Error::OtherTurnCount { .. } | Error::OtherTurnTokens { .. } => {
            "pass a plan of these turns"
        }
        Error::OtherRowCount { .. } | Error::OtherRowLength { .. } | Error::OtherLengths { .. } => {
            "pass the rows of the whole plan, with the same merge=, or plan these rows"
        }
        Error::Unstable { .. } => "do not modify inputs during the call",
        Error::NothingTrains => "pass drop_untrainable=False, or turns that train",
        Error::NoDtype { expected, .. } => return format!("pass one of {expected}").into(),
        Error::TooFewExperts { topk, .. } => return format!("pass at least {topk}").into(),
        Error::NoRoutes { .. } => "pass rows of shape (tokens, layers, topk)",
        Error::NoChunks { size, .. } => {
            let multiple = 2 * *size as u128;
            return format!("pass layout=fc.Packed(..., multiple_of={multiple})").into();
        }
        Error::NoLayers { .. } => "pass a range within them",
        Error::Oversized { oversized, may_split, .. } => {
            let oversize = match (oversized, may_split) {
                (Oversized::Sequences { .. }, _) => "",
                (_, true) => "oversize='own_bin' or 'split', or ",
                (_, false) => "oversize='own_bin', or ",
            };
            return format!("pass {oversize}a larger {}", oversized.argument()).into();
        }
        Error::OversizedRow { oversized, in_tree, may_split, .. } => {
            let layout = match (in_tree, may_split) {
                (true, _) => "fc.Tree(..., oversize='own_bin')",
                (false, true) => "fc.Packed(..., oversize='own_bin' or 'split')",
                (false, false) => "fc.Packed(..., oversize='own_bin')",
            };
            return format!("pass a larger {}, or {layout}", oversized.argument()).into();
        }
        Error::NoRoom { multiple, .. } => {
            return format!("pass a capacity of at least {multiple}").into();
        }
        Error::NoPiece { .. } => "pass a larger max_cost",
        Error::CostOfPieces { .. } => "pass cost as a name or a function",
        Error::TooManyPieces { .. } => "pass a larger capacity or max_cost",
        Error::TooFewItems { min_bins, multiple_of, noun, .. } => {
            let names = match (min_bins, multiple_of) {
                (Some(_), Some(_)) => "min_bins or bins_multiple_of",
                (Some(_), None) => "min_bins",
                (None, _) => "bins_multiple_of",
            };
            return format!("pass a smaller {names}, more {noun}s, or allow_fewer_bins=True")
                .into();
        }
        Error::TooManyBins { noun, .. } => {
            return format!("pass a smaller num_bins, or more {noun}s").into();
        }
        Error::NoFit { .. } => "pass a larger num_bins",
        Error::RepeatedOutput { .. } => "give the field another key",
        Error::FillMisfit { option, .. } => {
            return format!("pass another {option} or dtype").into();
        }
        Error::ExpertCount { count: ..1, .. } => "pass 1 or more",
        Error::ExpertCount { dtype, .. } => {
            return format!("pass a wider dtype than {}", dtype.name()).into();
        }
        Error::OtherShard(_) => "pass a shard of a plan for these rows",
        Error::InvalidPlan(_) => "pass the tables that to_dict returned",
        Error::Body(reason) if !reason.contains(';') => BODY_ADVICE,
        _ => "",
    })
}
