//! The columns of a batch, and its rows: their assembly and placement.

use std::borrow::Cow;
use std::slice;
use std::sync::Arc;

use super::arrays::Source;
use super::{FieldKind, FieldSpec, Spread};
use crate::column::{AnyColumn, FieldColumn, Tokens};
use crate::error::{Error, Result};
use crate::memory::{few, gathered};
use crate::plan::merge::{Merge, Prefix, Streams};
use crate::plan::pack::Cost;
use crate::plan::share::{ShareIds, Tree};
use crate::plan::{
    Assembly, Chosen, Layout, LayoutSpec, Pick, Placement, Row, Shard, TreeSource, Turns, Widths,
};
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
            fields: few(self.fields.iter().map(|field| field as _)),
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
    /// The turns of the columns.
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
    /// The turns that a shard with this layout reads, if that are not all; its columns may have
    /// these alone.
    pub fn chosen(self, shard: &Shard, layout: Layout) -> Option<Arc<Chosen>> {
        let chosen = match self {
            Self::Merged(merge) => merge.chosen(shard),
            Self::Turns => shard.chosen(layout),
            Self::Batch(assembly) => {
                let chosen = Chosen::new(shard.numbers(), assembly.rows().len());
                Some(chosen).filter(Chosen::is_part)
            }
        };
        chosen.map(Arc::new)
    }

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
        ticks: &mut Ticks,
    ) -> Result<BatchRows<'a>> {
        let all = match self {
            Self::Turns => Cow::Owned(Assembly::row_per_turn(turns, ticks)?),
            Self::Merged(merge) => {
                merge.check_turns(turns)?;
                Cow::Borrowed(&merge.assembly)
            }
            Self::Batch(assembly) => Cow::Borrowed(assembly),
        };
        let mut least = Widths::default();
        let assembly = match shard {
            None => all.into_owned(),
            // A row per turn that was chosen: all other rows are known from the shard's plan.
            Some(shard) if matches!(self, Self::Turns) && turns.chosen().is_some() => {
                let index = |number| turns.index(number).unwrap_or_default();
                let row = |number| &all.rows()[index(number)];
                least = shard.check(turns.total(), row, None)?;
                let longest = all.longest().max(shard.widths.unwrap_or_default());
                let rows = all.rows().iter().enumerate();
                let rows = rows.map(|(index, row)| (turns.number(index), row));
                layout.check(longest, rows, shard)?;
                let pick = |pick: &Pick| Pick { row: pick.row.map(index), ..*pick };
                all.picked(&gathered(shard.picks.iter().map(pick))?)
            }
            Some(shard) => {
                let (rows, longest) = (all.rows(), all.longest());
                layout.check(longest, rows.iter().enumerate(), shard)?;
                least = shard.check(rows.len(), |row| &rows[row], Some(longest))?;
                all.picked(&shard.picks)
            }
        };
        let read = match (self, shard) {
            (Self::Batch(_), Some(shard)) => Some(assembly.reread(shard.picks.iter().copied())),
            (Self::Batch(_), None) => Some(assembly.reread((0..).map(Pick::of_row))),
            (Self::Turns | Self::Merged(_), _) => None,
        };
        let read = match turns.chosen() {
            None => read,
            Some(chosen) => {
                let index = |number| chosen.index(number).unwrap_or_default();
                Some(read.as_ref().unwrap_or(&assembly).renumbered(index))
            }
        };
        Ok(BatchRows { turns, source: self, assembly, read, least, tree: None })
    }

    /// If turns were merged, merge the numbers of fields with one per turn, and count non-zero
    /// values on tokens that merging masked.
    ///
    /// # Errors
    /// Rows of wrong lengths, and numbers that would be dropped.
    pub fn merge_numbers<C: FieldColumn>(
        self,
        turns: &Turns,
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
                masked += field.merge(column, turns, merge)?;
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
    /// plan. `uids` holds the group number of each turn of the input.
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
        let of_turns = |name, ids: Option<&[usize]>| {
            let Some(ids) = ids else { return Ok(None) };
            turns.check_count(name, ids.len())?;
            let chosen = turns.chosen();
            Ok::<_, Error>(Some(chosen.map_or_else(|| ids.to_vec(), |it| it.of(ids))))
        };
        let uids = of_turns("uids", uids)?;
        let same_inputs = of_turns("same_inputs", spec.same_inputs.as_deref())?;
        let same_inputs = same_inputs.as_deref();
        let of_shard = shard.map_or(Ok(None), |shard| shard.trees(rows))?;
        let trees = match (&of_shard, &spec.source) {
            (Some(trees), _) => trees,
            (None, TreeSource::Tokens(share)) => {
                let all_differ = gathered(0..turns.count())?;
                let ids = ShareIds {
                    uids: uids.as_deref(),
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

    /// The turns of a row of [`read`](Self::read), as columns number them, with the tokens that
    /// they share with it.
    pub(super) fn prefixes(&self) -> impl Fn(&Row) -> Vec<Prefix> {
        let merged = match self.source {
            RowSource::Merged(merge) => Some((merge, merge.prefixes())),
            RowSource::Turns | RowSource::Batch(_) => None,
        };
        move |row| {
            let Some(source) = row.source else {
                return Vec::new();
            };
            let of_row = merged.as_ref().and_then(|(merge, prefixes)| {
                let row = merge.turn_rows[self.turns.number(source)]?;
                Some(prefixes.row(row))
            });
            let Some(of_row) = of_row else {
                let len = row.len();
                return vec![Prefix { turn: source, len }];
            };
            let own = of_row.iter().filter_map(|prefix| {
                let turn = self.turns.index(prefix.turn)?;
                Some(Prefix { turn, ..*prefix })
            });
            few(own)
        }
    }

    /// The turns of the step's rows, as columns number them.
    pub(super) fn step_sources(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self.source {
            RowSource::Merged(merge) => {
                let turns = merge.turn_rows.iter().enumerate();
                Box::new(turns.filter_map(|(turn, row)| row.map(|_| turn)))
            }
            RowSource::Turns | RowSource::Batch(_) => Box::new(0..self.turns.total()),
        }
    }
}
