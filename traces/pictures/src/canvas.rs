//! The elements that pictures are made of; `svg` and `png` write them.
//!
//! Lengths are pixels, from the upper left corner.

pub mod png;
pub mod svg;

use crate::palette::Colour;

/// A point: x and y.
pub type Point = (f64, f64);

/// One thing that is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Element {
    /// A filled rectangle: left, top, width, height.
    Rect([f64; 4], Colour),
    /// Straight lines.
    Path(Path),
    /// A circle.
    Circle(Circle),
    /// A line of text.
    Text(Text),
    /// Starts a group of elements that shows this text when pointed at.
    OpenGroup(String),
    /// Ends the group.
    CloseGroup,
}

/// Straight lines in one style.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// Points of each line.
    pub lines: Vec<Vec<Point>>,
    /// Colour of the area that the lines enclose.
    pub fill: Option<Colour>,
    /// Colour of the lines.
    pub stroke: Colour,
    /// Width of the lines.
    pub width: f64,
    /// Whether the lines have gaps.
    pub dash: Dash,
}

/// Whether a line has gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dash {
    /// Without a gap.
    Solid,
    /// With gaps as long as its dashes; for horizontal lines.
    Dashed,
}

/// Length of a dash and of a gap.
pub const DASH: f64 = 3.0;

/// A circle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Circle {
    /// Its centre.
    pub centre: Point,
    /// Its radius.
    pub radius: f64,
    /// Its colour.
    pub colour: Colour,
    /// Width of its edge; `None` if it is filled.
    pub edge: Option<f64>,
}

/// A line of text.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    /// Where its anchor is.
    pub place: Point,
    /// The part of it that is at `place`, from left to right.
    pub anchor: Anchor,
    /// The part of it that is at `place`, from top to bottom.
    pub level: Level,
    /// Its font.
    pub font: Font,
    /// Its colour.
    pub colour: Colour,
    /// The text.
    pub text: String,
}

/// The horizontal anchor of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// The vertical anchor of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Upper edge.
    Top,
    /// Half of the height of a letter.
    Middle,
    /// The line on which letters stand.
    Baseline,
    /// Lower edge.
    Bottom,
}

/// Size and weight of a sans-serif font.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Font {
    /// Size in a document.
    pub em: f64,
    /// Height of a line in a bitmap, whose font is wider than those of most browsers.
    pub height: f64,
    /// Whether it is bold in a document; bitmaps have one weight.
    pub bold: bool,
}

/// The elements of a picture, in drawing order.
#[derive(Debug)]
pub struct Canvas {
    /// Width of the picture.
    pub width: f64,
    /// Height of the picture.
    pub height: f64,
    elements: Vec<Element>,
}

impl Canvas {
    /// A white picture.
    pub fn new(width: f64, height: f64) -> Canvas {
        Canvas { width, height, elements: Vec::new() }
    }

    /// Draws a filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: Colour) {
        self.elements.push(Element::Rect([x, y, width, height], fill));
    }

    /// Draws lines.
    pub fn path(&mut self, path: Path) {
        self.elements.push(Element::Path(path));
    }

    /// Draws solid lines.
    pub fn lines(&mut self, lines: Vec<Vec<Point>>, stroke: Colour, width: f64) {
        self.path(Path { lines, fill: None, stroke, width, dash: Dash::Solid });
    }

    /// Draws a circle.
    pub fn circle(&mut self, circle: Circle) {
        self.elements.push(Element::Circle(circle));
    }

    /// Writes a text.
    pub fn text(&mut self, text: Text) {
        self.elements.push(Element::Text(text));
    }

    /// Starts a group of elements that shows `tip` when pointed at.
    pub fn open_group(&mut self, tip: &str) {
        self.elements.push(Element::OpenGroup(tip.into()));
    }

    /// Ends the group.
    pub fn close_group(&mut self) {
        self.elements.push(Element::CloseGroup);
    }
}
