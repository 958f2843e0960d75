//! Schemas: where a source's JSON has the columns of calls.

use crate::error::{Error, Result};
use crate::memory::few;

/// A column that the reader understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Token ids of the prompt.
    Prompts,
    /// Token ids of the response.
    Responses,
    /// Token ids of prompt and response.
    Sequences,
    /// The tokens after those of the sequence: it is shifted by one.
    Targets,
    /// The ids of the tokens that log-probabilities belong to, which are compared.
    LogprobIds,
    /// The same as texts `token_id:17`; other texts are no ids.
    LogprobTokens,
    /// Number of prompt tokens of the sequence.
    PromptLens,
    /// Number of response tokens of the sequence.
    ResponseLens,
    /// The index of a call, in an event of a stream.
    Index,
    /// Number of response tokens with those of this event, whether it has all of them or the last.
    Total,
    /// Log-probabilities: this column and those below are float32.
    Logprobs,
    /// The loss mask, or weights.
    LossMask,
    /// 0 for tokens that are padding.
    AttentionMask,
    /// One number: 0 for calls that do not train.
    Trains,
    /// One number: 0 for calls that train.
    Masked,
}

/// The number of columns.
pub const COUNT: usize = Column::Masked as usize + 1;

impl Column {
    /// True for columns of integers.
    pub fn is_ids(self) -> bool {
        (self as usize) < Self::Logprobs as usize
    }

    /// True for columns of a value per token.
    pub fn is_per_token(self) -> bool {
        use Column::{Index, Masked, PromptLens, ResponseLens, Total, Trains};
        !matches!(self, PromptLens | ResponseLens | Index | Total | Trains | Masked)
    }
}

/// The use of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It belongs to a column.
    Column(Column),
    /// JSON that is passed on as it is, by the number of its column.
    Kept(usize),
}

/// What the events of a stream give for a column of JSON that is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Its value; the last one holds.
    Value,
    /// Arrays with an item per token, which are joined.
    Parts,
    /// The reason of the end, which a stream without its end lacks.
    Reason,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    /// All items of an array.
    Items,
    /// One item of an array.
    Item(usize),
}

/// The items of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// Each has an array of calls.
    Group,
    /// Each is a call, or a value of the call of the same number.
    Call,
    /// Each is a call if it has a response.
    CallOrOther,
}

/// A node of the paths, joined to a tree.
#[derive(Debug, Default)]
pub struct Node {
    steps: Vec<(Step, usize)>,
    /// The column of the value.
    pub role: Option<Role>,
    /// Items that are calls, or hold calls and what these have in common.
    pub opens: Option<Opens>,
    /// The bits of a mask that is made of flags.
    pub bits: Option<u32>,
    /// True for values below items of an array that are not calls: one value of several.
    pub is_one_of_many: bool,
    /// Number of earlier paths of the same column: where a call has several, the first is read.
    pub rank: usize,
    /// The columns at or below this node, with their ranks; not those that are passed on.
    pub columns: Vec<(Column, usize)>,
}

/// The paths of a source, from the beginning of a body.
#[derive(Debug)]
pub struct Schema {
    nodes: Vec<Node>,
    /// The columns that are passed on.
    pub kept: Vec<Kept>,
}

impl Schema {
    /// A schema of paths such as `choices[].logprobs.content[].logprob` or `top[][0]`. `calls` are
    /// the paths of arrays of calls, if a body may have one; values outside are those of every
    /// call of the body. Items of a path that ends with `?` are calls if they have a response.
    ///
    /// # Errors
    /// Malformed paths, two columns at one path, a column along the path of another, and bits of
    /// other columns than masks.
    pub fn new<'a>(
        calls: impl IntoIterator<Item = &'a str>,
        paths: impl IntoIterator<Item = (Role, &'a str)>,
        kept: Vec<Kept>,
    ) -> Result<Self> {
        let mut schema = Self { nodes: vec![Node::default()], kept };
        for path in calls {
            schema.add_calls(path)?;
        }
        for (role, path) in paths {
            schema.add_column(role, path)?;
        }
        for node in &schema.nodes {
            if node.role.is_some() && !node.steps.is_empty() {
                return wrong("one column's path continues another column's".to_owned());
            }
            let items = node.steps.iter().filter(|(step, _)| !step.is_key());
            if items.clone().count() > 1 && items.clone().any(|(step, _)| *step == Step::Items) {
                return wrong("paths name both all items of an array and single ones".to_owned());
            }
        }
        Ok(schema)
    }

    fn add_calls(&mut self, path: &str) -> Result<()> {
        let (path, opens) = match path.strip_suffix('?') {
            Some(path) => (path, Opens::CallOrOther),
            None => (path, Opens::Call),
        };
        if !path.ends_with("[]") {
            return wrong(format!("the path of calls '{path}' does not end with '[]'"));
        }
        for (end, _) in path.match_indices("[]") {
            let is_last = end + 2 == path.len();
            let node = self.add(&path[..end + 2], None)?;
            let node = &mut self.nodes[node];
            node.is_one_of_many = false;
            node.opens = match node.opens {
                known if !is_last => known.or(Some(Opens::Group)),
                _ => Some(opens),
            };
        }
        Ok(())
    }

    fn add_column(&mut self, role: Role, path: &str) -> Result<()> {
        let (path, bits) = match path.split_once('&') {
            Some((path, bits)) => (path, Some(bits.parse().map_err(|_| malformed(path))?)),
            None => (path, None),
        };
        if bits.is_some() && (bits == Some(0) || role != Role::Column(Column::LossMask)) {
            return wrong(format!(
                "bits of '{path}' are not a loss mask; write them as in 'flags&2'"
            ));
        }
        let rank = self.nodes.iter().filter(|node| node.role == Some(role));
        let rank = rank.count();
        let column = match role {
            Role::Column(column) => Some((column, rank)),
            Role::Kept(_) => None,
        };
        let node = self.add(path, column)?;
        let node = &mut self.nodes[node];
        (node.bits, node.rank) = (bits, rank);
        if node.role.replace(role).is_some() {
            return wrong(format!("two columns have the path '{path}'"));
        }
        let is_single = column.is_none_or(|(column, _)| !column.is_per_token());
        if is_single && node.is_one_of_many {
            return wrong(format!("'{path}' has several values for a call"));
        }
        Ok(())
    }

    /// Add the nodes of a path, which leads to a column with its rank; returns the last.
    fn add(&mut self, path: &str, column: Option<(Column, usize)>) -> Result<usize> {
        let mut node = 0;
        for step in steps_of(path)? {
            let is_one_of_many = self.nodes[node].is_one_of_many || step == Step::Items;
            let found = self.nodes[node].steps.iter().find(|(known, _)| *known == step);
            node = if let Some(&(_, next)) = found {
                next
            } else {
                let next = self.nodes.len();
                self.nodes[node].steps.push((step, next));
                self.nodes.push(Node { is_one_of_many, ..Node::default() });
                next
            };
            self.nodes[node].columns.extend(column);
        }
        Ok(node)
    }

    pub(super) fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }
}

impl Step {
    fn is_key(&self) -> bool {
        matches!(self, Self::Key(_))
    }
}

impl Node {
    /// The node below a key, and its number among the steps.
    pub fn below_key(&self, key: &str) -> Option<(usize, usize)> {
        let is_key = |step: &Step| matches!(step, Step::Key(known) if known == key);
        let mut steps = self.steps.iter().enumerate();
        steps.find_map(|(index, (step, node))| is_key(step).then_some((index, *node)))
    }

    /// The node of an item of an array; None stands for all items.
    pub fn below_item(&self, index: Option<usize>) -> Option<usize> {
        let is_item = |step: &Step| match step {
            Step::Items => true,
            Step::Item(item) => Some(*item) == index,
            Step::Key(_) => false,
        };
        self.steps.iter().find_map(|(step, node)| is_item(step).then_some(*node))
    }

    /// True if columns lie below keys.
    pub fn has_keys(&self) -> bool {
        self.steps.iter().any(|(step, _)| step.is_key())
    }

    /// True if columns lie below items.
    pub fn has_items(&self) -> bool {
        self.steps.iter().any(|(step, _)| !step.is_key())
    }

    /// The kind of value that columns lie below, in errors; None where any may stand.
    pub fn expected(&self) -> Option<&'static str> {
        match (self.has_keys(), self.has_items()) {
            _ if self.opens == Some(Opens::CallOrOther) => None,
            (true, _) => Some("expected an object"),
            (false, true) => Some("expected an array"),
            (false, false) => None,
        }
    }
}

/// The steps of a path.
fn steps_of(path: &str) -> Result<Vec<Step>> {
    let parts = path.replace('[', ".[");
    let parts = parts.strip_prefix(if path.starts_with('[') { "." } else { "" });
    let step = |part: &str| match part.strip_prefix('[') {
        Some("]") => Some(Step::Items),
        Some(item) => Some(Step::Item(item.strip_suffix(']')?.parse().ok()?)),
        None if part.is_empty() || part.contains(']') => None,
        None => Some(Step::Key(part.to_owned())),
    };
    let steps: Option<_> = few(parts.unwrap_or("").split('.').map(step));
    steps.ok_or_else(|| malformed(path))
}

fn wrong<T>(reason: String) -> Result<T> {
    Err(Error::Body(reason))
}

fn malformed(path: &str) -> Error {
    Error::Body(format!(
        "'{path}' is not a path; write keys and items, as in 'choices[].token_ids'"
    ))
}
