//! The library that Python loads: the binding. This crate sets the optimisation level of the link
//! (`docs/architecture.md`, "What a build costs"), so that the binding can have another.

extern crate fastcollate_binding as _;
