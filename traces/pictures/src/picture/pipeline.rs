//! The rows of actions in a picture.

use super::{CHARACTER, FONT_SIZE, Frame, LABEL, filled, text};
use crate::canvas::{Anchor, Canvas};
use crate::palette::{Colour, Meaning, ON_COLOUR};
use trainwright_spec::program::Pass;
use trainwright_spec::schedule::{Action, ActionKind};
use trainwright_spec::units::Picoseconds;
use trainwright_timeline::actions::{Extent, extents, stages};
use trainwright_timeline::sweep::{spans_of, sweep};
use trainwright_timeline::timeline::Timeline;

/// With more actions than this, a box shows several.
const MOST_BOXES: usize = 2000;
/// A share of a box that is lower than this, in pixels, is not drawn.
const LOWEST: f64 = 0.25;

/// Uses of time, in the order in which shares are stacked.
const USES: [Meaning; 12] = [
    Meaning::Forward,
    Meaning::Recompute,
    Meaning::Backward,
    Meaning::WeightGradient,
    Meaning::Update,
    Meaning::Tensor,
    Meaning::Context,
    Meaning::Expert,
    Meaning::Data,
    Meaning::Pipeline,
    Meaning::Host,
    Meaning::Wait,
];

/// The use of a kernel of this pass within this action.
fn kernel(pass: Pass, action: Option<Action>) -> Meaning {
    match pass {
        Pass::Backward if action.is_some_and(|action| action.kind == ActionKind::Weight) => {
            Meaning::WeightGradient
        }
        pass => Meaning::of_pass(pass),
    }
}

/// Whether a kernel runs.
fn computes(to: Meaning) -> bool {
    USES[..5].contains(&to)
}

/// The name in the legend: where no kernel runs, communication is exposed.
fn name(to: Meaning) -> String {
    match to {
        Meaning::Wait => "idle".into(),
        to if computes(to) => to.name().into(),
        to => format!("exposed {}", to.name()),
    }
}

/// An interval of time with one use.
#[derive(Debug, Clone, Copy)]
struct Interval {
    start: u64,
    end: u64,
    to: Meaning,
}

/// One rank.
#[derive(Debug)]
struct Row {
    name: String,
    extents: Vec<Extent>,
    /// In order; between them the rank is idle.
    intervals: Vec<Interval>,
}

/// The rows of all ranks.
#[derive(Debug)]
pub struct Pipeline {
    rows: Vec<Row>,
}

impl Pipeline {
    /// Reads the rows, which are indices into `Timeline::ranks`.
    pub fn new(timeline: &Timeline, rows: &[usize]) -> Pipeline {
        let row = |&rank: &usize| Row {
            name: timeline.ranks[rank].name(),
            extents: extents(timeline, rank),
            intervals: intervals(timeline, rank),
        };
        Pipeline { rows: rows.iter().map(row).collect() }
    }

    /// One or an even number, so that the boxes of alternating forwards and backwards look alike.
    fn actions_in_a_box(&self) -> usize {
        let actions: usize = self.rows.iter().map(|row| row.extents.len()).sum();
        if actions <= MOST_BOXES { 1 } else { actions.div_ceil(MOST_BOXES).next_multiple_of(2) }
    }

    /// Colours and names of what there is in the picture.
    pub fn legend(&self) -> Vec<(Colour, String)> {
        let is_used = |to: &Meaning| {
            self.rows.iter().any(|row| row.intervals.iter().any(|interval| interval.to == *to))
        };
        let used = USES.into_iter().filter(|to| *to == Meaning::Wait || is_used(to));
        used.map(|to| (to.colour(), name(to))).collect()
    }

    /// How to read the rows.
    pub fn note(&self) -> String {
        let shaded = self.rows.iter().any(|row| stages(&row.extents).len() > 1);
        match self.actions_in_a_box() {
            1 if shaded => "numbers are microbatches; heights in a box are shares of its time; a rank's later stages are lighter".to_string(),
            1 => "numbers are microbatches; heights in a box are shares of its time".to_string(),
            many => format!("a box is for up to {many} actions; heights in a box are shares of its time"),
        }
    }

    /// Draws the rows.
    pub fn draw(&self, canvas: &mut Canvas, frame: &Frame, top: f64, pitch: f64) {
        let actions_in_a_box = self.actions_in_a_box();
        for (index, row) in self.rows.iter().enumerate() {
            let place = Place { frame, y: top + pitch * index as f64, height: filled(pitch) };
            row.draw(canvas, &place, actions_in_a_box);
        }
    }
}

/// Where a row is drawn.
struct Place<'a> {
    frame: &'a Frame,
    y: f64,
    height: f64,
}

impl Row {
    /// Boxes, and between them the exposed communication at its time.
    fn draw(&self, canvas: &mut Canvas, place: &Place, actions_in_a_box: usize) {
        let Place { frame, y, height } = *place;
        canvas.rect(frame.left, y, frame.x(frame.end) - frame.left, height, Meaning::Wait.colour());
        let between = |canvas: &mut Canvas, interval: Interval| {
            let x = frame.x(interval.start);
            canvas.rect(x, y, frame.x(interval.end) - x, height, interval.to.colour());
        };
        let stages = stages(&self.extents);
        let mut rest = self.intervals.as_slice();
        let mut before = 0;
        for group in groups(&self.extents, actions_in_a_box) {
            let (start, end) = (group[0].start.0, group[group.len() - 1].end.0);
            during(&mut rest, before, start).for_each(|interval| between(canvas, interval));
            canvas.open_group(&self.tip(group));
            let shown = group[0].action.filter(|_| actions_in_a_box == 1);
            let lightness = shown.map_or(0.0, |action| lightness(&stages, action.stage));
            draw_shares(canvas, place, (start, end), times(during(&mut rest, start, end)), lightness);
            if let Some(action) = shown {
                let number = action.microbatch.to_string();
                let needed = number.len() as f64 * CHARACTER * FONT_SIZE + 2.0;
                let (x, right) = (frame.x(start), frame.x(end));
                if right - x >= needed && height >= FONT_SIZE {
                    let baseline = y + height / 2.0 + FONT_SIZE * 0.36;
                    let place = ((x + right) / 2.0, baseline);
                    canvas.text(text(place, Anchor::Middle, LABEL, ON_COLOUR, &number));
                }
            }
            canvas.close_group();
            before = end;
        }
        during(&mut rest, before, frame.end).for_each(|interval| between(canvas, interval));
    }

    fn tip(&self, group: &[Extent]) -> String {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let actions = match (first.action, last.action) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (Some(action), _) => action.to_string(),
            (None, _) => "outside of the actions".to_string(),
        };
        format!("{}: {actions}, {} to {}, takes {}", self.name, first.start, last.end, last.end - first.start)
    }
}

/// A box from `start` to `end`, filled from the bottom with the `times` of each use.
fn draw_shares(
    canvas: &mut Canvas,
    place: &Place,
    (start, end): (u64, u64),
    times: [u64; USES.len()],
    lightness: f64,
) {
    let (x, right) = (place.frame.x(start), place.frame.x(end));
    // A thin gap keeps neighbours apart where there is room for it.
    let width = if right - x > 3.0 { right - x - 0.6 } else { right - x };
    let mut bottom = place.y + place.height;
    for (to, time) in USES.into_iter().zip(times) {
        let share = place.height * time as f64 / (end - start) as f64;
        if share >= LOWEST {
            let lightness = if computes(to) { lightness } else { 0.0 };
            canvas.rect(x, bottom - share, width, share, to.colour().lighter(lightness));
            bottom -= share;
        }
    }
}

/// Extents in groups of up to `most` actions. An idle time longer than the action after it ends a group, which would
/// hide it otherwise. Work outside of the actions is a separate group.
fn groups(extents: &[Extent], most: usize) -> Vec<&[Extent]> {
    let mut groups = Vec::new();
    let mut rest = extents;
    while !rest.is_empty() {
        let joins = |pair: &&[Extent]| {
            let idle = pair[1].start - pair[0].end;
            pair[0].action.is_some() && pair[1].action.is_some() && idle <= pair[1].length()
        };
        let count = 1 + rest.windows(2).take(most - 1).take_while(joins).count();
        groups.push(&rest[..count]);
        rest = &rest[count..];
    }
    groups
}

/// How much lighter than the first a rank's stage is drawn.
fn lightness(stages: &[usize], stage: usize) -> f64 {
    let before = stages.partition_point(|&other| other < stage);
    0.6 * before as f64 / stages.len() as f64
}

/// The intervals of one rank; neighbours of the same use are joined.
fn intervals(timeline: &Timeline, rank: usize) -> Vec<Interval> {
    let mut intervals: Vec<Interval> = Vec::new();
    sweep(spans_of(timeline, rank), timeline.duration, |stretch| {
        let to = match stretch.computing {
            Some(span) => kernel(span.pass, timeline.calls[span.call as usize].action),
            None => match stretch.others.first() {
                Some(activity) => Meaning::of(activity, Pass::Forward),
                None => return,
            },
        };
        let (Picoseconds(start), Picoseconds(end)) = (stretch.start, stretch.end);
        match intervals.last_mut() {
            Some(interval) if interval.to == to && interval.end == start => interval.end = end,
            _ => intervals.push(Interval { start, end, to }),
        }
    });
    intervals
}

/// The intervals from `start` to `end`, cut to fit; drops from `rest` those that end before.
fn during<'a>(rest: &mut &'a [Interval], start: u64, end: u64) -> impl Iterator<Item = Interval> + 'a {
    let past = rest.iter().take_while(|interval| interval.end <= start).count();
    *rest = &rest[past..];
    rest.iter().take_while(move |interval| start < end && interval.start < end).map(move |interval| {
        Interval { start: interval.start.max(start), end: interval.end.min(end), to: interval.to }
    })
}

/// How much time goes to each use, in picoseconds.
fn times(intervals: impl Iterator<Item = Interval>) -> [u64; USES.len()] {
    let mut times = [0; USES.len()];
    for interval in intervals {
        let place = USES.iter().position(|to| *to == interval.to);
        times[place.unwrap_or(USES.len() - 1)] += interval.end - interval.start;
    }
    times
}
