//! The columns of a batch, and its rows: their assembly and placement.

use std::borrow::Cow;
use std::slice;

use super::arrays::Source;
use super::{FieldKind, FieldSpec, Spread};
use crate::column::{AnyColumn, FieldColumn, Tokens};
use crate::error::Result;
use crate::plan::merge::{Merge, Streams};
use crate::plan::pack::Cost;
use crate::plan::share::{ShareIds, Tree};
use crate::plan::{Assembly, LayoutSpec, Pick, Placement, Row, Shard, TreeSource, Turns, Widths};
use crate::polling::Ticks;
use crate::streams::TokenStreams;

/// The inputs of a batch: columns with one row per turn.
#[derive(Debug)]
pub struct Columns<C> {
    /// The token ids.
    pub tokens: TokenStreams<C>,
    /// One per written field ([`FieldSpec::is_written`]), in the same order.
    pub fields: Vec<C>,
}

impl<C: Tokens + AnyColumn> Columns<C> {
    /// The columns and the assembly.
    pub(super) fn source<'a>(&'a self, assembly: &'a Assembly) -> Source<'a> {
        Source {
            tokens: &self.tokens,
            fields: self.fields.iter().map(|field| field as _).collect(),
            assembly,
        }
    }
}

/// The source of a batch's rows.
#[derive(Debug, Clone, Copy)]
pub enum RowSource<'a> {
    /// One turn each.
    Turns,
    /// Merged turns.
    Merged(&'a Merge),
    /// The rows of another batch, read from its outputs.
    Batch(&'a Assembly),
}

/// The rows of a batch.
#[derive(Debug)]
pub struct BatchRows<'a> {
    /// All turns of the columns.
    pub turns: &'a Turns,
    source: RowSource<'a>,
    /// The assembly of the rows.
    assembly: Assembly,
    /// The assembly that columns are read by, if it differs.
    read: Option<Assembly>,
    /// The longest lengths of the step.
    least: Widths,
    /// The tokens shared by rows, if they were compared.
    tree: Option<Tree>,
}

impl<'a> RowSource<'a> {
    /// All rows of the turns, or those of a shard with this layout.
    ///
    /// # Errors
    /// Turns of other lengths than the merged ones, a shard of other rows, and rows of the step
    /// that exceed the layout, so that all ranks fail together.
    pub fn rows(
        self,
        turns: &'a Turns,
        shard: Option<&Shard>,
        layout: &LayoutSpec,
    ) -> Result<BatchRows<'a>> {
        let all = match self {
            Self::Turns => Cow::Owned(Assembly::row_per_turn(turns)),
            Self::Merged(merge) => {
                merge.check_turns(turns)?;
                Cow::Borrowed(&merge.assembly)
            }
            Self::Batch(assembly) => Cow::Borrowed(assembly),
        };
        let least = match shard {
            None => Widths::default(),
            Some(shard) => {
                layout.check(all.rows(), shard)?;
                shard.check(all.rows(), Widths::of_rows(all.rows()))?
            }
        };
        let assembly = match shard {
            None => all.into_owned(),
            Some(shard) => all.picked(&shard.picks),
        };
        let read = match (self, shard) {
            (Self::Batch(_), Some(shard)) => Some(assembly.reread(shard.picks.iter().copied())),
            (Self::Batch(_), None) => Some(assembly.reread((0..).map(Pick::of_row))),
            (Self::Turns | Self::Merged(_), _) => None,
        };
        Ok(BatchRows {
            turns,
            source: self,
            assembly,
            read,
            least,
            tree: None,
        })
    }

    /// If turns were merged, merge the numbers of fields with one per turn, and count non-zero
    /// values on tokens that merging masked.
    ///
    /// # Errors
    /// Rows of wrong lengths, and numbers that would be dropped.
    pub fn merge_numbers<C: FieldColumn>(
        self,
        fields: &[&FieldSpec],
        columns: &mut Columns<C>,
    ) -> Result<usize> {
        let Self::Merged(merge) = self else {
            return Ok(0);
        };
        let mut masked = 0;
        let written = fields.iter().filter(|field| field.is_written());
        for (field, column) in written.zip(&mut columns.fields) {
            if field.spread == Some(Spread::LastOfRow) {
                masked += field.merge(column, merge)?;
            }
        }
        Ok(masked)
    }
}

impl BatchRows<'_> {
    /// The assembly of the rows.
    pub fn into_assembly(self) -> Assembly {
        self.assembly
    }

    /// The assembly that columns are read by.
    pub fn read(&self) -> &Assembly {
        self.read.as_ref().unwrap_or(&self.assembly)
    }

    /// Compare the tokens of rows in a tree layout: find the shared tokens, or check those of a
    /// plan. `uids` holds the group number of each turn.
    ///
    /// # Errors
    /// A plan for other rows, ids of other turns, and errors of the columns.
    pub fn share(
        &mut self,
        streams: &Streams,
        layout: &LayoutSpec,
        shard: Option<&Shard>,
        fields: &[&FieldSpec],
        uids: Option<&[usize]>,
    ) -> Result<()> {
        let Some(spec) = layout.tree_spec() else {
            return Ok(());
        };
        let (turns, rows) = (self.turns, self.read().rows());
        let joined = FieldKind::Array { is_joined: true };
        let have_inputs = fields.iter().any(|field| field.kind == joined);
        let same_inputs = spec.same_inputs.as_deref();
        if let Some(ids) = same_inputs {
            turns.check_count("same_inputs", ids.len())?;
        }
        let of_shard = shard.map_or(Ok(None), |shard| shard.trees(rows))?;
        let trees = match (&of_shard, &spec.source) {
            (Some(trees), _) => trees,
            (None, TreeSource::Tokens(share)) => {
                let all_differ: Vec<_> = (0..turns.count()).collect();
                let ids = ShareIds {
                    uids,
                    same_inputs: same_inputs.or(have_inputs.then_some(&all_differ)),
                };
                self.tree = Some(Tree::of_rows(streams, rows, *share, ids)?);
                return Ok(());
            }
            (None, TreeSource::Plan(tree)) => slice::from_ref(tree),
            (None, TreeSource::Bins(trees, _)) => trees,
        };
        Tree::check_lens(trees, rows)?;
        let mut trees = trees.iter();
        trees.try_for_each(|tree| tree.check_tokens(streams, rows, same_inputs, have_inputs))
    }

    /// Lay the rows out.
    ///
    /// # Errors
    /// As [`LayoutSpec::place`].
    pub fn place(
        &self,
        layout: &LayoutSpec,
        shard: Option<&Shard>,
        cost: &Cost,
        ticks: &mut Ticks,
    ) -> Result<Placement> {
        let tree = self.tree.as_ref();
        layout.place(&self.assembly, self.least, shard, tree, cost, ticks)
    }

    /// The turns, as columns number them, that provide the tokens of the step's rows.
    pub(super) fn step_sources(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self.source {
            RowSource::Merged(merge) => {
                let rows = merge.assembly.rows().iter();
                Box::new(rows.filter_map(|row: &Row| row.source))
            }
            RowSource::Turns | RowSource::Batch(_) => Box::new(0..self.turns.count()),
        }
    }
}
