//! What a plot is drawn with: text, curves and lines on whatever backend.

use super::Mark;
use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, IntoTextStyle, RGBColor};

const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const EDGE: RGBColor = RGBColor(120, 120, 120);

pub(super) type Painted<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// A picture whose pixels are `scale` times smaller than those in which it is laid out.
pub(super) struct Canvas<B: DrawingBackend> {
    pub area: DrawingArea<B, Shift>,
    pub scale: i32,
}

impl<B: DrawingBackend> Canvas<B> {
    /// A place of the layout in the picture.
    pub fn place(&self, x: i32, y: i32) -> (i32, i32) {
        (x * self.scale, y * self.scale)
    }

    /// Writes a text at a place of the layout.
    pub fn text(&self, text: &str, (x, y): (i32, i32), size: i32, (across, up): (HPos, VPos)) -> Painted<B> {
        let style = ("sans-serif", size * self.scale).into_font().color(&TEXT).into_text_style(&self.area);
        let style = style.pos(Pos::new(across, up));
        let (x, y) = self.place(x, y);
        // Bitmaps centre the box of a font, whose lower part is empty below most letters.
        let sink = if self.scale > 1 && matches!(up, VPos::Center) { size * self.scale / 7 } else { 0 };
        self.area.draw(&Text::new(text.to_string(), (x, y + sink), style))
    }

    /// Draws a curve through places in the picture.
    pub fn curve(&self, mark: Mark, colour: RGBColor, places: Vec<(i32, i32)>) -> Painted<B> {
        match mark {
            Mark::Line => {
                self.area.draw(&PathElement::new(places, colour.stroke_width(3 * self.scale as u32)))
            }
            Mark::Points => places.into_iter().try_for_each(|place| {
                let style = colour.stroke_width(2 * self.scale as u32);
                self.area.draw(&Circle::new(place, 5 * self.scale, style))
            }),
        }
    }

    /// Draws a dot at each of some places in the picture.
    pub fn dots(&self, colour: RGBColor, places: Vec<(i32, i32)>) -> Painted<B> {
        let dot = |place| self.area.draw(&Circle::new(place, 4 * self.scale, colour.filled()));
        places.into_iter().try_for_each(dot)
    }

    /// Draws a line of the grid between places in the picture.
    pub fn grid(&self, from: (i32, i32), to: (i32, i32)) -> Painted<B> {
        self.area.draw(&PathElement::new(vec![from, to], GRID.stroke_width(self.scale as u32)))
    }

    /// Draws the edge of a panel between places in the picture.
    pub fn edge(&self, upper: (i32, i32), lower: (i32, i32)) -> Painted<B> {
        self.area.draw(&Rectangle::new([upper, lower], EDGE.stroke_width(self.scale as u32)))
    }
}
