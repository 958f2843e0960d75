//! Execution: the order and the threads in which the bands of all outputs are written.

use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use fastcollate::plan::{Band, Grid};
use fastcollate::write::{Destination, write_mask};
use pyo3::prelude::*;

use crate::error::Result;

/// Positions written between two looks at pending signals: at most some milliseconds.
const BAND: usize = 1 << 18;

/// From this size on it pays to start a second thread.
const PARALLEL_FROM: usize = 4 << 20;

