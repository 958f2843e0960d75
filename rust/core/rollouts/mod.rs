//! Calls of language models, read from JSON: the responses of engines, and traces of them.
//!
//! A [`Schema`] has the paths of columns. Bodies are read one by one, each into the columns of
//! [`Calls`]; no value is an object in between.

mod alike;
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

pub use call::{Call, UNKNOWN};
pub use calls::{Calls, Place, Rows};
pub use frame::MISSING;
pub use items::token_of;
pub use logprobs::{BadLogprobs, KINDS};
pub use nodes::join_nodes;
pub use reader::{flag_of, none_of};
pub use schema::{Column, Kept, Role, Schema};

use self::json::Json;
use self::reader::Reader;
use crate::error::Result;
use crate::memory::{check_room, gathered};
use crate::polling::Ticks;

/// The lines of a text that are not empty, each with its number from 0 on.
///
/// # Errors
/// [`Error::NoMemory`](crate::Error::NoMemory).
pub fn lines_of(text: &[u8]) -> Result<Vec<(usize, &[u8])>> {
    let lines = text.split(|&byte| byte == b'\n').enumerate();
    gathered(lines.filter(|(_, line)| !line.trim_ascii().is_empty()))
}

/// Read bodies, in order, and add their calls. `name` names a body by the number beside it.
///
/// # Errors
/// Invalid JSON, values of other types than their columns', calls without a response or with
/// columns of other lengths, and errors of the hook. Messages name the body and the byte.
pub fn read_bodies(
    bodies: &[(usize, &[u8])],
    schema: &Schema,
    calls: &mut Calls,
    name: impl Fn(usize) -> String,
    ticks: &mut Ticks,
) -> Result<()> {
    let mut reader = Reader::new(schema);
    // The values of a body take less memory than this.
    let longest = bodies.iter().map(|(_, body)| body.len()).max();
    check_room(longest.unwrap_or(0) / 128)?;
    calls.num_bodies = bodies.len();
    for (index, &(number, body)) in bodies.iter().enumerate() {
        reader.read(&mut Json::new(body, &name(number), ticks), index, calls)?;
    }
    calls.finish(|Place { body, index, .. }| {
        let name = name(bodies[body].0);
        format!("{name}: call {index}")
    })
}
