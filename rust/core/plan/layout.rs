//! Layouts: their forms, options, and placement of rows.

use std::collections::HashMap;

use super::pack::{Cost, PackSpec};
use super::packed::{BinLayout, PaddingAs};
use super::placement::{Edge, Grid, Placement};
use super::share::{Share, ShareLimits, Tree};
use super::widths::{WidthOptions, Widths, rounded_width};
use super::{Align, Assembly, Bins, Row, Shard, Shift, Span};
use crate::error::{Error, Result};
use crate::polling::Ticks;

/// The arrangement of rows in the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One left-padded block; responses right-aligned.
    Left,
    /// Left-padded prompt, right-padded response; responses left-aligned.
    TwoSegment,
    /// One right-padded block; responses left-aligned.
    Right,
    /// No padding: one long row, of which every row of the batch is a span.
    Jagged,
    /// Several sequences share an output row; response-aligned fields have the form of sequences.
    Packed,
    /// The same, with shared prefixes of rows stored once; response-aligned fields are as in the
    /// jagged layout.
    Tree,
}

/// The form of a layout's outputs; most of the library depends on a layout only through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each row is an output row of its own, with padding.
    Padded,
    /// Outputs have no row dimension: all values lie end to end, without padding.
    Jagged,
    /// Output rows are bins of several rows.
    Packed,
    /// The same for token streams, where rows overlap; values of responses lie end to end.
    Tree,
}

impl Layout {
    /// The form of the outputs.
    #[must_use]
    pub fn form(self) -> Form {
        match self {
            Self::Left | Self::TwoSegment | Self::Right => Form::Padded,
            Self::Jagged => Form::Jagged,
            Self::Packed => Form::Packed,
            Self::Tree => Form::Tree,
        }
    }

    /// True if each row is an output row of its own.
    #[must_use]
    pub fn is_padded(self) -> bool {
        self.form() == Form::Padded
    }

    /// True if outputs have no row dimension.
    #[must_use]
    pub fn is_jagged(self) -> bool {
        self.form() == Form::Jagged
    }

    /// True if output rows hold several rows, each token at a position of its own.
    #[must_use]
    pub fn is_packed(self) -> bool {
        self.form() == Form::Packed
    }

    /// True if rows overlap, since shared tokens are stored once.
    #[must_use]
    pub fn is_tree(self) -> bool {
        self.form() == Form::Tree
    }

    /// True if output rows are bins of several rows.
    #[must_use]
    pub fn has_bins(self) -> bool {
        matches!(self.form(), Form::Packed | Form::Tree)
    }

    /// True if padding comes before the tokens of a row.
    #[must_use]
    pub fn pads_left(self) -> bool {
        match self {
            Self::Left | Self::TwoSegment => true,
            Self::Right | Self::Jagged | Self::Packed | Self::Tree => false,
        }
    }

    /// True if outputs of token streams, or of responses, have a row dimension.
    #[must_use]
    pub fn has_rows(self, align: Align) -> bool {
        match self.form() {
            Form::Padded | Form::Packed => true,
            Form::Tree => align == Align::Sequence,
            Form::Jagged => false,
        }
    }

    /// True if prompts have a width of their own, so that all responses begin at one column.
    fn has_prompt_width(self) -> bool {
        match self {
            Self::TwoSegment => true,
            Self::Left | Self::Right | Self::Jagged | Self::Packed | Self::Tree => false,
        }
    }
}

/// A layout, and its options.
#[derive(Debug, Clone)]
pub struct LayoutSpec {
    layout: Layout,
    /// The fixed widths; for layouts with bins, the sequence width, and the multiple that places
    /// are rounded up to, if not 1.
    widths: WidthOptions,
    bins: BinSpec,
}

/// The rows of each output row.
#[derive(Debug, Clone)]
enum BinSpec {
    /// None.
    None,
    Packed(PackedSpec),
    Tree(TreeSpec),
}

/// Packing options.
#[derive(Debug, Clone)]
pub struct PackedSpec {
    /// The rows of each output row, unless a shard has bins.
    pub bins: BinSource,
    /// The token whose value of a response-aligned field stands at a position.
    pub shift: Shift,
    /// Treatment of the padding after the last sequence.
    pub padding_as: PaddingAs,
}

/// The source of bins.
#[derive(Debug, Clone)]
pub enum BinSource {
    /// All rows are in one bin.
    SingleRow,
    /// The bins of a plan, and the multiple that it rounded places up to.
    Given(Bins, usize),
    /// The rows of each bin.
    Lists(Vec<Vec<usize>>),
    /// Bins are packed by lengths.
    Pack(PackSpec),
}

/// Tree options.
#[derive(Debug, Clone)]
pub struct TreeSpec {
    /// The source of shared tokens.
    pub source: TreeSource,
    /// The condition for sharing tokens of the source; that of bins is met already.
    pub limits: ShareLimits,
    /// Packing options of trees; None for one bin, or the bins of the source.
    pub pack: Option<PackSpec>,
    /// Numbered ids of each turn's inputs other than tokens: rows with different ids share nothing.
    pub same_inputs: Option<Vec<usize>>,
}

/// The source of the tokens that rows share.
#[derive(Debug, Clone)]
pub enum TreeSource {
    /// The bins of a plan, and the multiple that it rounded the places of trees up to.
    Bins(Vec<Tree>, usize),
    /// A plan.
    Plan(Tree),
    /// The tokens, by comparison.
    Tokens(Share),
}

impl LayoutSpec {
    /// A layout without bins.
    pub fn of_rows(layout: Layout, widths: WidthOptions) -> Self {
        Self { layout, widths, bins: BinSpec::None }
    }

    /// The packed layout, of a fixed width or the width of the widest bin.
    pub fn packed(packed: PackedSpec, width: Option<usize>, multiple_of: usize) -> Self {
        Self {
            layout: Layout::Packed,
            widths: WidthOptions::of_bins(width, multiple_of),
            bins: BinSpec::Packed(packed),
        }
    }

    /// The tree layout, of a fixed width or the width of the widest bin.
    pub fn tree(tree: TreeSpec, width: Option<usize>, multiple_of: usize) -> Self {
        Self {
            layout: Layout::Tree,
            widths: WidthOptions::of_bins(width, multiple_of),
            bins: BinSpec::Tree(tree),
        }
    }

    /// The same layout, with the width of the widest bin rounded up to a multiple.
    #[must_use]
    pub fn with_rounded_bins(mut self, multiple_of: usize) -> Self {
        self.widths.bin_multiple_of = multiple_of;
        self
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Packing options, if rows are packed by length.
    pub fn pack_spec(&self) -> Option<&PackSpec> {
        match &self.bins {
            BinSpec::Packed(PackedSpec { bins: BinSource::Pack(spec), .. }) => Some(spec),
            BinSpec::Tree(tree) => tree.pack.as_ref(),
            BinSpec::None | BinSpec::Packed(_) => None,
        }
    }

    /// Tree options, if rows are laid out as trees.
    pub fn tree_spec(&self) -> Option<&TreeSpec> {
        match &self.bins {
            BinSpec::Tree(tree) => Some(tree),
            BinSpec::None | BinSpec::Packed(_) => None,
        }
    }

    /// Check that no row or bin of a step exceeds a fixed width: of rows with these longest
    /// lengths, of which some are given with their numbers.
    ///
    /// # Errors
    /// [`Error::TooWide`] and [`Error::StepTooWide`].
    pub fn check<'a>(
        &self,
        longest: Widths,
        rows: impl Iterator<Item = (usize, &'a Row)>,
        shard: &Shard,
    ) -> Result<()> {
        match (&self.bins, &shard.bins) {
            (BinSpec::None, _) => self.widths.check(longest, rows),
            (_, Some(bins)) => bins.check_width(self.widths.sequence),
            (_, None) => Ok(()),
        }
    }

    /// Lay out rows, as wide as if the `least` were among them; in the bins of the shard, if any.
    /// `tree` is the result of comparing tokens.
    ///
    /// # Errors
    /// For rows wider than a fixed width and bins of other rows, and those of packing.
    pub fn place(
        &self,
        assembly: &Assembly,
        least: Widths,
        shard: Option<&Shard>,
        tree: Option<&Tree>,
        cost: &Cost,
        ticks: &mut Ticks,
    ) -> Result<Placement> {
        let packed = match &self.bins {
            BinSpec::None => {
                let widths = WidthOptions { least, ..self.widths };
                return Placement::of_layout(assembly, self.layout, widths);
            }
            BinSpec::Tree(spec) => {
                return self.place_tree(spec, assembly, shard, tree, cost, ticks);
            }
            BinSpec::Packed(packed) => packed,
        };
        let lens: Vec<_> = assembly.rows().iter().map(Row::len).collect();
        let shard_bins = shard.and_then(|shard| shard.bins.as_ref());
        let (bins, planned_multiple) = match (shard_bins, &packed.bins) {
            (Some(bins), _) => (bins.of_rows(&lens)?, 1),
            (None, BinSource::SingleRow) => (Bins::single(lens.iter().copied()), 1),
            (None, BinSource::Given(bins, multiple_of)) => {
                bins.check(&lens)?;
                (bins.clone(), *multiple_of)
            }
            (None, BinSource::Lists(lists)) => (Bins::of_lists(lists, &lens)?, 1),
            (None, BinSource::Pack(spec)) => {
                (spec.pack(&lens, None, cost, ticks).map_err(|error| error.of_rows(0, true))?, 1)
            }
        };
        let bin_layout = BinLayout {
            multiple_of: self.multiple_of(planned_multiple),
            shift: packed.shift,
            padding_as: packed.padding_as,
        };
        Placement::of_bins(assembly, &bins, bin_layout, self.widths.of_shard(shard))
    }

    fn place_tree(
        &self,
        spec: &TreeSpec,
        assembly: &Assembly,
        shard: Option<&Shard>,
        tree: Option<&Tree>,
        cost: &Cost,
        ticks: &mut Ticks,
    ) -> Result<Placement> {
        let packed;
        let of_shard = shard.map_or(Ok(None), |shard| shard.trees(assembly.rows()))?;
        let (bins, planned_multiple) = match (&of_shard, &spec.source, tree) {
            (Some(bins), _, _) => (&**bins, 1),
            (None, TreeSource::Bins(bins, multiple_of), _) => (&**bins, *multiple_of),
            (None, TreeSource::Plan(tree), _) | (None, TreeSource::Tokens(_), Some(tree)) => {
                let tree = tree.within(&spec.limits)?;
                packed = match &spec.pack {
                    Some(spec) => tree.pack(spec, cost, ticks)?,
                    None => vec![tree.into_owned()],
                };
                (&*packed, 1)
            }
            (None, TreeSource::Tokens(_), None) => {
                let reason = "tokens were not compared".to_owned();
                return Err(Error::InvalidPlan(reason));
            }
        };
        let multiple_of = self.multiple_of(planned_multiple);
        Placement::of_trees(assembly, bins, multiple_of, self.widths.of_shard(shard))
    }

    /// The multiple that places are rounded up to: the option, or else that of the plan.
    fn multiple_of(&self, planned: usize) -> usize {
        match self.widths.multiple_of {
            1 => planned,
            given => given,
        }
    }
}

impl Placement {
    /// Lay out an assembly's rows.
    ///
    /// # Errors
    /// [`Error::TooWide`] naming a row longer than a fixed width, [`Error::WidthTooLarge`] and
    /// [`Error::TooLarge`].
    pub fn of_layout(assembly: &Assembly, layout: Layout, widths: WidthOptions) -> Result<Self> {
        let rows = assembly.rows();
        let longest = assembly.longest();
        widths.check(longest, rows.iter().enumerate())?;
        let longest = longest.max(widths.least);
        let width =
            |option, longest, multiple_of| rounded_width(rows.len(), option, longest, multiple_of);
        let response_width = |multiple_of| {
            let option = ("pad_response_to", widths.response);
            width(option, longest.response, multiple_of)
        };
        let response_lens = rows.iter().map(|row| row.response_len);
        let sequence_lens = rows.iter().map(Row::len);
        let block = |align| {
            let option = ("pad_to", widths.sequence);
            let sequence_width = width(option, longest.sequence, widths.multiple_of)?;
            Ok::<_, Error>((
                Grid::aligned(sequence_lens.clone(), sequence_width, align)?,
                Grid::aligned(response_lens.clone(), response_width(1)?, align)?,
            ))
        };
        let (sequence, response) = match layout {
            Layout::Left => block(Edge::Right)?,
            Layout::Right => block(Edge::Left)?,
            Layout::TwoSegment => {
                let option = ("pad_prompt_to", widths.prompt);
                let prompt_width = width(option, longest.prompt, widths.multiple_of)?;
                let response_width = response_width(widths.multiple_of)?;
                (
                    Grid::two_segment(rows, prompt_width, response_width)?,
                    Grid::aligned(response_lens, response_width, Edge::Left)?,
                )
            }
            Layout::Jagged => (Grid::jagged(sequence_lens)?, Grid::jagged(response_lens)?),
            Layout::Packed | Layout::Tree => {
                let reason = "the layout needs bins".to_owned();
                return Err(Error::InvalidPlan(reason));
            }
        };
        Ok(Self { layout, sequence, response, bin_layout: None })
    }

    /// The widths of rows picked from these for a shard: at least the present widths and those of
    /// its step. None for rows in bins.
    fn widths_for(&self, shard: &Shard) -> Option<WidthOptions> {
        let least = shard.least_known();
        let (sequence, response) = (self.sequence.width(), self.response.width());
        let wider_response = response.max(least.response);
        match self.layout.form() {
            Form::Packed | Form::Tree => None,
            Form::Jagged => Some(WidthOptions::default()),
            Form::Padded if self.layout.has_prompt_width() => Some(WidthOptions {
                prompt: Some(sequence.saturating_sub(response).max(least.prompt)),
                response: Some(wider_response),
                ..WidthOptions::default()
            }),
            Form::Padded => Some(WidthOptions {
                sequence: Some(sequence.max(least.sequence)),
                response: Some(wider_response),
                ..WidthOptions::default()
            }),
        }
    }

    /// The layout of rows picked from these for a shard: the same layout, at least as wide as these
    /// and as the shard's step. Packed rows stay in their bins, without the bins of other rows. None
    /// for trees, whose rows share tokens.
    #[must_use]
    pub fn layout_for(&self, shard: &Shard) -> Option<LayoutSpec> {
        if let Some(packing) = self.bin_layout {
            let packed = PackedSpec {
                bins: BinSource::Given(self.bins_of(shard), packing.multiple_of),
                shift: packing.shift,
                padding_as: packing.padding_as,
            };
            let width = Some(self.sequence.width());
            return Some(LayoutSpec::packed(packed, width, packing.multiple_of));
        }
        let widths = self.widths_for(shard)?;
        Some(LayoutSpec::of_rows(self.layout, widths))
    }

    /// The bins of the picked rows, numbered as picked, each row picked once.
    fn bins_of(&self, shard: &Shard) -> Bins {
        let rows: HashMap<_, _> = shard
            .picks
            .iter()
            .enumerate()
            .filter_map(|(index, pick)| Some((pick.row?, index)))
            .collect();
        let mut bins = Bins { offsets: vec![0], spans: Vec::with_capacity(rows.len()) };
        let of_bins = self.sequence.segments().chunk_by(|a, b| a.dst_row == b.dst_row);
        for bin in of_bins {
            bins.spans.extend(bin.iter().filter_map(|segment| {
                Some(Span { index: *rows.get(&segment.row)?, from: segment.from, len: segment.len })
            }));
            if bins.spans.len() > bins.offsets[bins.offsets.len() - 1] {
                bins.offsets.push(bins.spans.len());
            }
        }
        bins
    }

    /// The first row of a shard whose rows are a view of these: they are consecutive, none is
    /// padding, and they are as wide as the shard's step.
    #[must_use]
    pub fn first_in_view(&self, shard: &Shard) -> Option<usize> {
        let widths = self.widths_for(shard)?;
        let is_same =
            |found: usize, wanted: Option<usize>| wanted.is_none_or(|wanted| wanted == found);
        let prompt = self.sequence.width().saturating_sub(self.response.width());
        let is_as_wide = is_same(self.sequence.width(), widths.sequence)
            && is_same(self.response.width(), widths.response)
            && is_same(prompt, widths.prompt);
        shard.adjacent().filter(|_| is_as_wide)
    }
}
