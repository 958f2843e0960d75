//! Calls of language models, read from JSON: the responses of engines, and traces of them.
//!
//! A [`Schema`] has the paths of columns. Bodies are read one by one, each into the columns of
//! [`Calls`]; no value is an object in between.

mod calls;
mod items;
mod json;
mod numbers;
mod reader;
mod schema;

pub use calls::{BadLogprobs, Calls, Rows};
pub use schema::{Role, Schema};

use self::json::Json;
use self::reader::Reader;
use crate::error::Result;
use crate::memory::check_room;
use crate::polling::Ticks;

/// Bodies to read.
#[derive(Debug, Clone, Copy)]
pub enum Bodies<'a> {
    /// One body each.
    Each(&'a [&'a [u8]]),
    /// One body in each line that is not empty.
    Lines(&'a [u8]),
}

/// Read bodies, in order.
///
/// # Errors
/// Invalid JSON, values of other types than their columns', calls without a response or with
/// columns of other lengths, and errors of the hook. Messages name the body and the byte.
pub fn read_bodies(
    bodies: Bodies,
    schema: &Schema,
    policy: BadLogprobs,
    ticks: &mut Ticks,
) -> Result<Calls> {
    let mut calls = Calls::new(policy, schema.num_kept);
    let mut reader = Reader::new(schema);
    let mut read = |index: usize, body: &[u8], name: &str| {
        // The values of a body take less memory than this.
        check_room(body.len() / 64)?;
        reader.read(&mut Json::new(body, name), index, &mut calls, ticks)
    };
    match bodies {
        Bodies::Each(bodies) => {
            for (index, body) in bodies.iter().enumerate() {
                read(index, body, &format!("bodies[{index}]"))?;
            }
        }
        Bodies::Lines(lines) => {
            let lines = lines.split(|&byte| byte == b'\n').enumerate();
            let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
            for (index, (line, body)) in lines.enumerate() {
                read(index, body, &format!("line {}", line + 1))?;
            }
        }
    }
    calls.finish()?;
    Ok(calls)
}
