//! The library that Python loads: the binding. The level of this crate is that of the link
//! (`docs/architecture.md`, "What a build costs"), so the binding can have another.

extern crate fastcollate_binding as _;
