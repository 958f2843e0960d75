//! Calls of language models, read from JSON: the responses of engines, and traces of them.
//!
//! A [`Schema`] has the paths of columns. Bodies are read one by one, each into the columns of
//! [`Calls`]; no value is an object in between.

mod base64;
mod call;
mod calls;
mod frame;
mod items;
mod json;
mod logprobs;
mod nodes;
mod numbers;
mod reader;
mod schema;
mod stream;

pub use call::Call;
pub use calls::{Calls, Place, Rows};
pub use logprobs::{BadLogprobs, KINDS, Logprobs};
pub use nodes::join_nodes;
pub use schema::{Ids, Kept, Numbers, Role, Schema};

use self::json::Json;
use self::reader::Reader;
use crate::error::Result;
use crate::memory::{add, check_room};
use crate::polling::Ticks;

/// Bodies to read.
#[derive(Debug, Clone, Copy)]
pub enum Bodies<'a> {
    /// One body each.
    Each(&'a [&'a [u8]]),
    /// One body in each line that is not empty, or a stream.
    Lines(&'a [u8]),
}

/// Read bodies, in order, and add their calls. `name` names a body, or a line counted from 0.
///
/// # Errors
/// Invalid JSON, values of other types than their columns', calls without a response or with
/// columns of other lengths, and errors of the hook. Messages name the body and the byte.
pub fn read_bodies(
    bodies: Bodies,
    schema: &Schema,
    calls: &mut Calls,
    name: impl Fn(usize) -> String,
    ticks: &mut Ticks,
) -> Result<()> {
    let mut reader = Reader::new(schema);
    let longest = match bodies {
        Bodies::Each(bodies) => bodies.iter().map(|body| body.len()).max(),
        Bodies::Lines(text) => Some(text.len()),
    };
    // The values of a body take less memory than this.
    check_room(longest.unwrap_or(0) / 128)?;
    let mut read = |body: &[u8], name: &str| {
        let index = calls.num_bodies;
        calls.num_bodies += 1;
        reader.read(&mut Json::new(body, name), index, calls, ticks)
    };
    let mut lines = Vec::new();
    match bodies {
        Bodies::Each(bodies) => {
            for (index, body) in bodies.iter().enumerate() {
                read(body, &name(index))?;
            }
        }
        Bodies::Lines(text) if stream::is_stream(text) => read(text, "bodies[0]")?,
        Bodies::Lines(text) => {
            for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
                if !line.trim_ascii().is_empty() {
                    add(&mut lines, index)?;
                    read(line, &name(index))?;
                }
            }
        }
    }
    calls.finish(|body| name(lines.get(body).copied().unwrap_or(body)))
}
