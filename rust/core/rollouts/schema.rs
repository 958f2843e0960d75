//! Schemas: where a source's JSON has the columns of calls.

use crate::error::{Error, Result};

/// A column of token ids or of lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
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
}

/// A column of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Log-probabilities.
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

/// The number of columns of either kind.
pub const COUNTS: (usize, usize) = (Ids::ResponseLens as usize + 1, Numbers::Masked as usize + 1);

/// The column that a value belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Token ids or a length.
    Ids(Ids),
    /// Numbers per token, or a flag.
    Numbers(Numbers),
    /// JSON that is passed on as it is, by the number of the column.
    Kept(usize),
    /// Bytes of routed experts, in base64. A body's belong to its first call.
    Routes,
    /// The responses of a body's calls, one array each.
    ResponsesOfCalls,
    /// The index of a call, in an event of a stream.
    Index,
    /// Number of response tokens with those of this event, whether it has all of them or the last.
    Total,
}

impl Role {
    /// True for columns of a value per token.
    pub fn is_per_token(self) -> bool {
        match self {
            Self::Ids(ids) => !matches!(ids, Ids::PromptLens | Ids::ResponseLens),
            Self::Numbers(numbers) => !matches!(numbers, Numbers::Trains | Numbers::Masked),
            Self::ResponsesOfCalls => true,
            _ => false,
        }
    }
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
    /// The columns at or below this node, with their ranks.
    pub columns: Vec<(Role, usize)>,
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
        let mut schema = Self {
            nodes: vec![Node::default()],
            kept,
        };
        for path in calls {
            let (path, opens) = match path.strip_suffix('?') {
                Some(path) => (path, Opens::CallOrOther),
                None => (path, Opens::Call),
            };
            if !path.ends_with("[]") {
                return Err(Error::Body(format!(
                    "the path of calls '{path}' does not end with '[]'"
                )));
            }
            schema.add_calls(path, opens)?;
        }
        for (role, path) in paths {
            let (path, bits) = match path.split_once('&') {
                Some((path, bits)) => (path, Some(bits.parse().map_err(|_| malformed(path))?)),
                None => (path, None),
            };
            if bits.is_some() && (bits == Some(0) || role != Role::Numbers(Numbers::LossMask)) {
                return Err(Error::Body(format!(
                    "bits of '{path}' are not those of a loss mask; write them as in 'flags&2'"
                )));
            }
            let rank = { schema.nodes.iter() }.filter(|node| node.role == Some(role));
            let rank = rank.count();
            let steps = schema.add(path)?;
            for &node in &steps {
                schema.nodes[node].columns.push((role, rank));
            }
            let node = &mut schema.nodes[steps[steps.len() - 1]];
            (node.bits, node.rank) = (bits, rank);
            if node.role.replace(role).is_some() {
                return Err(Error::Body(format!("two columns have the path '{path}'")));
            }
            if matches!(role, Role::Kept(_)) && node.is_one_of_many {
                return Err(Error::Body(format!(
                    "'{path}' has several values for a call"
                )));
            }
        }
        for node in &schema.nodes {
            if node.role.is_some() && !node.steps.is_empty() {
                return Err(Error::Body(
                    "a path of a column continues that of another".to_owned(),
                ));
            }
            if node.below_items().is_some() && node.has_items_by_index() {
                return Err(Error::Body(
                    "paths name all items of an array, and single ones".to_owned(),
                ));
            }
        }
        Ok(schema)
    }

    /// Add the path of an array of calls.
    fn add_calls(&mut self, path: &str, opens: Opens) -> Result<()> {
        for (end, _) in path.match_indices("[]") {
            let is_last = end + 2 == path.len();
            let steps = self.add(&path[..end + 2])?;
            let node = &mut self.nodes[steps[steps.len() - 1]];
            node.is_one_of_many = false;
            node.opens = match node.opens {
                known if !is_last => known.or(Some(Opens::Group)),
                _ => Some(opens),
            };
        }
        Ok(())
    }

    /// Add the nodes of a path; returns them.
    fn add(&mut self, path: &str) -> Result<Vec<usize>> {
        let mut nodes = Vec::new();
        let mut node = 0;
        for step in steps_of(path)? {
            let is_one_of_many = self.nodes[node].is_one_of_many || step == Step::Items;
            let found = { self.nodes[node].steps.iter() }.find(|(known, _)| *known == step);
            node = match found {
                Some(&(_, next)) => next,
                None => {
                    let next = self.nodes.len();
                    self.nodes.push(Node {
                        is_one_of_many,
                        ..Node::default()
                    });
                    self.nodes[node].steps.push((step, next));
                    next
                }
            };
            nodes.push(node);
        }
        Ok(nodes)
    }

    pub(super) fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }
}

impl Node {
    /// The node below a key, and its number among the steps.
    pub fn below_key(&self, key: &str) -> Option<(usize, usize)> {
        let is_key = |step: &Step| matches!(step, Step::Key(known) if known == key);
        let mut steps = self.steps.iter().enumerate();
        steps.find_map(|(index, (step, node))| is_key(step).then_some((index, *node)))
    }

    /// The node of all items of an array.
    pub fn below_items(&self) -> Option<usize> {
        { self.steps.iter() }.find_map(|(step, node)| (*step == Step::Items).then_some(*node))
    }

    /// The node of one item of an array.
    pub fn below_item(&self, index: usize) -> Option<usize> {
        { self.steps.iter() }.find_map(|(step, node)| (*step == Step::Item(index)).then_some(*node))
    }

    /// True if a column lies below single items of an array.
    pub fn has_items_by_index(&self) -> bool {
        { self.steps.iter() }.any(|(step, _)| matches!(step, Step::Item(_)))
    }
}

/// The steps of a path.
fn steps_of(path: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let (key, items) = part.find('[').map_or((part, ""), |at| part.split_at(at));
        if key.is_empty() && (items.is_empty() || !steps.is_empty()) {
            return Err(malformed(path));
        }
        if !key.is_empty() {
            steps.push(Step::Key(key.to_owned()));
        }
        let Some(items) = items.strip_prefix('[') else {
            continue;
        };
        for item in items
            .strip_suffix(']')
            .ok_or_else(|| malformed(path))?
            .split("][")
        {
            steps.push(match item {
                "" => Step::Items,
                index => Step::Item(index.parse().map_err(|_| malformed(path))?),
            });
        }
    }
    Ok(steps)
}

fn malformed(path: &str) -> Error {
    Error::Body(format!(
        "'{path}' is not a path; write keys and items, as in 'choices[].token_ids'"
    ))
}
