//! The rows of actions in a picture.

use super::{CHARACTER, FONT_SIZE, Frame, filled, label};
use crate::canvas::{Anchor, Canvas, Colour};
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

const IDLE_COLOR: Colour = Colour([0xec; 3]);

/// What a rank does with its time, in the order in which shares are stacked.
///
/// The colours are of Okabe and Ito's palette, which stays distinct with the common kinds of colour blindness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Forward,
    Recompute,
    Backward,
    /// The half of backward that computes the gradients of weights, if the schedule splits backward.
    WeightGradient,
    Update,
    Exposed,
    Offload,
}

impl Use {
    const ALL: [Use; 7] = [
        Use::Forward,
        Use::Recompute,
        Use::Backward,
        Use::WeightGradient,
        Use::Update,
        Use::Exposed,
        Use::Offload,
    ];

    /// The use of a kernel of this pass within this action.
    fn of(pass: Pass, action: Option<Action>) -> Use {
        match pass {
            Pass::Forward => Use::Forward,
            Pass::Recompute => Use::Recompute,
            Pass::Backward if action.is_some_and(|action| action.kind == ActionKind::Weight) => {
                Use::WeightGradient
            }
            Pass::Backward => Use::Backward,
            Pass::Update => Use::Update,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Use::Forward => "forward",
            Use::Recompute => "recompute",
            Use::Backward => "backward",
            Use::WeightGradient => "weight gradients",
            Use::Update => "update",
            Use::Exposed => "exposed communication",
            Use::Offload => "exposed copies and host",
        }
    }

    fn color(self) -> Colour {
        match self {
            Use::Forward => Colour([0x56, 0xb4, 0xe9]),
            Use::Recompute => Colour([0xf0, 0xe4, 0x42]),
            Use::Backward => Colour([0x00, 0x9e, 0x73]),
            Use::WeightGradient => Colour([0xe6, 0x9f, 0x00]),
            Use::Update => Colour([0xcc, 0x79, 0xa7]),
            Use::Exposed => Colour([0xd5, 0x5e, 0x00]),
            Use::Offload => Colour([0x00, 0x72, 0xb2]),
        }
    }
}

/// An interval of time with one use.
#[derive(Debug, Clone, Copy)]
struct Interval {
    start: u64,
    end: u64,
    to: Use,
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
    pub fn legend(&self) -> Vec<(Colour, &'static str)> {
        let is_used =
            |to: &Use| self.rows.iter().any(|row| row.intervals.iter().any(|interval| interval.to == *to));
        let used = Use::ALL.into_iter().filter(is_used);
        let mut entries: Vec<_> = used.map(|to| (to.color(), to.name())).collect();
        entries.push((IDLE_COLOR, "idle"));
        entries
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
        canvas.rect(frame.left, y, frame.width, height, IDLE_COLOR);
        let between = |canvas: &mut Canvas, interval: Interval| {
            let x = frame.x(interval.start);
            canvas.rect(x, y, frame.x(interval.end) - x, height, interval.to.color());
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
                    canvas.text(label(((x + right) / 2.0, baseline), Anchor::Middle, &number));
                }
            }
            canvas.close_group();
            before = end;
        }
        during(&mut rest, before, frame.duration).for_each(|interval| between(canvas, interval));
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
    times: [u64; Use::ALL.len()],
    lightness: f64,
) {
    let (x, right) = (place.frame.x(start), place.frame.x(end));
    // A thin gap keeps neighbours apart where there is room for it.
    let width = if right - x > 3.0 { right - x - 0.6 } else { right - x };
    let mut bottom = place.y + place.height;
    for (to, time) in Use::ALL.into_iter().zip(times) {
        let share = place.height * time as f64 / (end - start) as f64;
        if share >= LOWEST {
            let lightness = if matches!(to, Use::Exposed | Use::Offload) { 0.0 } else { lightness };
            canvas.rect(x, bottom - share, width, share, lighter(to.color(), lightness));
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
            Some(span) => Use::of(span.pass, timeline.calls[span.call as usize].action),
            None if stretch.others.is_empty() => return,
            None if stretch.others.communicates() => Use::Exposed,
            None => Use::Offload,
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
fn times(intervals: impl Iterator<Item = Interval>) -> [u64; Use::ALL.len()] {
    let mut times = [0; Use::ALL.len()];
    for interval in intervals {
        times[interval.to as usize] += interval.end - interval.start;
    }
    times
}

/// A colour moved towards white: unchanged at 0, white at 1.
fn lighter(Colour(parts): Colour, lightness: f64) -> Colour {
    Colour(parts.map(|part| (f64::from(part) + (255.0 - f64::from(part)) * lightness).round() as u8))
}
